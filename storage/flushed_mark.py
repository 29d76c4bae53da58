"""Up to where a log was flushed, for a log whose flushed end must never be lost in silence.

An ordinary partition that comes back shorter gets the rest from the other replicas. The metadata log of the only
voter does not: what is flushed there is committed, and has been answered. Cut off at a batch that has rotted, it would
go on as if that had never been. So it is opened with `Log.open(must_keep_to=mark.read())`, which refuses instead.

The file is written in place after each flush, 12 bytes, and not flushed itself: a killed process leaves it exact, a
power cut leaves an older offset, which only asks for less. It goes back, on the disk, before a truncation changes files.
Kafka's KRaft log has no such thing: it is cut at the first bad batch wherever that is.
"""

from pathlib import Path
from struct import Struct
from typing import Final
from zlib import crc32

from storage.files import Files

FILE_NAME: Final = "flushed-offset"
_OFFSET: Final = Struct(">q")
_CRC: Final = Struct(">I")


class FlushedMark:
    """The mark of the log in this directory."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._path = directory / FILE_NAME
        self._files = files
        self._offset: int | None = None

    def read(self) -> int:
        """The offset before which everything was flushed; 0 if the file is missing or torn. Raises OSError."""
        try:
            data = self._files.read(self._path)
        except FileNotFoundError:
            return 0
        offset, crc = data[: _OFFSET.size], data[_OFFSET.size :]
        if len(offset) != _OFFSET.size or crc != _CRC.pack(crc32(offset)):
            return 0
        return max(int(_OFFSET.unpack(offset)[0]), 0)

    def advance(self, offset: int) -> None:
        """Everything before `offset` is on the disk. [any thread] Raises OSError. Cost: 10 us."""
        if offset != self._offset:
            self._write(offset, durable=False)

    def go_back(self, offset: int) -> None:
        """What is behind `offset` is about to be removed; waits for the disk. Raises OSError."""
        if self.read() > offset:
            self._write(offset, durable=True)

    def _write(self, offset: int, *, durable: bool) -> None:
        data = _OFFSET.pack(offset)
        fd = self._files.open(self._path, write=True, create=True)
        try:
            self._files.pwrite(fd, data + _CRC.pack(crc32(data)), 0)
            if durable:
                self._files.fsync(fd)
        finally:
            self._files.close(fd)
        self._offset = offset
