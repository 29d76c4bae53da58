"""Replicas of one partition, as stories: who truncates what when leaders change. See the files next to this one.

`tests.harness.replica_stage` has the commands. What it plays are the follower's state machine, its fetcher,
the leader's partition and the handlers of Fetch and ListOffsets as a broker has them; the rules of old are
machines that decide otherwise.
"""

from pathlib import Path

import pytest

from ottla.replication.follower import Divergence, FetchRecords, Follower, FollowerRequest, TruncateTo
from ottla.replication.follower_states import Transitions
from tests.harness.replica_stage import Stage, play_with

_FILES = sorted(Path(__file__).parent.glob("*.txt"))


class RuleOfOld(Follower):
    """Does not ask of its last record in every epoch; that is asserted since."""

    def _assert_reconciled(self, asked: FetchRecords) -> None:
        pass


class TruncatesToHighWatermark(RuleOfOld):
    """The rule that KIP-101 replaced: no epochs are asked for, the high watermark says what is kept."""

    def follow(self, leader_epoch: int) -> TruncateTo | None:
        if leader_epoch == self.leader_epoch:
            return None
        self.leader_epoch = leader_epoch
        kept = min(self._log.high_watermark, self._log.log_end_offset)
        return self._truncate_to(Transitions.NEW_EPOCH_WITHOUT_ONE, kept)

    def next_request(self) -> FollowerRequest | None:
        asked = super().next_request()
        return _without_epoch(asked) if isinstance(asked, FetchRecords) else asked


class AsksOnce(RuleOfOld):
    """KIP-101 alone, as before KIP-279: the epoch in the leader's response is ignored."""

    __slots__ = ("has_asked",)

    def follow(self, leader_epoch: int) -> TruncateTo | None:
        if leader_epoch != self.leader_epoch:
            self.has_asked = False
        return super().follow(leader_epoch)

    def next_request(self) -> FollowerRequest | None:
        asked = super().next_request()
        return _without_epoch(asked) if isinstance(asked, FetchRecords) and self.has_asked else asked

    def on_divergence(self, asked: FetchRecords, answer: Divergence) -> TruncateTo | None:
        self.has_asked = True
        return self._truncate_to(Transitions.DIVERGED, min(answer.end_offset, self._log.log_end_offset))


def _without_epoch(asked: FetchRecords) -> FetchRecords:
    return FetchRecords(
        leader_epoch=asked.leader_epoch,
        fetch_offset=asked.fetch_offset,
        last_fetched_epoch=None,
        log_start_offset=asked.log_start_offset,
    )


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    stage.close()


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
@pytest.mark.logs("Fetch from broker", "below the high watermark")
def test_scenario(play, stage, path):
    play(path, stage)


@pytest.mark.parametrize(("name", "rule", "outcome"), [
    ("scenario_1",          TruncatesToHighWatermark, "lost: m2"),
    ("scenario_2",          TruncatesToHighWatermark, "divergent at 1"),
    ("scenario_2_batches",  TruncatesToHighWatermark, "A asks nothing any more"),
    ("appendix",            TruncatesToHighWatermark, "divergent at 0"),
    ("appendix",            AsksOnce,                 "divergent at 0"),  # as the KIP says
    ("fast_leader_changes", AsksOnce,                 "divergent at 2"),
])  # fmt: skip
@pytest.mark.logs(
    "Fetch from broker",
    "below the high watermark",
    "contradicts these, which are removed",
    "records from broker",
)
def test_an_older_rule_fails(name, rule, outcome):
    shown = play_with((Path(__file__).parent / f"{name}.txt").read_text(), rule)
    assert outcome in shown[-6:], shown  # what the last `show` says


def test_every_story_names_its_kip():
    assert _FILES
    for path in _FILES:
        assert "KIP-" in path.read_text().splitlines()[0], path
