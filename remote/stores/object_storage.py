"""ObjectStorage: a RemoteStorageManager on any store of named objects.

    <topic>-<partition>-<topic id>/                              the name of the log's folder, and the topic's id
        <base offset>-<segment id>.log                           the bytes of the segment, unchanged
        <base offset>-<segment id>.index .timeindex .txnindex    its indexes, unchanged
        <base offset>-<segment id>.snapshot                      the producer state at its end
        <base offset>-<segment id>.leader_epoch_checkpoint       the leader epochs up to its end

Offsets have 20 digits, ids Kafka's 22 characters. The names do not change between versions: other tools read
them, and a bucket may be copied to another store. Source of the names: Kafka's LocalTieredStorage.

A name never leads out of its folder: a topic's name that no topic can have makes no key, and a name in the store that
`key_of` would not make again is none of a copy.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from enum import Enum
from io import BytesIO
from threading import Lock
from typing import BinaryIO, Final, NamedTuple, Protocol

from ottla.protocol.errors import InvalidTopic
from ottla.protocol.kafka_uuid import TEXT_LENGTH, from_text, to_text
from ottla.protocol.topic_names import check_topic_name
from ottla.protocol.types import MAX_OFFSET
from ottla.remote.errors import RemoteStorageError
from ottla.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from ottla.remote.storage_manager import (
    IndexType,
    LogSegmentData,
    RemoteStorageManager,
    RemoteStream,
    no_limit,
)
from ottla.storage.file_names import LOG, of_offset

_SUFFIXES: Final = (LOG, *(f".{each.value}" for each in IndexType))
_KEY: Final = re.compile(
    rf"(?P<topic>[a-zA-Z0-9._-]{{1,249}})-(?P<partition>[0-9]{{1,10}})-(?P<topic_id>[a-zA-Z0-9_-]{{{TEXT_LENGTH}}})/"
    rf"(?P<offset>[0-9]{{20}})-(?P<id>[a-zA-Z0-9_-]{{{TEXT_LENGTH}}})(?P<suffix>\.[a-z_]+)"
)


#: The folder of the objects by which brokers check the store.
CHECK_FOLDER: Final = "ottla-check"
_CHECK: Final = b"Ottla checks whether this store can be written, read and deleted from.\n"


class Action(Enum):
    """The steps of a check, in their order; the values are for messages."""

    WRITE = "written"
    READ = "read"
    DELETE = "deleted"


class Source(NamedTuple):
    """The content of an object: the first `size_bytes` of a file."""

    file: BinaryIO
    size_bytes: int
    #: Called before each piece is sent, as `LogSegmentData.on_bytes`.
    on_bytes: Callable[[int], None]
    #: Whether the object may be uploaded in parts. Indexes are not, so that the parts of a copy that was
    #: interrupted are those of one key.
    has_parts: bool = False


class ObjectStore(Protocol):
    """A store of objects by key; its methods wait, and may be called by several threads.

    They raise the errors of `ottla.remote.errors`.
    """

    def put(self, key: str, source: Source) -> None:
        """Store an object, or replace it: all of it, durably, or nothing."""

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> RemoteStream:
        """Return a stream of the bytes [start, end) of an object, as many as there are.

        Raises RemoteResourceNotFound.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, and the remains of interrupted `put` calls; objects that do not exist count as deleted."""

    def list(self, prefix: str = "") -> Iterator["ListedObject"]:
        """Yield the objects whose keys begin with `prefix`, in order of the keys."""

    def close(self) -> None:
        """Release all connections. No call follows."""


class ListedObject(NamedTuple):
    """An object in a store's list: key, size and time of the last change."""

    key: str
    size_bytes: int
    #: The time of the last change, by the store's clock.
    modified_ms: int


class StoredObject(NamedTuple):
    """An object of a copy: the segment's batches or one of its indexes, as its key names it."""

    segment_id: RemoteLogSegmentId
    start_offset: int
    #: The kind of index; None for the segment's batches.
    index_type: IndexType | None
    size_bytes: int
    modified_ms: int = 0

    @property
    def key(self) -> str:
        """The name of the object in the store."""
        return _key(self.segment_id, self.start_offset, self.index_type)


