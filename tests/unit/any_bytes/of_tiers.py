"""Entry points of the remote tier's files on the local disk, and of what a store returns for a copy."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from struct import Struct
from uuid import UUID

from ottla.protocol.checksum import crc32c
from ottla.protocol.kafka_uuid import to_text
from ottla.protocol.remote.records import RemoteLogSegmentState, RemotePartitionDeleteState
from ottla.protocol.types import MAX_OFFSET
from ottla.remote.copied_state import read_epochs, read_snapshot
from ottla.remote.errors import RemoteStorageError
from ottla.remote.reading.copy_reader import CopyReader
from ottla.remote.reading.index_cache_files import DIRECTORY, IndexFiles
from ottla.remote.rebuilding import NotRebuilt, metadata_of
from ottla.remote.segment_metadata import RemotePartitionDeleteMetadata
from ottla.remote.storage_manager import IndexType
from ottla.remote.stores.object_storage import (
    ListedObject,
    ObjectStorage,
    ObjectStore,
    Source,
    StoredObject,
    key_of,
    parse_key,
)
from ottla.remote.stores.stored_segments import StoredSegment
from ottla.remote.topic_metadata import snapshot
from ottla.remote.topic_metadata.overview import CopiesOverview
from ottla.remote.topic_metadata.records import from_value, to_value
from ottla.remote.topic_metadata.subscriber import Subscriber, UserPartition
from ottla.remote.topic_metadata.topic import Position
from ottla.storage import producer_snapshot
from ottla.storage.index import CorruptIndex
from ottla.storage.manager.log_directory import LogDirectory
from ottla.storage.manager.log_loading import DirectoryContents
from tests.unit.any_bytes.entry_point import CRC, FILES, batch_of, entry_point, folder
from tests.unit.any_bytes.of_files import name_of
from tests.unit.remote.remote_support import PARTITION, copy_of, to

_METADATA_TOPIC = UUID(int=3)
#: `ottla.remote.topic_metadata.snapshot`: up to the size of the columns; then their CRC, and that of the header.
_BEFORE_SIZE = Struct(">h16s16siqi")
_SIZE_AND_CRC = Struct(">qI")


def _subscribers() -> Sequence[Subscriber]:
    user, overview = UserPartition(PARTITION, metadata_partition=0), CopiesOverview(0)
    deletion = RemotePartitionDeleteMetadata(
        partition=PARTITION,
        state=RemotePartitionDeleteState.DELETE_PARTITION_MARKED,
        broker_id=1,
        event_timestamp_ms=5,
    )
    for change in (
        copy_of(1, 0, 10, (0, 0), (2, 5), custom_metadata=b"m"),
        to(1, RemoteLogSegmentState.COPY_SEGMENT_FINISHED),
        deletion,
    ):
        user.apply(change, offset=0)
        overview.apply(change, offset=0)
    return user, overview


def _snapshots() -> Sequence[bytes]:
    """The first byte says whose it is."""
    return [
        bytes((number,)) + snapshot.encode(each, metadata_topic_id=_METADATA_TOPIC, position=position)[1]
        for number, each in enumerate(_subscribers())
        for position in (Position(7, 2), Position(0, None))
    ]


@entry_point(snapshot.CorruptSnapshot, seeds=_snapshots)
def remote_metadata_files(data: bytes) -> None:
    """`remote_log_snapshot` and `remote_copies_overview`, with the right checksums and size."""
    empty: Sequence[Subscriber] = (UserPartition(PARTITION, metadata_partition=0), CopiesOverview(0))
    subscriber, content = empty[data[:1] == b"\1"], data[1:]
    head, columns = content[: _BEFORE_SIZE.size], content[_BEFORE_SIZE.size + _SIZE_AND_CRC.size + CRC.size :]
    head += _SIZE_AND_CRC.pack(len(columns), crc32c(columns))
    header = snapshot.restore(
        subscriber, head + CRC.pack(crc32c(head)) + columns, metadata_topic_id=_METADATA_TOPIC
    )
    assert 0 <= header.next_offset <= MAX_OFFSET, header
    assert header.last_epoch is None or header.last_epoch >= 0, header
    position = Position(header.next_offset, header.last_epoch)
    snapshot.encode(subscriber, metadata_topic_id=_METADATA_TOPIC, position=position)


class _Objects:
    """An object store whose objects, of every copy, are these; None: the segment's batches."""

    def __init__(self, contents: dict[IndexType | None, bytes]) -> None:
        self.contents = contents

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> BytesIO:
        parsed = parse_key(key, 0)
        assert parsed is not None, key
        return BytesIO(self.contents[parsed.index_type][start:end])

    def put(self, key: str, source: Source) -> None:
        raise AssertionError(f"{key} is written")

    def delete(self, keys: Iterable[str]) -> None:
        raise AssertionError(f"{[*keys]} are deleted")

    def list(self, prefix: str = "") -> Iterator[ListedObject]:
        raise AssertionError(f"{prefix} is listed")

    def close(self) -> None:
        """Do nothing, since nothing is open."""


