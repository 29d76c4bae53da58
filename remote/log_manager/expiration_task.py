"""ExpirationTask: deletes expired copies, and those that no reader finds (`ottla.remote.expiration`).

    log start offset advances  -> DELETE_SEGMENT_STARTED -> the store deletes -> DELETE_SEGMENT_FINISHED, copy by copy

The log start offset first: followers learn it by their fetches; one that becomes leader before it has learnt
it decides the same again. A deletion that fails is repeated, by this leader or the next one.

A copy that is not finished may still be written: by another broker, or by what the store carries out late of an earlier
process of this one. It is settled when this leader has seen it for two deadlines, one of its own for `OWN_WAIT_S`
(`partition_state.UnfinishedCopies`): deleted, or, if it may be the only copy of its records, verified
(`lost_finishes`).

When a topic is not tiered any more (KIP-950) the log starts where its local segments do, and all copies are deleted.
Tiering can be switched off only with remote.log.delete.on.disable=true: what has begun is completed, whatever
that key is afterwards.

Source: RLMExpirationTask of Kafka 4.3.1.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from logging import getLogger
from typing import Final
from uuid import UUID

from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.protocol.steps import listed
from ottla.remote.errors import RetriableRemoteStorageError
from ottla.remote.expiration import Expiration, LogView, Reason, expire
from ottla.remote.log_manager.deletions import CopyDeletions
from ottla.remote.log_manager.lane import Work
from ottla.remote.log_manager.lost_finishes import LostFinishes
from ottla.remote.log_manager.partition_state import PartitionState
from ottla.remote.log_manager.seeding import ready_copies, seed_leader
from ottla.remote.log_manager.settings import RemoteLogManagerSettings
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.metadata_manager import RemoteLogMetadataManager
from ottla.remote.metrics import RemotePartitionGauges, RemoteStorageMetrics
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.runtime import Runtime
from ottla.runtime.turns import FreedInTurns, result_in_turns
from ottla.storage.log import Log

_LOG: Final = getLogger(__name__)

#: The time for which a store may go on with a request whose sender has ended.
OWN_WAIT_S: Final = 30.0
#: Copies that are looked up in one step: half a millisecond.
_LOOKED_OF_STEP: Final = 100


class ExpirationTask:
    """Deletes expired and unused copies of the partitions that this broker leads (KIP-405)."""

    def __init__(
        self,
        *,
        node_id: int,
        metadata: RemoteLogMetadataManager,
        deletions: CopyDeletions,
        finishes: LostFinishes,
        runtime: Runtime,
        settings: Callable[[], RemoteLogManagerSettings],
        metrics: RemoteStorageMetrics,
        being_copied: Callable[[PartitionState], Collection[UUID]],
        stop_if_settled: Callable[[PartitionState, RemoteLogMetadataCache], None],
    ) -> None:
        """`being_copied`: copies that this broker makes now.

        `stop_if_settled` is called with the copies of a partition that is not tiered any more.
        """
        self._node_id = node_id
        self._metadata = metadata
        self._deletions = deletions
        self._finishes = finishes
        self._runtime = runtime
        self._settings = settings
        self._metrics = metrics
        self._being_copied = being_copied
        self._stop_if_settled = stop_if_settled

    def prepare(self, state: PartitionState) -> Work | None:
        """Return the deletions and verifications that are due as a coroutine; None: nothing is due. Raises NotYet."""
        if not state.leads:
            return None
        log = state.partition.log
        if not log.is_tiered:
            return self._prepare_disabling(state, log)
        seed_leader(state, self._metadata)
        copies = self._metadata.copies(state.id)
        now_ms = self._runtime.now_ms()
        local_only_bytes = log.local_only_bytes()
        assert local_only_bytes is not None, log.offsets
        began_s = self._runtime.monotonic()
        wait_s = 2 * self._settings().transfer_deadline_ms / 1000
        found = expire(
            copies,
            LogView(
                lineage=log.leader_epochs.entries,
                log_start_offset=log.log_start_offset,
                local_log_start_offset=log.local_log_start_offset,
                # Not the log end: the log start offset cannot pass the high watermark, which a new leader has to find.
                log_end_offset=log.high_watermark,
                local_only_bytes=local_only_bytes,
                retention_ms=log.config.total_retention_ms,
                retention_bytes=log.config.total_retention_bytes,
                is_fully_in_sync=set(state.partition.replicas) <= set(state.partition.isr),
            ),
            being_copied=self._being_copied(state),
            abandoned=state.unfinished.abandoned(
                copies.unreferenced(),
                now_s=began_s,
                wait_s=wait_s,
                own_node_id=self._node_id,
                own_wait_s=min(wait_s, OWN_WAIT_S),
            ),
            now_ms=now_ms,
        )
        gauges = self._metrics.partition(state.partition.topic_partition)
        gauges.remote_log_size_computation_ms = round((self._runtime.monotonic() - began_s) * 1000)
        _measure(gauges, log, copies, found, local_only_bytes=local_only_bytes)
        _count_lag(gauges, [copy for copy, _ in found.deleted])
        doubtful = [copy for copy in found.doubtful if copy.segment_id.id not in state.left]
        return self._expire(state, found, doubtful) if found.deleted or doubtful else None

    async def _expire(
        self, state: PartitionState, found: Expiration, doubtful: Sequence[RemoteLogSegmentMetadata]
    ) -> bool:
        failure: Exception | None = None
        try:
            await self._delete_expired(state, found)
        except Exception as error:  # noqa: BLE001 (of any kind: what is to be verified does not depend on it)
            failure = error
        await self._finishes.settle(state, doubtful)
        if failure is not None:
            raise failure
        return found.has_more

    async def _delete_expired(self, state: PartitionState, found: Expiration) -> None:
        if not state.leads:
            return
        if (start := found.log_start_offset) is not None:
            log = state.partition.log
            log.maybe_increment_log_start_offset(min(start, log.high_watermark), reason="remote retention")
            state.partition.notice_retention()
            # Nothing is deleted that a reader may still ask for.
            assert start <= log.log_start_offset <= log.high_watermark, (state.id, start, log.offsets)
        for reason in dict.fromkeys(reason for _, reason in found.deleted):
            _log_deletions(state, [copy for copy, each in found.deleted if each is reason], reason)
        deleted = [copy for copy, _ in found.deleted]
        _count_lag(self._metrics.partition(state.partition.topic_partition), deleted)
        await self._delete(state, deleted)

    async def _delete(
        self,
        state: PartitionState,
        copies: Iterable[RemoteLogSegmentMetadata],
        *,
        is_due: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Delete these copies one after the other, while `is_due`. Returns False: no more is to be done at once.

        Raises the first failure, after the others were tried.
        """
        failure: Exception | None = None
        gauges = self._metrics.partition(state.partition.topic_partition)
        for copy in copies:
            if not (state.leads and is_due()):
                return False
            try:
                await self._deletions.delete(copy)
            except RetriableRemoteStorageError:
                raise  # the store is not there: the others would fail, too
            except Exception as error:  # noqa: BLE001 (of any kind: the others are independent of it)
                failure = failure or error
            else:
                gauges.remote_delete_lag_segments -= 1
                gauges.remote_delete_lag_bytes -= copy.segment_size_bytes
        if failure is not None:
            raise failure
        return False

    # -- remote.log.delete.on.disable --------------------------------------------------------------------

    def _prepare_disabling(self, state: PartitionState, log: Log) -> Work | None:
        if log.maybe_increment_log_start_offset(log.local_log_start_offset, reason="tiering is disabled"):
            state.partition.notice_retention()
        assert log.log_start_offset >= log.local_log_start_offset, (state.id, log.offsets)
        copies = ready_copies(state, self._metadata)
        self._stop_if_settled(state, copies)
        return self._delete_all(state, copies) if len(copies) else None

    async def _delete_all(self, state: PartitionState, copies: RemoteLogMetadataCache) -> bool:
        """Delete all copies, the first ones first, until tiering is enabled again, but not those that are being copied.

        From then on local retention relies on the rest. 100,000 copies are looked up in turns of the loop.
        """
        parts = FreedInTurns(self._runtime)
        being_copied = self._being_copied(state)
        looking = listed(_start_offsets(copies, being_copied), size=_LOOKED_OF_STEP, parts=parts)
        found = await result_in_turns(looking, self._runtime)
        found.sort()
        gauges = self._metrics.partition(state.partition.topic_partition)
        gauges.remote_delete_lag_segments = len(found)
        gauges.remote_delete_lag_bytes = copies.finished_bytes
        assert not state.is_deleting_all, state.id
        state.is_deleting_all = True
        try:
            present = (copies.with_id(segment_id) for _, segment_id in found)
            due = (copy for copy in present if copy is not None)
            return await self._delete(state, due, is_due=lambda: not state.partition.log.is_tiered)
        finally:
            state.is_deleting_all = False


