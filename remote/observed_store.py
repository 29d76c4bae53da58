"""ObservedStore: a storage manager that knows whether the store in front of which it stands can be used.

    a call succeeds --> up
    a call fails, and the store is the reason --> down, until the next call succeeds
    a call is silent for `silence_s` --> down, until it ends or a copy goes on

A call that hangs neither succeeds nor fails: a directory on a network disk that is gone, a plugin without a time-out.
The bound is that of copies in a process of their own (`WorkerStore`), above the store's own request timeouts, so that
these come first. A copy is not silent while it sends, or waits for its quota.
An object that is not there, or that contradicts its metadata, says nothing against the store, and neither does a
damaged local segment, or a copy that this broker has cancelled.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ottla.remote.errors import (
    DamagedSegment,
    IncompleteCopy,
    RemoteResourceNotFound,
    RemoteStorageError,
    TransferCancelled,
)
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.storage_manager import (
    IndexType,
    LogSegmentData,
    RemoteStorageManager,
    RemoteStream,
    StorageManagerInFront,
)
from ottla.remote.transfers.worker_store import silence_of


@dataclass(slots=True, eq=False)
class _Call:
    """A call of the store that has not ended."""

    #: The monotonic time at which it began or went on; None while the caller, not the store, is waited for.
    active_at: float | None


class ObservedStore(StorageManagerInFront):
    """A storage manager in front of a store, with the outcome of the store's last call. [any thread]"""

    def __init__(self, store: RemoteStorageManager, *, monotonic: Callable[[], float]) -> None:
        """`store` is configured, and closed by `close`."""
        super().__init__(store)
        self._monotonic = monotonic
        self.silence_s = silence_of(store)
        self._has_succeeded: bool | None = None
        self._calls: set[_Call] = set()

    @property
    def is_up(self) -> bool | None:
        """Whether the last call that needed the store has succeeded, and none is silent; None before the first one."""
        return False if self.is_silent else self._has_succeeded

    @property
    def is_silent(self) -> bool:
        """Whether a call has been without an answer for `silence_s`."""
        if not self._calls:
            return False
        silent_since = self._monotonic() - self.silence_s
        return any(
            (active_at := call.active_at) is not None and active_at < silent_since
            for call in self._calls.copy()
        )

    def open(self) -> None:
        """Open the store; one that cannot be opened is down."""
        try:
            with self._called():
                self.store.open()
        except BaseException:  # a plugin may raise what is no Exception
            self._has_succeeded = False
            raise

    def check(self, broker_id: int) -> bool:
        """Check the store; return False if it has no check."""
        try:
            with self._called():
                is_checked = self.store.check(broker_id)
        except BaseException:  # a plugin may raise what is no Exception
            self._has_succeeded = False
            raise
        if is_checked:
            self._has_succeeded = True
        return is_checked

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        """Copy the segment and its indexes to the store; return the store's custom metadata."""
        with self._observed() as call:

            def on_bytes(count: int) -> None:
                call.active_at = None
                data.on_bytes(count)
                call.active_at = self._monotonic()

            return self.store.copy_log_segment_data(metadata, replace(data, on_bytes=on_bytes))

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, *, start_position: int, end_position: int | None = None
    ) -> RemoteStream:
        """Return the bytes [start_position, end_position) of the segment from the store."""
        with self._observed():
            return self.store.fetch_log_segment(
                metadata, start_position=start_position, end_position=end_position
            )

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> RemoteStream:
        """Return one index of the segment from the store."""
        with self._observed():
            return self.store.fetch_index(metadata, index_type)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete the segment and its indexes from the store."""
        with self._observed():
            self.store.delete_log_segment_data(metadata)

    @contextmanager
    def _called(self) -> Iterator[_Call]:
        call = _Call(self._monotonic())
        self._calls.add(call)
        try:
            yield call
        finally:
            self._calls.discard(call)

    @contextmanager
    def _observed(self) -> Iterator[_Call]:
        try:
            with self._called() as call:
                yield call
        except (RemoteResourceNotFound, IncompleteCopy, DamagedSegment, TransferCancelled):
            raise
        except RemoteStorageError:
            self._has_succeeded = False
            raise
        self._has_succeeded = True
