"""ObservedStore: a storage manager that knows whether the store in front of which it stands can be used.

    a call succeeds --> up
    a call fails, and the store is the reason --> down, until the next call succeeds

An object that is not there, or that contradicts its metadata, says nothing against the store, and neither does a
damaged local segment, or a copy that this broker has cancelled.
"""

from collections.abc import Iterator
from contextlib import contextmanager

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


class ObservedStore(StorageManagerInFront):
    """A storage manager in front of a store, with the outcome of the store's last call. [any thread]"""

    def __init__(self, store: RemoteStorageManager) -> None:
        """`store` is configured, and closed by `close`."""
        super().__init__(store)
        #: Whether the last call that needed the store has succeeded; None before the first one.
        self.is_up: bool | None = None

    def open(self) -> None:
        """Open the store; one that cannot be opened is down."""
        try:
            self.store.open()
        except BaseException:  # a plugin may raise what is no Exception
            self.is_up = False
            raise

    def check(self, broker_id: int) -> bool:
        """Check the store; return False if it has no check."""
        try:
            is_checked = self.store.check(broker_id)
        except BaseException:  # a plugin may raise what is no Exception
            self.is_up = False
            raise
        if is_checked:
            self.is_up = True
        return is_checked

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        """Copy the segment and its indexes to the store; return the store's custom metadata."""
        with self._observed():
            return self.store.copy_log_segment_data(metadata, data)

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
    def _observed(self) -> Iterator[None]:
        try:
            yield
        except (RemoteResourceNotFound, IncompleteCopy, DamagedSegment, TransferCancelled):
            raise
        except RemoteStorageError:
            self.is_up = False
            raise
        self.is_up = True