def _start_offsets(
    copies: RemoteLogMetadataCache, being_copied: Collection[UUID]
) -> Iterator[tuple[int, UUID]]:
    """The start offset and the id of each copy, but for those that are being copied."""
    for segment_id in copies.segment_ids():
        if segment_id not in being_copied and (copy := copies.with_id(segment_id)) is not None:
            yield copy.start_offset, segment_id


def _measure(
    gauges: RemotePartitionGauges,
    log: Log,
    copies: RemoteLogMetadataCache,
    found: Expiration,
    *,
    local_only_bytes: int,
) -> None:
    gauges.remote_log_metadata_count = len(copies)
    begun = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
    gauges.remote_log_size_bytes = copies.finished_bytes + sum(
        copy.segment_size_bytes for copy, _ in found.deleted if copy.state is begun
    )
    config = log.config
    gauges.retention_size_in_percent = _percent(
        copies.finished_bytes + local_only_bytes, config.total_retention_bytes
    )
    gauges.local_retention_size_in_percent = _percent(
        log.segments.size_bytes, config.effective_local_retention_bytes
    )


def _percent(size_bytes: int, bound: int | None) -> int:
    return 100 * size_bytes // bound if bound else 0


def _count_lag(gauges: RemotePartitionGauges, copies: Sequence[RemoteLogSegmentMetadata]) -> None:
    gauges.remote_delete_lag_segments = len(copies)
    gauges.remote_delete_lag_bytes = sum(copy.segment_size_bytes for copy in copies)


def _log_deletions(state: PartitionState, copies: Sequence[RemoteLogSegmentMetadata], reason: Reason) -> None:
    first, last = copies[0], copies[-1]
    _LOG.info(
        "%s: deleting %d copies, from [%d, %d) to [%d, %d), because of %s",
        state.id.topic_partition,
        len(copies),
        first.start_offset,
        first.end_offset,
        last.start_offset,
        last.end_offset,
        reason.value,
    )
