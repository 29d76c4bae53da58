"""`broker.tier`, `cluster.tier`: the object store behind the remote tier, which a test slows down, breaks or empties.

    slow     each call takes so many seconds more
    fail     each call fails with an error that may pass, as 503 of a store
    empty    objects that are there now are not found any more; copies that are made later are

The faults are in front of the store that is configured, whichever it is; nothing in it is changed by them.
"""

import threading
from collections.abc import Callable, Sequence

from ottla.remote.errors import RemoteResourceNotFound, RetriableRemoteStorageError
from ottla.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from ottla.remote.storage_manager import (
    IndexType,
    LogSegmentData,
    RemoteStorageManager,
    RemoteStream,
    StorageManagerInFront,
)
from ottla.runtime.outcomes import ProcessKilled
from ottla.testing.lasting_faults import LastingFault, LastingFaults


class Tier(LastingFaults):
    """The faults of a store, for one broker or for all brokers of a cluster. They stay over restarts, until `heal`."""

    def __init__(self, name: str = "broker.tier") -> None:
        super().__init__(name)
        self._empty: LastingFault | None = None
        self._copies_lock = threading.Lock()
        #: The copies that were made since the store was emptied.
        self._copied: set[RemoteLogSegmentId] = set()

    def slow(self, seconds: float, *, strict: bool = True) -> LastingFault:
        """Delay each call of the store by so many seconds, until `heal`."""
        return super().slow(seconds, strict=strict)

    def fail(self, *, strict: bool = True) -> LastingFault:
        """Let each call of the store fail with an error that may pass, until `heal`."""
        return super().fail(strict=strict)

    def empty(self, *, strict: bool = True) -> LastingFault:
        """Let all objects vanish that are in the store now; `heal` brings them back."""
        with self._copies_lock:
            self._copied.clear()
            self._empty = self.begin("empty", strict=strict)
        return self._empty

    def ended(self, fault: LastingFault) -> None:
        """Let no further call meet the fault."""
        super().ended(fault)
        self._empty = None if self._empty is fault else self._empty

    # -- met by calls of the store [any thread] ---------------------------------------------------------

    def meet(self, what: str, is_over: Callable[[], bool]) -> None:
        """Meet the faults of a call, before it: wait while the store is slow, until `is_over` at the latest.

        Raises RetriableRemoteStorageError while it fails.
        """
        self.delay(is_over)
        if self.meets_failure():
            raise RetriableRemoteStorageError(f"{what}: the store fails, because a test has said so")

    def meet_read(self, segment_id: RemoteLogSegmentId, is_over: Callable[[], bool]) -> None:
        """Meet the faults of a read, before it. Raises RemoteResourceNotFound for objects that have vanished."""
        self.meet(str(segment_id), is_over)
        if (empty := self._empty) is not None and segment_id not in self._copied:
            empty.strike()
            raise RemoteResourceNotFound(f"{segment_id} is not in the store, which a test has emptied")

    def copied(self, segment_id: RemoteLogSegmentId) -> None:
        """Note that the objects of this copy are in the store."""
        if self._empty is not None:
            with self._copies_lock:
                self._copied.add(segment_id)


class FaultyStore(StorageManagerInFront):
    """A storage manager in front of a broker's store, whose calls meet the faults."""

    def __init__(
        self, store: RemoteStorageManager, faults: Sequence[Tier], is_dead: Callable[[], bool]
    ) -> None:
        """`store` is configured, and closed by `close`; the first fault that concerns a call decides.

        `is_dead` returns whether the process of the broker has ended, so that it calls the store no more.
        """
        super().__init__(store)
        self._faults = faults
        self._is_dead = is_dead

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        """Copy the segment and its indexes to the store; return the store's custom metadata."""
        for each in self._faults:
            each.meet(str(metadata.segment_id), self._is_dead)
        self._check_life()
        custom = super().copy_log_segment_data(metadata, data)
        for each in self._faults:
            each.copied(metadata.segment_id)
        return custom

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, *, start_position: int, end_position: int | None = None
    ) -> RemoteStream:
        """Return the bytes [start_position, end_position) of the segment from the store."""
        for each in self._faults:
            each.meet_read(metadata.segment_id, self._is_dead)
        self._check_life()
        return super().fetch_log_segment(metadata, start_position=start_position, end_position=end_position)

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> RemoteStream:
        """Return one index of the segment from the store."""
        for each in self._faults:
            each.meet_read(metadata.segment_id, self._is_dead)
        self._check_life()
        return super().fetch_index(metadata, index_type)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete the segment and its indexes from the store; deleting what has vanished succeeds."""
        for each in self._faults:
            each.meet(str(metadata.segment_id), self._is_dead)
        self._check_life()
        super().delete_log_segment_data(metadata)

    def _check_life(self) -> None:
        """Raise ProcessKilled if the process has ended, possibly while the call was delayed."""
        if self._is_dead():
            raise ProcessKilled
