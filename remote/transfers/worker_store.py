"""WorkerStore: a storage manager whose copies and deletions run in a process of their own; reads stay in the broker's.

That process reads the times of the segments, too, before they are copied (`ottla.storage.segment_times`).

    broker                                             transfer process, at a low priority
      thread of a copy ── CopyRequest ───────────▶       thread: reads the file, computes checksums, sends
             │  ◀── 1 MiB is about to be sent ──           │
        on_bytes: waits for the quota, or cancels          │
             │  ── go on ─────────────────────▶            ▼
      custom metadata ◀──────────────────────          object store

A copy in a thread of the broker takes the interpreter's lock from the event loop, for checksums, TLS and its many small
writes: a client that produces 1,000 times a second then waits 26 to 37 ms instead of 1 to 4 (p99). From
another process it takes only processor time, and that only when the broker leaves some.

A call that neither asks nor returns for `SILENCE_S`, or longer where the store's own time-outs are longer, fails with
RetriableRemoteStorageError, as do all calls of a process that is killed. The next call starts another
process; the other calls go on (`ottla.runtime.workers`). Deletions, which report nothing while they run, have
a process of their own. Both end with the broker, however that ends.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ottla.remote.errors import RetriableRemoteStorageError
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.storage_manager import LogSegmentData, RemoteStorageManager, StorageManagerInFront, no_limit
from ottla.remote.transfers.messages import CopyRequest, DeleteRequest, Raised, Succeeded, TimesRequest
from ottla.runtime.workers import Worker, WorkerFailed
from ottla.storage.segment_times import FileTimes, SegmentFile

#: The time without a report after which a call fails: longer than a store's own time-out (30 s by default),
#: so that this comes first. A MiB in this time is the slowest transfer.
SILENCE_S: Final = 90.0
#: The number of requests in a row that a store may make without a report, each with its own time-out.
_REQUESTS: Final = 3
#: The module of the process, which gets a `Setup`.
WORKER_MODULE: Final = "ottla.remote.transfers.worker"


def silence_of(store: RemoteStorageManager, silence_s: float = SILENCE_S) -> float:
    """Return the time without a report, in seconds, after which a call of the store counts as failed."""
    return max(silence_s, _REQUESTS * (store.request_timeout_s or 0))


class WorkerStore(StorageManagerInFront):
    """A storage manager whose copies and deletions run in a process of their own; reads stay in the broker's."""

    def __init__(
        self,
        store: RemoteStorageManager,
        copies: Worker,
        *,
        deletions: Worker | None = None,
        silence_s: float = SILENCE_S,
    ) -> None:
        """`store` reads; both workers are of WORKER_MODULE, with the Setup of the same store. All are closed
        by `close`.

        Without `deletions` the worker of the copies deletes, too.
        """
        super().__init__(store)
        self.copies = copies
        self.deletions = deletions or copies
        self.silence_s = silence_of(store, silence_s)

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        """Copy the segment and its indexes in the process of the copies; return the store's custom metadata."""
        request = CopyRequest(metadata=metadata, data=replace(data, on_bytes=no_limit))
        found = self._call(self.copies, request, data.on_bytes, name=str(metadata.segment_id))
        assert found is None or isinstance(found, bytes), found
        return found

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete the segment and its indexes in the process of the deletions."""
        self._call(self.deletions, DeleteRequest(metadata=metadata), no_limit, name=str(metadata.segment_id))

    def read_times(self, segment: SegmentFile) -> FileTimes:
        """Return the timestamps of the records of a segment, read by the process of the copies. [any thread]

        Raises RetriableRemoteStorageError, OSError.
        """
        found = self._call(self.copies, TimesRequest(segment=segment), no_limit, name=str(segment.path))
        assert isinstance(found, FileTimes), found
        return found

    def _call(
        self,
        worker: Worker,
        request: CopyRequest | DeleteRequest | TimesRequest,
        on_bytes: Callable[[int], None],
        *,
        name: str,
    ) -> bytes | FileTimes | None:
        try:
            outcome = worker.call(request, answer=on_bytes, silence_s=self.silence_s)
        except WorkerFailed as error:
            raise RetriableRemoteStorageError(f"{name}: {error}") from error
        if isinstance(outcome, Raised):
            raise outcome.exception()
        assert isinstance(outcome, Succeeded), outcome
        return outcome.value

    def close(self) -> None:
        """Close the store and both processes. Calls under way fail: also one that the store does not answer."""
        self.copies.close()
        self.deletions.close()
        self.store.close()
