"""CopyTask: copies segments of the partitions that this broker leads, one segment of a partition at a time.

    COPY_SEGMENT_STARTED  -> the store copies  -> COPY_SEGMENT_FINISHED  -> the log's remote end advances

What happens meanwhile, as a new leader, a truncation, DeleteRecords or a move to another log directory, is found before
COPY_SEGMENT_FINISHED is stored (`copying.is_wanted`). A copy whose process ends in between stays
COPY_SEGMENT_STARTED, and is settled by expiration; so is one that is not wanted and may be the only copy of
its records (`ottla.remote.only_copies`).

Source: RLMCopyTask of Kafka 4.3.1.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from logging import DEBUG, INFO, getLogger
from typing import Final, assert_never
from uuid import UUID

from ottla.config.topic_configs import MAX_LONG
from ottla.protocol.kafka_uuid import to_text
from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.errors import RemoteResourceNotFound, TransferCancelled
from ottla.remote.lineage import without_empty_epochs
from ottla.remote.log_manager.copying import (
    Decision,
    Discard,
    Finish,
    Leave,
    Repeat,
    after_copy,
    after_failure,
    data_of,
    is_copied_at_once,
    is_copying,
    is_due,
    is_wanted,
    metadata_of,
    next_closed,
    next_segment,
    sizes_after,
)
from ottla.remote.log_manager.deletions import CopyDeletions
from ottla.remote.log_manager.lane import NotYet, Work
from ottla.remote.log_manager.metadata_changes import MetadataChanges
from ottla.remote.log_manager.partition_state import Attempt, PartitionState
from ottla.remote.log_manager.seeding import ready_copies, seed_leader
from ottla.remote.log_manager.segment_transfers import SegmentTransfers
from ottla.remote.log_manager.settings import RemoteLogManagerSettings
from ottla.remote.metadata_cache import IllegalStateTransition
from ottla.remote.metadata_manager import RemoteLogMetadataManager
from ottla.remote.metrics import RemoteStorageMetrics
from ottla.remote.only_copies import may_be_only_copy
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.runtime import Pool, Runtime
from ottla.storage.log import Log
from ottla.storage.segment import Segment
from ottla.storage.segment_times import FileTimes, SegmentFile
from ottla.storage.tiered_log import SegmentToCopy

_LOG: Final = getLogger(__name__)


class CopyTask:
    """Copies closed segments of the partitions that this broker leads to the remote tier (KIP-405)."""

    def __init__(
        self,
        *,
        node_id: int,
        metadata: RemoteLogMetadataManager,
        changes: MetadataChanges,
        transfers: SegmentTransfers,
        deletions: CopyDeletions,
        read_times: Callable[[SegmentFile], FileTimes] | None,
        runtime: Runtime,
        settings: Callable[[], RemoteLogManagerSettings],
        metrics: RemoteStorageMetrics,
        on_leftover: Callable[[RemoteLogSegmentMetadata], None],
    ) -> None:
        """`on_leftover`: the objects of a copy could not be deleted, and its metadata may be gone.

        `read_times` reads the times of a segment in another process; None: there is none.
        """
        self._on_leftover = on_leftover
        self._node_id = node_id
        self._metadata = metadata
        self._changes = changes
        self._transfers = transfers
        self._deletions = deletions
        self._read_times = read_times
        self._runtime = runtime
        self._settings = settings
        self._metrics = metrics

    def prepare(self, state: PartitionState) -> Work | None:
        """Return the next step of copying as a coroutine; None: there is nothing to copy. Raises NotYet."""
        if not state.leads:
            return None
        log = state.partition.log
        if log.is_tiered:
            seed_leader(state, self._metadata)
        if (attempt := state.attempt) is not None:
            copy = ready_copies(state, self._metadata).find(attempt.metadata.segment_id)
            if copy is None:
                return self._remove_unknown(state, attempt)
            if copy.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                # Another leader may have begun to delete it.
                attempt.is_discarded |= copy.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED
                return self._continue(state, attempt)
            # An acknowledgement was lost. The copy counts as finished on all brokers: it is not discarded any more.
            self._end_finished(state, attempt)
        if not log.is_tiered or state.is_copying_stopped:
            return None
        if is_copying(log) and not is_copied_at_once(log.config):
            if (closed := next_closed(log)) is None:
                return None
            asks_age = log.config.effective_remote_copy_lag_ms is not None
            if asks_age and closed.indexes.known_largest is None:
                return self._read_time(log, closed)
            age = partial(self._age_ms, closed)
            if not is_due(log.config, age_ms=age, newer_sizes=sizes_after(log, closed)):
                return None
        segment = next_segment(log)
        return None if segment is None else self._begin(state, segment)

    def _age_ms(self, segment: Segment) -> int:
        largest_ms = segment.indexes.largest.timestamp
        time_ms = segment.files.modified_ms() if largest_ms < 0 else largest_ms
        return self._runtime.now_ms() - time_ms

    async def _read_time(self, log: Log, segment: Segment) -> bool:
        """Read the largest timestamp of a segment, of which nothing is in memory after a start."""
        warm_up = partial(log.reader.warm_up_times, MAX_LONG, go_by_file=lambda _: False, of_records=False)
        await self._runtime.run_blocking(warm_up, pool=Pool.REMOTE_COPIES)
        segment.indexes.load_largest()
        return True

    async def _begin(self, state: PartitionState, segment: SegmentToCopy) -> bool:
        """Store COPY_SEGMENT_STARTED for a segment, and copy it."""
        try:
            times = await self._runtime.run_blocking(self._read, segment, pool=Pool.REMOTE_COPIES)
        finally:
            if segment.snapshot_job is not None:
                segment.snapshot_job.finish()
        log = state.partition.log
        if not state.leads or not is_copying(log) or not segment.is_current(log):
            return True
        metadata = metadata_of(
            segment,
            partition=state.id,
            copy_id=UUID(int=self._runtime.random.getrandbits(128), version=4),
            max_timestamp_ms=times.largest,
            node_id=self._node_id,
            now_ms=self._runtime.now_ms(),
        )
        # A former attempt would be forgotten here, and its objects with it.
        assert state.attempt is None, (state.id, state.attempt)
        # Before it is stored: expiration must not take it for one that was given up.
        state.attempt = attempt = Attempt(
            segment=segment, metadata=metadata, time_index_of_records=times.time_index
        )
        try:
            await self._changes.start(metadata)
        except BaseException:
            # It may be stored all the same: then expiration finds it.
            state.attempt = None
            raise
        return await self._continue(state, attempt)

    async def _continue(self, state: PartitionState, attempt: Attempt) -> bool:
        """Copy, if that is not done yet, and finish. Called also after a failure, and in a later leader epoch."""
        assert state.attempt is attempt, (state.id, attempt)
        decision: Decision = Discard()
        failure: Exception | None = None
        if not attempt.is_discarded and not attempt.is_copied:
            decision, failure = await self._copy(state, attempt)
            if isinstance(decision, Finish) and state.seeded_epoch != state.partition.leader_epoch:
                # Another broker may have led meanwhile.
                return True
        elif not attempt.is_discarded and is_wanted(state, attempt):
            decision = Finish()
        match decision:
            case Finish():
                await self._finish(state, attempt)
            case Repeat():
                pass
            case Discard():
                try:
                    await self._discard(state, attempt, decision)
                except Exception as error:  # noqa: BLE001 (of any kind: raised below)
                    failure = failure or error
                # With a back-off: whatever made this one useless may be true of the next one.
                failure = failure or NotYet("a copy was discarded")
            case Leave():
                state.attempt = None
            case _:
                assert_never(decision)
        if failure is not None:
            raise failure
        return True

    async def _copy(self, state: PartitionState, attempt: Attempt) -> tuple[Decision, Exception | None]:
        topic = state.partition.topic_partition.topic
        self._metrics.on_copy_requested(topic)
        # Once for each copy: while the store is down, it is repeated in each partition.
        _LOG.log(DEBUG if attempt.is_repeated else INFO,
                 "%s: copying [%d, %d), %d bytes, as %s", state.id.topic_partition, attempt.segment.base_offset,
                 attempt.segment.end_offset, attempt.segment.size_bytes,
                 to_text(attempt.metadata.segment_id.id))  # fmt: skip
        attempt.is_repeated = True
        try:
            custom = await self._transfers.copy(attempt.metadata, data_of(attempt), attempt.transfer)
        except Exception as error:  # noqa: BLE001 (of any kind: a store may raise what it likes)
            wanted = is_wanted(state, attempt)
            is_failure = wanted and not isinstance(error, TransferCancelled)
            if is_failure:
                self._metrics.on_copy_failed(topic)
            return after_failure(error, is_wanted=wanted), error if is_failure else None
        attempt.is_copied = True
        attempt.metadata = replace(attempt.metadata, custom_metadata=custom)
        return after_copy(
            custom,
            is_wanted=is_wanted(state, attempt),
            custom_metadata_max_bytes=self._settings().custom_metadata_max_bytes,
        ), None

    async def _finish(self, state: PartitionState, attempt: Attempt) -> None:
        """Store COPY_SEGMENT_FINISHED. After a failure the attempt stays, and `prepare` reads which state is stored."""
        # From then on local segments are removed, and consumers read the copy.
        assert attempt.is_copied, attempt
        assert not attempt.is_discarded, attempt
        assert is_wanted(state, attempt), (state.id, attempt)
        try:
            await self._changes.change(attempt.metadata, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
        except (RemoteResourceNotFound, IllegalStateTransition):
            # Another leader has deleted the copy, perhaps before the store had all of its objects.
            attempt.is_discarded = True
            await self._delete_objects(attempt)
            raise
        self._end_finished(state, attempt)
        if state.leads and state.partition.log.is_tiered:
            seed_leader(state, self._metadata)

    def _end_finished(self, state: PartitionState, attempt: Attempt) -> None:
        assert state.attempt is attempt, (state.id, attempt)
        state.attempt = None
        self._metrics.on_copied(state.partition.topic_partition.topic, attempt.segment.size_bytes)

    async def _discard(self, state: PartitionState, attempt: Attempt, decision: Discard) -> None:
        """Delete the copy.

        Raises the failure, if this broker leads: then it is repeated; else the next leader deletes it.

        One that another leader has finished meanwhile, or that may be the only one, stays.
        """
        assert state.attempt is attempt, (state.id, attempt)
        if not attempt.is_discarded and self._is_kept(state, attempt):
            state.attempt = None
            return
        if decision.stops_copying:
            state.is_copying_stopped = True
            self._metrics.on_copy_failed(state.partition.topic_partition.topic)
            _LOG.error(
                "%s: copying stops, as the store's custom metadata has %d bytes, and "
                "remote.log.metadata.custom.metadata.max.bytes is %d: raise it, and restart this broker",
                state.id.topic_partition,
                len(attempt.metadata.custom_metadata or b""),
                self._settings().custom_metadata_max_bytes,
            )
        if not attempt.is_discarded:
            attempt.is_discarded = True
            _LOG.info(
                "%s: the copy %s is discarded",
                state.id.topic_partition,
                to_text(attempt.metadata.segment_id.id),
            )
        try:
            attempt.metadata = await self._deletions.begin(attempt.metadata)
            await self._deletions.complete(attempt.metadata)
        except Exception as error:
            if state.leads:
                raise
            _LOG.info("%s is left to the next leader: %s", attempt.metadata.segment_id, error)
            await self._delete_objects(attempt)
        state.attempt = None

    def _is_kept(self, state: PartitionState, attempt: Attempt) -> bool:
        log = state.partition.log
        lineage = without_empty_epochs(log.leader_epochs.entries)
        if not lineage or not log.is_tiered or not self._metadata.is_ready(state.id):
            return False
        copies = self._metadata.copies(state.id)
        stored = copies.find(attempt.metadata.segment_id)
        if stored is None:
            return False
        return stored.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED or may_be_only_copy(
            stored,
            copies,
            lineage=lineage,
            log_start_offset=log.log_start_offset,
            local_log_start_offset=log.local_log_start_offset,
        )

    async def _remove_unknown(self, state: PartitionState, attempt: Attempt) -> bool:
        """Delete the objects of a copy that another leader has deleted, perhaps before this broker's last write.

        Its metadata are gone, so no other broker would delete them.
        """
        await self._transfers.delete(attempt.metadata)
        state.attempt = None
        return True

    async def _delete_objects(self, attempt: Attempt) -> None:
        """Delete the objects of a copy, without its metadata.

        The metadata may not be assigned to this broker any more, or lack the copy.
        """
        try:
            await self._transfers.delete(attempt.metadata)
        except Exception as error:  # noqa: BLE001 (of any kind)
            _LOG.info("%s may have left objects: %s", attempt.metadata.segment_id, error)
            self._on_leftover(attempt.metadata)

    def _read(self, segment: SegmentToCopy) -> FileTimes:
        """Write the producer snapshot, if it is missing; return the times of the segment's records. [any thread]

        A segment without times gets the time at which its file was modified.
        """
        if segment.snapshot_job is not None:
            segment.snapshot_job.run()
        found = segment.known_times
        if found is None:
            found = segment.read_times() if self._read_times is None else self._read_times(segment.file)
        return found if found.largest >= 0 else FileTimes(segment.modified_ms(), found.time_index)