class ObjectStorage(RemoteStorageManager):
    """A storage manager on a store of named objects, opened when it is used.

    A subclass checks the settings in `configure`, which is cheap.
    """

    def __init__(self) -> None:
        self._store: ObjectStore | None = None
        self._opening = Lock()

    @abstractmethod
    def open_store(self) -> ObjectStore:
        """Open the store of the settings; called once, by `open` or the first call that needs it.

        A client takes half a second to import.
        """

    @property
    def store(self) -> ObjectStore:
        """The object store, opened at the first use."""
        with self._opening:
            if self._store is None:
                self._store = self.open_store()
            return self._store

    def open(self) -> None:
        """Open the store, unless it is open."""
        _ = self.store

    def check(self, broker_id: int) -> bool:
        """Write, read and delete an object of this broker. Raises RemoteStorageError with a sentence.

        Its key is none of a copy, and is the same at each check: a broker that is killed meanwhile leaves one object.
        """
        key = f"{CHECK_FOLDER}/broker-{broker_id}"
        action = Action.WRITE
        try:
            self.store.put(key, Source(BytesIO(_CHECK), len(_CHECK), no_limit))
            action = Action.READ
            with closing(self.store.get(key)) as stream:
                found = stream.read()
            if found != _CHECK:
                raise RemoteStorageError(f"{key} was read with other bytes than were written")
            action = Action.DELETE
            self.store.delete([key])
        except RemoteStorageError as error:
            raise RemoteStorageError(self.explain(error, action)) from error
        return True

    def explain(self, error: RemoteStorageError, action: Action) -> str:
        """The sentence about a check that has failed: the setting, its value, the reason and the remedy."""
        return f"objects cannot be {action.value}: {error}"

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> None:
        """Copy the indexes, then the segment: a copy with its segment is complete."""
        files = {
            IndexType.OFFSET: data.offset_index,
            IndexType.TIMESTAMP: data.time_index,
            IndexType.TRANSACTION: data.transaction_index,
            IndexType.PRODUCER_SNAPSHOT: data.producer_snapshot,
        }
        epochs = data.leader_epoch_index
        self.store.put(
            key_of(metadata, IndexType.LEADER_EPOCH), Source(BytesIO(epochs), len(epochs), data.on_bytes)
        )
        for index_type, path in files.items():
            if path is not None:
                with path.open("rb") as file:
                    self.store.put(
                        key_of(metadata, index_type), Source(file, path.stat().st_size, data.on_bytes)
                    )
        with data.log_segment.open("rb") as file:
            self.store.put(
                key_of(metadata), Source(file, metadata.segment_size_bytes, data.on_bytes, has_parts=True)
            )

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, *, start_position: int, end_position: int | None = None
    ) -> RemoteStream:
        """Return a stream of the segment's bytes [start_position, end_position), or to its end.

        Raises RemoteResourceNotFound.
        """
        size = metadata.segment_size_bytes
        end = size if end_position is None else min(end_position, size)
        if start_position < 0 or (end_position is not None and end_position < start_position):
            raise ValueError(f"[{start_position}, {end_position}) of {metadata.segment_id}")
        # Stores refuse an empty range; the object must exist nevertheless.
        return self.store.get(key_of(metadata), start=min(start_position, end), end=end)

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> RemoteStream:
        """Return a stream of one index of the segment. Raises RemoteResourceNotFound."""
        return self.store.get(key_of(metadata, index_type))

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete the segment and its indexes; objects that do not exist count as deleted."""
        self.store.delete(key_of(metadata, each) for each in (None, *IndexType))

    def list_objects(self, partition: TopicIdPartition | None = None) -> Iterator[StoredObject]:
        """Yield all objects, or those of a partition; objects with other kinds of names are left out."""
        prefix = "" if partition is None else f"{folder_of(partition)}/"
        for listed in self.store.list(prefix):
            if (found := parse_key(*listed)) is not None:
                yield found

    def close(self) -> None:
        """Close the store, if it was opened."""
        if self._store is not None:
            self._store.close()


def folder_of(partition: TopicIdPartition) -> str:
    """Return the folder of a partition's objects.

    >>> folder_of(TopicIdPartition.checked(from_text("AAAAAAAAAAAAAAAAAAAAAQ"), "orders", 3))
    'orders-3-AAAAAAAAAAAAAAAAAAAAAQ'
    """
    return f"{partition.topic_partition}-{to_text(partition.topic_id)}"


def key_of(metadata: RemoteLogSegmentMetadata, index_type: IndexType | None = None) -> str:
    """Return the key of a segment's batches, or of one of its indexes.

    Raises RemoteStorageError for an invalid topic name.
    """
    return _key(metadata.segment_id, metadata.start_offset, index_type)


def _key(segment_id: RemoteLogSegmentId, start_offset: int, index_type: IndexType | None) -> str:
    try:
        check_topic_name(segment_id.partition.topic_partition.topic)
    except InvalidTopic as error:
        raise RemoteStorageError(f"a copy has no place in the store: {error}") from None
    suffix = LOG if index_type is None else f".{index_type.value}"
    return (
        f"{folder_of(segment_id.partition)}/{of_offset(start_offset, f'-{to_text(segment_id.id)}', suffix)}"
    )


def parse_key(key: str, size_bytes: int, modified_ms: int = 0) -> StoredObject | None:
    """Return the object that a key names, the reverse of `key_of`; None for another kind of key.

    >>> parse_key("a-b-3-AAAAAAAAAAAAAAAAAAAAAQ/00000000000000004711-AAAAAAAAAAAAAAAAAAAAAg.timeindex", 24).start_offset
    4711
    """
    match = _KEY.fullmatch(key)
    if match is None or match["suffix"] not in _SUFFIXES:
        return None
    try:
        partition = TopicIdPartition.checked(
            from_text(match["topic_id"]), match["topic"], int(match["partition"])
        )
    except ValueError:
        return None
    found = StoredObject(
        segment_id=RemoteLogSegmentId(partition, from_text(match["id"])),
        start_offset=int(match["offset"]),
        index_type=None if match["suffix"] == LOG else IndexType(match["suffix"][1:]),
        size_bytes=size_bytes,
        modified_ms=modified_ms,
    )
    # Other spellings, as partition 03, would be deleted under another name than they have.
    return found if found.key == key and found.start_offset < MAX_OFFSET else None
