"""Up to where consumers have to read, when records are acknowledged before they are committed."""

import pytest

from ottla.bench.generators import cluster
from ottla.bench.generators.cluster import ClusterReader


class Behind(ClusterReader):
    """A cluster whose ends grow from question to question."""

    def __init__(self, *sums):
        self.answers = [{"t": {0: number, 1: 5}, "other": {0: 0}} for number in sums]

    def ends(self, partitions, *, is_cancelled=lambda: False):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.mark.parametrize(
    ("least", "end"),
    [({}, 1), ({"t": 6}, 1), ({"t": 7}, 3), ({"t": 8, "other": 0}, 3), ({"t": 15}, 10)],
)
def test_ends_have_all_that_was_acknowledged(least, end):
    ends = Behind(1, 3, 10).ends_with({"t": 2, "other": 1}, least, is_cancelled=lambda: False)
    assert ends["t"] == {0: end, 1: 5}


def test_records_that_do_not_come_are_not_waited_for_indefinitely(monkeypatch):
    monkeypatch.setattr(cluster, "_COMMIT_S", 0.3)
    assert Behind(1).ends_with({"t": 2}, {"t": 7}, is_cancelled=lambda: False)["t"] == {0: 1, 1: 5}
    monkeypatch.setattr(cluster, "_COMMIT_S", 300)
    assert Behind(1).ends_with({"t": 2}, {"t": 7}, is_cancelled=lambda: True)["t"] == {0: 1, 1: 5}
