"""Bugs planted into the remote tier; see `cluster_mutants`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from ottla.broker.replicas.reading import list_offsets
from ottla.broker.tiering.partition_removers import PartitionRemovers
from ottla.remote import expiration, lost_branches
from ottla.remote.log_manager import copy_task
from ottla.remote.log_manager.copy_task import CopyTask
from ottla.remote.log_manager.copying import is_copying
from ottla.remote.log_manager.expiration_task import ExpirationTask
from ottla.remote.log_manager.partition_state import Attempt, PartitionState
from ottla.remote.lost_branches import lost_copies
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.reading import copies_of_log
from ottla.remote.reading.remote_log_reader import RemoteLogReader
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.storage import producer_state
from ottla.storage.leader_epoch_cache import EpochEntry
from ottla.storage.log import Log
from ottla.storage.log_offsets import LogOffsets
from ottla.storage.tiered_log import SegmentToCopy, segments_to_copy


@contextmanager
def copied_before_it_is_finished() -> Iterator[None]:
    """A segment counts as copied as soon as its copy begins."""
    begin = CopyTask._copy

    async def hasty(self: CopyTask, state: PartitionState, attempt: Attempt) -> Any:
        state.partition.log.update_remote_end_offset(attempt.segment.end_offset)
        return await begin(self, state, attempt)

    with patch.object(CopyTask, "_copy", hasty):
        yield


@contextmanager
def log_start_after_the_deletion() -> Iterator[None]:
    """The log start offset advances when the expired copies are deleted."""
    expire = ExpirationTask._delete_expired

    async def late(self: ExpirationTask, state: PartitionState, found: Any) -> None:
        await expire(self, state, replace(found, log_start_offset=None))
        if found.log_start_offset is not None and state.leads:
            log = state.partition.log
            log.maybe_increment_log_start_offset(min(found.log_start_offset, log.high_watermark))

    with patch.object(ExpirationTask, "_delete_expired", late):
        yield


@contextmanager
def undecided_segments_are_copied() -> Iterator[None]:
    """Closed segments are copied, also behind the last stable offset."""
    with patch.object(copy_task, "next_segment", _next_closed_segment):
        yield


def _next_closed_segment(log: Log) -> SegmentToCopy | None:
    from_offset = log.offsets.earliest_pending_upload_offset
    if from_offset is None or not is_copying(log):
        return None
    found = segments_to_copy(
        log.files, log.leader_epochs, from_offset=from_offset, end_offset=2**62, max_count=1
    )
    return found[0] if found else None


@contextmanager
def one_transaction_index_is_read() -> Iterator[None]:
    """A remote read looks for aborted transactions in the segment of its records only, not in later ones."""
    read = RemoteLogReader._aborted_of_copy

    async def read_one(self: RemoteLogReader, *args: Any) -> Any:
        return (await read(self, *args))[0], True

    with patch.object(RemoteLogReader, "_aborted_of_copy", read_one):
        yield


@contextmanager
def transactions_in_the_order_of_their_producers() -> Iterator[None]:
    """The first unstable offset is that of the first producer in a follower's append."""
    with patch.object(producer_state, "_first_offset", lambda transaction: 0):
        yield


@contextmanager
def copies_are_read_to_their_end() -> Iterator[None]:
    """A read does not end where the copy's lineage parts from the log's: as in Kafka."""

    def whole(copy: RemoteLogSegmentMetadata, *_: object, **__: object) -> int:
        return copy.end_offset

    with patch.object(copies_of_log, "agreed_end", whole):
        yield


@contextmanager
def copies_of_any_epoch_count() -> Iterator[None]:
    """Count an offset as copied whichever leader epoch the copy is of."""
    covered = RemoteLogMetadataCache.covered_until

    def by_any(self: RemoteLogMetadataCache, *, epoch: int, offset: int) -> int:
        return max(covered(self, epoch=each, offset=offset) for each in (epoch, *self._epochs))

    with patch.object(RemoteLogMetadataCache, "covered_until", by_any):
        yield


@contextmanager
def the_remote_end_outlives_a_truncation() -> Iterator[None]:
    """A truncation below the remote end leaves it as it was."""
    begin = LogOffsets.begin_truncation

    def forgetful(self: LogOffsets, end_offset: int) -> None:
        remote_end, self.remote_end_offset = self.remote_end_offset, None
        begin(self, end_offset)
        self.remote_end_offset = remote_end

    with patch.object(LogOffsets, "begin_truncation", forgetful):
        yield


def _with_sync(*, is_fully_in_sync: bool) -> Callable[..., list[RemoteLogSegmentMetadata]]:
    return lambda *args, **named: lost_copies(*args, **{**named, "is_fully_in_sync": is_fully_in_sync})


@contextmanager
def lost_branches_stay() -> Iterator[None]:
    """Copies of a lost branch are deleted below the log start only."""
    with patch.object(expiration, "lost_copies", _with_sync(is_fully_in_sync=False)):
        yield


@contextmanager
def lost_branches_go_while_replicas_have_them() -> Iterator[None]:
    """Their copies are deleted when the leader has copied the same offsets, whatever the other replicas have."""
    with patch.object(expiration, "lost_copies", _with_sync(is_fully_in_sync=True)):
        yield


@contextmanager
def copies_of_older_epochs_are_lost() -> Iterator[None]:
    """A copy all of whose epochs are older than the leader's counts as one of a lost branch."""

    def older(self: RemoteLogMetadataCache, lineage: Sequence[EpochEntry]) -> list[RemoteLogSegmentMetadata]:
        return [
            copy for epoch in self._epochs if epoch < lineage[-1].epoch for copy in self.referenced(epoch)
        ]

    with (
        patch.object(RemoteLogMetadataCache, "outside", older),
        patch.object(lost_branches, "common_ranges", lambda *_, **__: iter(())),
    ):
        yield


@contextmanager
def deleted_topics_keep_their_copies() -> Iterator[None]:
    """No partition remover runs: as in Kafka, if the leader is down."""
    with (
        patch.object(PartitionRemovers, "start", lambda self: None),
        patch.object(PartitionRemovers, "stop", _nothing),
    ):
        yield


async def _nothing(self: PartitionRemovers) -> None:
    """Do nothing where `deleted_topics_keep_their_copies` replaces the removal."""


@contextmanager
def what_is_remote_only_is_not_tiered() -> Iterator[None]:
    """The latest tiered offset (ListOffsets -5) is unknown where local retention has removed all that is copied."""
    latest_tiered = list_offsets._latest_tiered

    def latest_local(log: Log) -> Any:
        return (
            latest_tiered(log) if (log.offsets.remote_end_offset or 0) > log.local_log_start_offset else None
        )

    with patch.object(list_offsets, "_latest_tiered", latest_local):
        yield
