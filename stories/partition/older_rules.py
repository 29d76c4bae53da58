"""Followers by older rules, which lose or keep the wrong records: the bugs that KIP-101 and KIP-279 repaired."""

from ottla.replication.follower import Action, Divergence, FetchRecords, Follower, FollowerRequest
from ottla.replication.follower_states import Transitions


class RuleOfOld(Follower):
    """Does not name the epoch of its last record in every fetch, which is asserted since."""

    __slots__ = ()

    def _assert_reconciled(self, asked: FetchRecords) -> None:
        pass


class TruncatesToHighWatermark(RuleOfOld):
    """The rule that KIP-101 replaced: epochs are not asked for, the high watermark determines what is kept."""

    __slots__ = ()

    def follow(self, leader_epoch: int) -> Action | None:
        """Truncate to the high watermark in each new leader epoch."""
        if leader_epoch == self.leader_epoch:
            return None
        self.leader_epoch = leader_epoch
        kept = min(self._log.offsets.high_watermark, self._log.offsets.log_end_offset)
        return self._truncate_to(Transitions.NEW_EPOCH_WITHOUT_ONE, kept)

    def next_request(self) -> FollowerRequest | None:
        """Return the next request, which names no epoch."""
        asked = super().next_request()
        return _without_epoch(asked) if isinstance(asked, FetchRecords) else asked


class AsksOnce(RuleOfOld):
    """KIP-101 alone, as before KIP-279: the epoch in the leader's response is ignored."""

    __slots__ = ("has_asked",)

    def follow(self, leader_epoch: int) -> Action | None:
        """Ask again in each new leader epoch."""
        if leader_epoch != self.leader_epoch:
            self.has_asked = False
        return super().follow(leader_epoch)

    def next_request(self) -> FollowerRequest | None:
        """Return the next request, which names an epoch once."""
        asked = super().next_request()
        return _without_epoch(asked) if isinstance(asked, FetchRecords) and self.has_asked else asked

    def on_divergence(self, asked: FetchRecords, answer: Divergence) -> Action | None:
        """Truncate to where the leader's epoch ends, whether or not this log has that epoch."""
        self.has_asked = True
        return self._truncate_to(
            Transitions.DIVERGED, min(answer.end_offset, self._log.offsets.log_end_offset)
        )


def _without_epoch(asked: FetchRecords) -> FetchRecords:
    return asked._replace(last_fetched_epoch=None)