class _Store(ObjectStorage):
    """A storage manager on these objects."""

    def __init__(self, contents: dict[IndexType | None, bytes]) -> None:
        super().__init__()
        self._contents = contents

    def configure(self, configs: Mapping[str, object]) -> None:
        """Do nothing, since there are no settings."""

    def open_store(self) -> ObjectStore:
        return _Objects(self._contents)


_BATCHES = b"".join(batch_of(1)[:7] + bytes((number,)) + batch_of(1)[8:] for number in range(3))
_COPY = replace(copy_of(1, 0, 3, (0, 0)), segment_size_bytes=len(_BATCHES))
_INDEX_ENTRY, _TIME_ENTRY, _ABORTED = Struct(">ii"), Struct(">qi"), Struct(">hqqqq")
_CONTENTS: dict[IndexType | None, bytes] = {
    None: _BATCHES,
    IndexType.OFFSET: _INDEX_ENTRY.pack(1, len(_BATCHES) // 3) + _INDEX_ENTRY.pack(2, len(_BATCHES) // 3 * 2),
    IndexType.TIMESTAMP: _TIME_ENTRY.pack(5, 1) + _TIME_ENTRY.pack(9, 2),
    IndexType.TRANSACTION: _ABORTED.pack(0, 7, 0, 2, 3),
    IndexType.LEADER_EPOCH: b"0\n1\n0 0\n",
    IndexType.PRODUCER_SNAPSHOT: producer_snapshot.encode({}),
}
_OBJECTS = tuple(_CONTENTS)
_INDEXES = (IndexType.OFFSET, IndexType.TIMESTAMP, IndexType.TRANSACTION)


def _with_one_replaced(data: bytes) -> dict[IndexType | None, bytes]:
    return _CONTENTS | {_OBJECTS[data[0] % len(_OBJECTS)]: data[1:]}


def _objects() -> Sequence[bytes]:
    return [bytes((number,)) + _CONTENTS[each] for number, each in enumerate(_OBJECTS)]


@entry_point(RemoteStorageError, CorruptIndex, seeds=_objects)
def objects_of_copies(data: bytes) -> None:
    """One object of a copy is replaced; the copy is read by offset and by time, and its state at its end."""
    if not data:
        return
    store = _Store(_with_one_replaced(data))
    with folder() as path:
        _read_all(store, IndexFiles(path / DIRECTORY, files=FILES, store=store))
    read_epochs(store, _COPY)
    read_snapshot(store, _COPY)


def _read_all(store: _Store, files: IndexFiles) -> None:
    files.open()
    offsets, times, aborted = (files.fetch(_COPY, each).path for each in _INDEXES)
    _read_by(store, files, offsets, times, aborted)


def _read_by(store: _Store, files: IndexFiles, offsets: Path, times: Path, aborted: Path) -> None:
    reads = CopyReader(store, files)
    for offset in range(4):
        reads.read(_COPY, offsets, offset=offset, end_offset=3, continuation=None, max_bytes=100)
    for timestamp in (0, 7, 1 << 62):
        reads.find_timestamp(
            _COPY, offsets, times, timestamp, start_offset=0, end_offset=3, is_cancelled=lambda: False
        )
    files.transaction_index(_COPY, aborted).aborted_in(0, 3)


@entry_point(NotRebuilt, RemoteStorageError, seeds=_objects)
def rebuilt_metadata(data: bytes) -> None:
    """`ottla tier rebuild-metadata` makes the metadata of a copy from its objects, of which one is replaced."""
    if not data:
        return
    contents = _with_one_replaced(data)
    segment = StoredSegment(segment_id=_COPY.segment_id, start_offset=0)
    for kind, content in contents.items():
        segment.objects[kind] = StoredObject(_COPY.segment_id, 0, kind, len(content))
    copy = metadata_of(segment, _Objects(contents), broker_id=1, now_ms=0)
    assert from_value(to_value(copy)) == copy


_NAMES = tuple(
    f"{_COPY.start_offset}_{to_text(_COPY.segment_id.id)}.{each.value}{end}"
    for each in _INDEXES
    for end in ("", ".crc32c")
)


def _cached() -> Sequence[bytes]:
    with folder() as path:
        files = IndexFiles(path / DIRECTORY, files=FILES, store=_Store(_CONTENTS))
        _read_all(_Store(_CONTENTS), files)
        return [
            bytes((number,)) + (files.directory / name).read_bytes() for number, name in enumerate(_NAMES)
        ]


@entry_point(RemoteStorageError, CorruptIndex, seeds=_cached)
def cached_indexes(data: bytes) -> None:
    """A file of the index cache is replaced while the broker is down: what is valid is used, all else fetched again."""
    if not data:
        return
    store = _Store(_CONTENTS)
    with folder() as path:
        before = IndexFiles(path / DIRECTORY, files=FILES, store=store)
        _read_all(store, before)
        (before.directory / _NAMES[data[0] % len(_NAMES)]).write_bytes(data[1:])
        files = IndexFiles(path / DIRECTORY, files=FILES, store=store)
        found = {each.index_type: each.path for each in files.open() if files.is_valid(each.path)}
        paths = [found.get(each) or files.fetch(_COPY, each).path for each in _INDEXES]
        _read_by(store, files, *paths)


@entry_point(
    seeds=lambda: [kind + name.encode() for name in (*_NAMES, f"{_NAMES[0]}.tmp") for kind in (b"f", b"d")]
)
def names_in_the_index_cache(data: bytes) -> None:
    """A file or a folder of any name in `remote-log-index-cache`: removed, or left alone."""
    if (name := name_of(data[1:])) is None:
        return
    with folder() as path:
        there = path / DIRECTORY / name
        there.parent.mkdir()
        if data[:1] == b"d":
            (there / "more").mkdir(parents=True)
        else:
            there.write_bytes(b"x")
        files = IndexFiles(path / DIRECTORY, files=FILES, store=_Store(_CONTENTS))
        for each in files.open():
            files.is_valid(each.path)
            files.remove([each.path])


@entry_point(
    seeds=lambda: [
        b"orders-0", b"a.b-3.00ff-future", b"orders-3.00ff-delete", b"orders-3.00ff-stray", b"orders-2147483648",
        b"__cluster_metadata-0", b"remote-log-index-cache",
    ]
)  # fmt: skip
def names_in_a_log_directory(data: bytes) -> None:
    """A folder of any name in a log directory."""
    if (name := name_of(data)) is None:
        return
    with folder() as path:
        with suppress(FileExistsError):
            (path / name).mkdir()
        directory = LogDirectory.open(
            path, files=FILES, cluster_id="a", node_id=1, new_directory_id=lambda: UUID(int=1)
        )
        try:
            found = DirectoryContents.read(directory)
        finally:
            directory.unlock()
        partitions = dict.fromkeys((*found.logs.values(), *found.future_logs.values()), 7)
        directory.recovery_points.write(partitions)
        assert directory.recovery_points.read() == partitions


@entry_point(seeds=lambda: [key_of(_COPY, each).encode() for each in _OBJECTS])
def names_in_a_store(data: bytes) -> None:
    """A key in a bucket: it is that of a copy, or none of ours."""
    found = parse_key(data.decode(errors="replace"), 1)
    assert found is None or (found.key.encode() == data and ".." not in found.key.split("/"))
