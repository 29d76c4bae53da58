"""The copy that replaces a log file whose end cannot be truncated, as slices of it are lent (see storage/lending.py).

It can be made before the truncation, in a thread. A power cut leaves a `.tmp` file, which recovery removes.
"""

from contextlib import suppress
from itertools import count
from typing import Final, NamedTuple

from ottla.storage import file_names
from ottla.storage.segment_files import SegmentFiles

#: Numbers in the names of the copies.
_NUMBERS: Final = count()


class FileCopy(NamedTuple):
    """The first `size` bytes of a log file in another file, on the disk."""

    size: int
    fd: int
    #: In the segment's directory.
    name: str

    @classmethod
    def make(cls, files: SegmentFiles, source_fd: int, *, size_bytes: int) -> "FileCopy":
        """Copy the first `size_bytes` of the log file. [any thread]

        Cost: reads and writes `size_bytes`, and waits for the disk.
        """
        assert size_bytes >= 0, (str(files), size_bytes)
        system = files.system
        # Another thread may still be copying for an older leader epoch: each copy has its own file.
        path = files.path_of(f"{file_names.LOG}.{next(_NUMBERS)}.tmp")
        fd = system.open(path, write=True, create=True)
        try:
            system.truncate(fd, 0)
            system.copy_prefix(source_fd, fd, size_bytes)
            system.fsync(fd)  # it will replace flushed data
        except BaseException:
            system.close(fd)
            with suppress(OSError):
                system.unlink(path)  # a full disk needs the space
            raise
        return cls(size_bytes, fd, path.name)

    def delete(self, files: SegmentFiles) -> None:
        """Close and remove the file."""
        files.system.close(self.fd)
        files.system.unlink(files.directory / self.name)
