"""Checks of whole segments: each batch with its length, its format, its checksum, and offsets that grow.

A segment is checked before it is copied: once its copy is finished the local file goes, and with it the last
sound replica of what a disk has damaged since it was written. A damaged segment is not copied, nor what is
behind it, which would leave a hole: the leader reads it again from time to time, since a read may fail once,
and a replica whose file is sound copies it when it leads. `ottla tier verify --data` checks what the store has.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Final

from ottla.protocol.kafka_uuid import to_text
from ottla.remote.errors import DamagedSegment, RemoteStorageError
from ottla.remote.reading.chunk import CorruptCopy, parse
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.storage_manager import LogSegmentData, RemoteStorageManager, StorageManagerInFront
from ottla.storage.files import Files

#: The bytes that are checked at a time; more only for a batch that is larger.
_PIECE_BYTES: Final = 1024 * 1024
#: A batch that claims more is damaged: the memory for it is not taken. Far above socket.request.max.bytes.
_MAX_BATCH_BYTES: Final = 256 * 1024 * 1024


class CheckedCopies(StorageManagerInFront):
    """A storage manager that copies no damaged segment: `copy_log_segment_data` raises DamagedSegment."""

    def __init__(self, store: RemoteStorageManager, files: Files) -> None:
        """`store` is configured, and closed by `close`; `files` has the segments."""
        super().__init__(store)
        self._files = files

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        """Check all batches of the segment, then copy it to the store. Raises DamagedSegment.

        Cost of the check: 40 us per MiB, 2 us for each batch, and the reads from the disk.
        """
        files, path = self._files, data.log_segment

        def read(size: int, position: int) -> bytes:
            data.on_bytes(0)  # the caller sees that the copy goes on, and may cancel it
            return files.pread(fd, size, position)

        fd = files.open(path)
        try:
            check_batches(metadata, read, of=str(path))
        except DamagedSegment as error:
            raise DamagedSegment(
                f"{error}. Neither it nor later segments are copied until it can be read or another replica leads"
            ) from error
        finally:
            files.close(fd)
        if data.time_index_of_records is None:
            return self.store.copy_log_segment_data(metadata, data)
        # A log that is opened after a crash removes it.
        times = data.time_index.with_name(f"{data.time_index.name}.{metadata.segment_id.id}.tmp")
        try:
            fd = files.open(times, write=True, create=True)
            try:
                files.truncate(fd, 0)
                files.pwrite(fd, data.time_index_of_records, 0)
            finally:
                files.close(fd)
            return self.store.copy_log_segment_data(
                metadata, replace(data, time_index=times, time_index_of_records=None)
            )
        finally:
            files.unlink(times)


def check_stored(store: RemoteStorageManager, copy: RemoteLogSegmentMetadata) -> None:
    """Read all of a copy from the store. Raises DamagedSegment, RemoteStorageError. [any thread]"""
    with closing(store.fetch_log_segment(copy, start_position=0)) as stream:
        check_batches(copy, lambda size, _: stream.read(size), of=f"the copy {to_text(copy.segment_id.id)}")


def check_batches(copy: RemoteLogSegmentMetadata, read: Callable[[int, int], bytes], *, of: str) -> None:
    """Check all batches of the segment; `read` returns up to so many bytes from a position on, one after the other.

    `of` names the file in the message. Raises DamagedSegment. Memory: a piece, or one batch.
    """
    position, next_offset, size = 0, copy.start_offset, copy.segment_size_bytes
    body, wanted = bytearray(), _PIECE_BYTES
    while position < size:
        end = min(size - position, wanted)
        while len(body) < end and (piece := read(end - len(body), position + len(body))):
            body += piece
        try:
            if len(body) < end:
                raise CorruptCopy(f"{copy.segment_id}: it ends at {position + len(body)}, not at {size}")
            found = parse(copy, memoryview(bytes(body)), position=position, after_offset=next_offset)
            if not len(found) and (position + end == size or wanted >= _MAX_BATCH_BYTES):
                raise CorruptCopy(f"{copy.segment_id}: no whole batch at {position}")
        except CorruptCopy as error:
            sound = error.sound
            if sound is not None and len(sound):
                next_offset = sound.next_offsets[-1]
            raise DamagedSegment(f"{of} is damaged from offset {next_offset} on: {error}") from error
        if not len(found):
            wanted *= 2
            continue
        next_offset = found.next_offsets[-1]
        position += found.end
        del body[: found.end]
        wanted = _PIECE_BYTES


def problem_of(store: RemoteStorageManager, copy: RemoteLogSegmentMetadata) -> str | None:
    """The reason why a copy cannot be read completely from the store; None: it can. [any thread]"""
    try:
        check_stored(store, copy)
    except RemoteStorageError as error:
        return str(error)
    return None
