"""Bugs that are planted into leaders and followers of a partition, each by one rule that is replaced."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from ottla.broker.replicas.follower_replica import FollowerReplica
from ottla.broker.replicas.partition import Partition
from ottla.replication.leader_state import LeaderState


@contextmanager
def expansion_before_the_epoch_start() -> Iterator[None]:
    """A replica that has everything below the high watermark joins, whatever an older leader may have committed."""

    def expanded(self: LeaderState, replica: int, *, high_watermark: int) -> frozenset[int] | None:
        progress = self.followers[replica]
        end = progress.log_end_offset
        if self.proposed_isr is not None or replica in self.isr or end is None or end < high_watermark:
            return None
        return self.isr | {replica} if self._is_isr_eligible(replica, progress.broker_epoch) else None

    with patch.object(LeaderState, "expanded", expanded):
        yield


@contextmanager
def no_epoch_without_records() -> Iterator[None]:
    """A new leader's epoch begins in its cache with its first record."""
    begin = Partition._begin_leader_epoch

    def begin_silently(self: Partition) -> None:
        with patch.object(type(self.log), "assign_epoch", lambda *_, **__: None):
            begin(self)

    with patch.object(Partition, "_begin_leader_epoch", begin_silently):
        yield


@contextmanager
def followers_serve_all_that_they_have() -> Iterator[None]:
    """A follower takes its log's end for the high watermark, and consumers read up to there."""
    append = FollowerReplica.append

    def generous(self: FollowerReplica, records: memoryview, *, high_watermark: int, **others: Any) -> None:
        append(self, records, high_watermark=2**62, **others)

    with patch.object(FollowerReplica, "append", generous):
        yield
