"""When a closed segment is copied (KIP-1241), and how little of the log is read to know it."""

import pytest

from ottla.config.log_config import LogConfig
from ottla.remote.log_manager.copying import is_due

OLD, YOUNG, AHEAD = 100, 99, -1


def config(lag_ms, lag_bytes):
    # Without a lag of its own, a topic has that of its local retention.
    return LogConfig(remote_copy_lag_ms=lag_ms, remote_copy_lag_bytes=lag_bytes, retention_ms=None)


@pytest.mark.parametrize(("lag_ms", "lag_bytes", "age_ms", "sizes", "is_copied", "read_sizes", "asks_age"), [
    # KIP-1241: the age or the bytes suffice; 0 is at once.
    (    0,   500, YOUNG, (10,),          True,  0, False),
    (  100,   500, OLD,   (10,),          True,  0, True),
    (  100,   500, YOUNG, (10, 300, 100), False, 3, True),
    (  100,   500, YOUNG, (10, 490) * 99, True,  2, True),   # the newest that suffice, of however many
    (  100,   500, AHEAD, (10,),          True,  0, True),
])  # fmt: skip
def test_no_more_is_read_than_the_decision_needs(
    lag_ms, lag_bytes, age_ms, sizes, is_copied, read_sizes, asks_age
):
    asked, read = [], []

    def age():
        asked.append(age_ms)
        return age_ms

    newer = (read.append(each) or each for each in sizes)
    assert is_due(config(lag_ms, lag_bytes), age_ms=age, newer_sizes=newer) is is_copied
    assert (len(read), bool(asked)) == (read_sizes, asks_age)


def test_a_lag_that_is_not_set_is_not_asked_for():
    def never():
        raise AssertionError("asked for")

    assert is_due(config(None, 5), age_ms=never, newer_sizes=(5,))
    assert not is_due(config(100, None), age_ms=lambda: YOUNG, newer_sizes=iter(never, None))
