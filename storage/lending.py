"""Zero-copy reads: slices of a memory-mapped segment, lent to Fetch responses (Kafka: FileRecords.writeTo, sendfile).

A large read that is a slice of a mapping is not copied into Python: the socket takes it from the page
cache (measured: 1 MiB to a loopback socket 253 us instead of 275 with pread, 1,517 MB/s instead of 1,184
in a whole fetch). It has three dangers:

- Python code that touches a page which the disk cannot read, or which is beyond the end of a truncated
  file, ends the process by SIGBUS. In a system call the kernel reports the same page as EFAULT, and the
  connection is closed (`LogManager.stop_lending`). So only bytes that are sent to a socket without being read
  are lent (`LogReader.read` with `lend`); all other reads are preads, for which a bad disk is an OSError.
- A file must not be truncated before the end of a lent slice: `may_truncate_to` checks this. Otherwise the bytes
  that stay are copied into a new file, and the readers keep the old one.
- A page that is not in memory blocks the whole event loop. `Segment.read` checks before it lends.

A mapping does not grow. A closed segment is mapped once, an active one again by each read that reaches beyond
the mapping: followers and consumers at the end of the log share the mapping of the newest bytes, and its page
faults. CPU for each MiB that is appended and sent to two readers, in us (of which 250 for the append):

    reads of            128 KiB   1 MiB   128 KiB, 12 in flight   1 MiB, 12 in flight
    pread                   590     520                   1,430                 1,570
    mapped again            680     500                     740                   540
    mapped in advance       580     460                     590                   500

Copies in flight are memory that the process gets from the kernel and gives back each time. A mapping in
advance, beyond the end of the file, would save the calls; Python refuses to make one.
"""

from mmap import mmap
from weakref import WeakSet

from ottla.storage.files import Files

#: Below this, a copy is as fast as a slice: 64 KiB take 18.7 us (pread) and 19.7 us (slice) to a socket.
LEND_BYTES = 128 * 1024
#: The maximum number of mappings of one file: those that are replaced exist as long as slow readers have slices
#: of them.
MAX_MAPPINGS = 16


class Lender:
    """The mapping of one file, made at the first read that needs it. A replaced file gets a new lender.

    Used by the event loop's thread only, which is also the only one that replaces the segment's file.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._view: memoryview | None = None
        self._mapped_bytes = 0
        #: Upper bound of the ends of all slices in use.
        self._lent_end = 0
        #: All mappings that may have slices in use: a replaced mapping exists as long as its slices.
        self._mappings: WeakSet[mmap] = WeakSet()

    def lend(self, fd: int, *, position: int, size_bytes: int, file_size_bytes: int) -> memoryview | None:
        """A read-only slice of the file; None if the caller should read a copy.

        Invariant: neither the slice nor the mapping reaches beyond `file_size_bytes`, the end of the batches.
        """
        if not self._files.may_map:
            return None
        end = position + size_bytes
        assert 0 <= position <= end <= file_size_bytes, (position, size_bytes, file_size_bytes)
        if end > self._mapped_bytes:
            if len(self._mappings) >= MAX_MAPPINGS:
                return None
            self._view = None
            try:
                mapping = self._files.map(fd, file_size_bytes)
            except (OSError, ValueError):
                # No descriptor is free (each mapping has one), there are too many mappings, or the file is shorter than
                # its batches: no fault of the disk, or one that the read finds.
                self.release()
                return None
            self._mappings.add(mapping)
            self._view = memoryview(mapping)
            self._mapped_bytes = file_size_bytes
        assert self._view is not None
        self._lent_end = max(self._lent_end, end)
        return self._view[position:end]

    def release(self) -> None:
        """Release the mapping; it is unmapped when its last slice is released."""
        self._view = None
        self._mapped_bytes = 0

    def may_truncate_to(self, size_bytes: int) -> bool:
        """Release the mapping; returns whether the file may be truncated: no slice in use ends after `size_bytes`."""
        assert size_bytes >= 0, size_bytes
        self.release()
        if not self._mappings:
            self._lent_end = 0
        return self._lent_end <= size_bytes
