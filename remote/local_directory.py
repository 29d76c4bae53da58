"""LocalDirectory: a directory as remote tier, in the layout of Kafka's LocalTieredStorage.

    <dir>/kafka-tiered-storage/
        <topic>-<partition>-<topic id>/
            00000000000000000011-oAtiIQ95REujbuzNd_lkLQ.log
            00000000000000000011-oAtiIQ95REujbuzNd_lkLQ.index   .timeindex   .txnindex   .snapshot
            00000000000000000011-oAtiIQ95REujbuzNd_lkLQ.leader_epoch_checkpoint

The names are base offset and RemoteLogSegmentId. Brokers of Kafka with LocalTieredStorage may share the directory.
A copy is written under its final name: it is not read before its metadata says that it is finished, and by then all of it
is flushed to the disk.

Source: LocalTieredStorage, RemoteTopicPartitionDirectory and RemoteLogSegmentFileset of Kafka 4.3.1's tests. Differs: files
are flushed, and the directory of a partition goes with its last segment.
"""

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

from protocol.errors import InvalidConfig
from remote.errors import RemoteResourceNotFound, RemoteStorageError, RetriableRemoteStorageError
from remote.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition
from remote.storage_manager import IndexType, LogSegmentData, RemoteStorageManager, RemoteStream
from storage.file_names import LOG, of_offset
from storage.kafka_uuid import to_text

ROOT: Final = "kafka-tiered-storage"
#: The setting that names the directory: `rsm.config.dir`.
DIR: Final = "dir"

#: A full disk may have room later, a directory that was removed by another broker is created again.
_TRANSIENT: Final = (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT)
#: Bytes in memory while a file is copied.
_CHUNK_BYTES: Final = 1024 * 1024


class LocalDirectory(RemoteStorageManager):
    """See the module."""

    def __init__(self) -> None:
        self._root: Path | None = None

    def configure(self, configs: Mapping[str, object]) -> None:
        """`dir`: the directory, which is created."""
        directory = configs.get(DIR)
        if not isinstance(directory, str) or not directory:
            raise InvalidConfig(
                f"rsm.config.{DIR} is {directory!r}: set it to a directory that all brokers share, outside of log.dirs"
            )
        self._root = Path(directory) / ROOT
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidConfig(
                f"rsm.config.{DIR} is {directory!r}, which cannot be created: {error}"
            ) from error

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> None:
        """Copy and flush all files, then the directory."""
        sources = {
            LOG: data.log_segment,
            _suffix(IndexType.OFFSET): data.offset_index,
            _suffix(IndexType.TIMESTAMP): data.time_index,
            _suffix(IndexType.TRANSACTION): data.transaction_index,
            _suffix(IndexType.PRODUCER_SNAPSHOT): data.producer_snapshot,
        }
        directory = self._directory(metadata.partition)
        for suffix, path in sources.items():
            if path is not None:
                with path.open("rb") as source, _storage_errors(metadata):
                    _write(self._file(metadata, suffix), source)
        with _storage_errors(metadata):
            _write(self._file(metadata, _suffix(IndexType.LEADER_EPOCH)), BytesIO(data.leader_epoch_index))
            _flush_directory(directory)
            _flush_directory(directory.parent)

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, *, start_position: int, end_position: int | None = None
    ) -> RemoteStream:
        """A stream of a range of the segment's file."""
        if start_position < 0 or (end_position is not None and end_position < start_position):
            raise ValueError(f"[{start_position}, {end_position}) of {metadata.segment_id}")
        with _storage_errors(metadata):
            file = self._file(metadata, LOG).open("rb")
            file.seek(start_position)
        return _FileStream(file, metadata, None if end_position is None else end_position - start_position)

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> RemoteStream:
        """A stream of the index's file."""
        with _storage_errors(metadata):
            return _FileStream(self._file(metadata, _suffix(index_type)).open("rb"), metadata, None)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Remove the files, and the directory if it is empty then."""
        with _storage_errors(metadata):
            for suffix in (LOG, *map(_suffix, IndexType)):
                self._file(metadata, suffix).unlink(missing_ok=True)
            directory = self._directory(metadata.partition)
            with suppress(FileNotFoundError):
                try:
                    directory.rmdir()
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY:
                        raise
                    _flush_directory(directory)
                else:
                    _flush_directory(directory.parent)

    def _directory(self, partition: TopicIdPartition) -> Path:
        assert self._root is not None, "configure() was not called"
        return self._root / f"{partition.topic_partition}-{to_text(partition.topic_id)}"

    def _file(self, metadata: RemoteLogSegmentMetadata, suffix: str) -> Path:
        name = of_offset(metadata.start_offset, f"-{to_text(metadata.segment_id.id)}", suffix)
        return self._directory(metadata.partition) / name


class _FileStream:
    """The next bytes of a file, at most `left`, or all."""

    def __init__(self, file: BinaryIO, metadata: RemoteLogSegmentMetadata, left: int | None) -> None:
        self._file = file
        self._metadata = metadata
        self._left = left

    def read(self, size: int = -1, /) -> bytes:
        """See RemoteStream."""
        if self._left is not None:
            size = self._left if size < 0 else min(size, self._left)
        with _storage_errors(self._metadata):
            data = self._file.read(size)
        if self._left is not None:
            self._left -= len(data)
        return data

    def close(self) -> None:
        """See RemoteStream."""
        self._file.close()


def _suffix(index_type: IndexType) -> str:
    return f".{index_type.value}"


def _write(path: Path, source: BinaryIO) -> None:
    # Another broker may have removed the directory, with the partition's last segment.
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as target:
        shutil.copyfileobj(source, target, _CHUNK_BYTES)
        target.flush()
        os.fsync(target.fileno())


def _flush_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _storage_errors(metadata: RemoteLogSegmentMetadata) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise RemoteResourceNotFound(f"{metadata.segment_id}: {error}") from error
    except OSError as error:
        kind = RetriableRemoteStorageError if error.errno in _TRANSIENT else RemoteStorageError
        raise kind(f"{metadata.segment_id}: {error}") from error
