"""SegmentTransfers: copies, deletions and verifications in the store, which may take long or never end.

They run off the event loop. A call of the store cannot be interrupted. One that exceeds its deadline is
abandoned: its caller continues, and the thread is occupied until the store's own time-outs. What it writes
later is deleted when it ends: by then the leader may have deleted the copy already, so that no metadata names
its objects. A deletion that fails is left to `on_leftover`.

`ThreadTransfers` calls the store in threads of this process.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from logging import getLogger
from typing import Final, Protocol
from uuid import UUID

from ottla.remote.errors import RemoteStorageError, TransferCancelled
from ottla.remote.only_copies import verify_copy
from ottla.remote.quota import TransferQuota
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.storage_manager import LogSegmentData, RemoteStorageManager
from ottla.runtime import Pool, Runtime

_LOG: Final = getLogger(__name__)


class TransferAbandoned(RemoteStorageError):
    """A call of the store did not end before the deadline."""


class Transfer:
    """One copy that is under way. `is_cancelled` is set on the event loop, and read in any thread."""

    __slots__ = ("is_cancelled", "throttled_s")

    def __init__(self) -> None:
        self.is_cancelled = False
        #: The time that the copy has waited for the quota: the deadline does not count that.
        self.throttled_s = 0.0

    def on_wait(self, wait_s: float) -> None:
        """Count a wait of the transfer for the quota, 0 before it begins. Raises TransferCancelled."""
        self.throttled_s += wait_s
        self.check()

    def check(self) -> None:
        """Raise TransferCancelled if the copy is not wanted any more."""
        if self.is_cancelled:
            raise TransferCancelled("the copy is not wanted any more")


class SegmentTransfers(Protocol):
    """Copies, deletions and verifications of segments in the store, each with a deadline. Belongs to the event loop."""

    async def copy(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData, transfer: Transfer
    ) -> bytes | None:
        """Copy a segment within the quota; return the store's custom metadata.

        Raises the store's errors, TransferAbandoned, TransferCancelled.
        """

    async def delete(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete a copy. Raises the store's errors, TransferAbandoned."""

    async def verify(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Read a copy, and compare it with its metadata.

        Raises the store's errors, RemoteStorageError, TransferAbandoned.
        """

    @property
    def running(self) -> "frozenset[UUID] | set[UUID]":
        """The ids of the copies that are being written, also of those that were abandoned."""

    @property
    def abandoned(self) -> int:
        """The number of copies that were abandoned and still occupy a thread."""

    @property
    def abandoned_deletions(self) -> int:
        """The number of deletions and verifications that were abandoned and still occupy a thread, or wait for one."""


#: Less time than this counts as none: a clock may have no such step.
_LEAST_S: Final = 0.001


@dataclass(slots=True, frozen=True)
class _Ended:
    """The outcome of a call of the store: custom metadata or a failure."""

    custom_metadata: bytes | None = None
    failure: Exception | None = None


class ThreadTransfers:
    """Copies, deletes and verifies segments in threads of this process. Belongs to the event loop."""

    def __init__(
        self,
        store: RemoteStorageManager,
        *,
        runtime: Runtime,
        quota: TransferQuota,
        deadline_ms: Callable[[], int],
        on_leftover: Callable[[RemoteLogSegmentMetadata], None],
    ) -> None:
        """`deadline_ms`: for each copy and each deletion. `on_leftover`: the objects of a copy could not be deleted."""
        self._on_leftover = on_leftover
        self._store = store
        self._runtime = runtime
        self._quota = quota
        self._deadline_ms = deadline_ms
        #: At most the threads of the pool, and those that wait for one.
        self.running: set[UUID] = set()
        self._abandoned: set[UUID] = set()
        self.abandoned_deletions = 0

    @property
    def abandoned(self) -> int:
        """The number of copies that were abandoned and still occupy a thread."""
        return len(self._abandoned)

    async def copy(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData, transfer: Transfer
    ) -> bytes | None:
        """Copy a segment within the quota and the deadline; return the store's custom metadata.

        Raises the store's errors, TransferAbandoned, TransferCancelled.
        """
        copy_id = metadata.segment_id.id
        assert copy_id not in self.running, metadata.segment_id
        self.running.add(copy_id)
        call = self._runtime.create_task(
            self._copy(metadata, data, transfer), name=f"copy {metadata.segment_id}"
        )
        try:
            if not await self._ends_in_time(call, transfer):
                raise TransferAbandoned(
                    f"the copy {metadata.segment_id} of {metadata.segment_size_bytes} bytes did not end within "
                    f"{self._deadline_ms()} ms"
                )
        except BaseException:  # also when this broker stops
            transfer.is_cancelled = True
            self._abandoned.add(copy_id)
            call.add_done_callback(lambda _: self._on_late_end(metadata))
            raise
        self.running.discard(copy_id)
        ended = call.result()
        if ended.failure is not None:
            raise ended.failure
        return ended.custom_metadata

    async def _copy(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData, transfer: Transfer
    ) -> _Ended:
        reported_bytes = 0

        def on_bytes(size_bytes: int) -> None:
            nonlocal reported_bytes
            transfer.check()
            self._quota.take_in_thread(size_bytes, on_wait=transfer.on_wait)
            reported_bytes += size_bytes

        def in_thread() -> bytes | None:
            # A store may not report its pieces: then the quota admits whole segments, as Kafka's does.
            on_bytes(0)
            custom = self._store.copy_log_segment_data(metadata, replace(data, on_bytes=on_bytes))
            self._quota.record(max(0, metadata.segment_size_bytes - reported_bytes))
            return custom

        try:
            return _Ended(await self._runtime.run_blocking(in_thread, pool=Pool.REMOTE_COPIES))
        except Exception as error:  # noqa: BLE001 (of any kind: raised to the caller, if that still waits)
            return _Ended(failure=error)

    async def _ends_in_time(self, call: "asyncio.Task[_Ended]", transfer: Transfer | None = None) -> bool:
        began_s = self._runtime.monotonic()
        while not call.done():
            used_s = self._runtime.monotonic() - began_s - (transfer.throttled_s if transfer else 0.0)
            left_s = self._deadline_ms() / 1000 - used_s
            if left_s < _LEAST_S:
                return False
            await asyncio.wait([call], timeout=left_s)
        return True

    def _on_late_end(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete the objects that a call has written after its deadline: no metadata may name them any more."""
        self._abandoned.discard(metadata.segment_id.id)
        self.running.discard(metadata.segment_id.id)
        self._runtime.create_task(self._delete_late(metadata), name=f"delete {metadata.segment_id}")

    async def _delete_late(self, metadata: RemoteLogSegmentMetadata) -> None:
        try:
            await self.delete(metadata)
        except Exception as error:  # noqa: BLE001 (of any kind: it is repeated)
            _LOG.warning(
                "%s ended after its deadline, and could not be deleted: %s", metadata.segment_id, error
            )
            self._on_leftover(metadata)

    async def delete(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete a copy within the deadline. Raises the store's errors, TransferAbandoned."""
        await self._call(self._store.delete_log_segment_data, metadata, "deletion")

    async def verify(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Read a copy, and compare it with its metadata, in a thread of the deletions.

        A task of their lane waits for it. Raises the store's errors, RemoteStorageError, TransferAbandoned.
        """
        await self._call(partial(verify_copy, self._store), metadata, "verification")

    async def _call(
        self, call: Callable[[RemoteLogSegmentMetadata], None], metadata: RemoteLogSegmentMetadata, kind: str
    ) -> None:
        task = self._runtime.create_task(self._ended(call, metadata), name=f"{kind} of {metadata.segment_id}")
        if not await self._ends_in_time(task):
            self.abandoned_deletions += 1
            task.add_done_callback(self._on_late_deletion)
            raise TransferAbandoned(
                f"the {kind} of {metadata.segment_id} did not end within {self._deadline_ms()} ms"
            )
        if (failure := task.result().failure) is not None:
            raise failure

    def _on_late_deletion(self, call: "asyncio.Task[_Ended]") -> None:
        self.abandoned_deletions -= 1
        assert self.abandoned_deletions >= 0, self.abandoned_deletions

    async def _ended(
        self, call: Callable[[RemoteLogSegmentMetadata], None], metadata: RemoteLogSegmentMetadata
    ) -> _Ended:
        try:
            await self._runtime.run_blocking(call, metadata, pool=Pool.REMOTE_DELETIONS)
        except Exception as error:  # noqa: BLE001 (of any kind: raised to the caller, if that still waits)
            return _Ended(failure=error)
        return _Ended()
