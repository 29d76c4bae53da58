"""Subscriptions: all subscribers of a broker: their snapshots are read, they follow the topic, and are saved.

    add --> pending --its snapshot is read--> subscribed at the reader of its metadata partition --> remove

A metadata partition has a reader as long as it has subscribers. After `start`, pending subscribers are subscribed in
batches.

`_rlmm_committed_offsets` has, for each metadata partition, the offset that all snapshots have reached:

    0                     version
    number of entries
    metadata partition, offset: all snapshots of its user partitions have the records before it

After a restart the tail of a metadata partition begins there, at the latest; user partitions whose snapshots are older
catch up beside it. The file may be lost: then the tail begins where the furthest snapshot ends.

Source: ConsumerManager of Kafka 4.3.1; CommittedOffsetsFile of Kafka 3.0, which 4.3.1 does not have any more.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from logging import getLogger
from pathlib import Path
from typing import Final

from ottla.protocol.types import MAX_OFFSET, MAX_PARTITION, TopicPartition
from ottla.remote.errors import RemoteStorageError
from ottla.remote.segment_metadata import TopicIdPartition
from ottla.remote.topic_metadata.partition_reader import MetadataPartitionReader
from ottla.remote.topic_metadata.snapshots import Snapshots
from ottla.remote.topic_metadata.subscriber import Subscriber, UserPartition
from ottla.remote.topic_metadata.topic import TOPIC, MetadataTopic, Position
from ottla.runtime import Pool, Runtime
from ottla.runtime.jitter import jittered
from ottla.storage import checkpoints
from ottla.storage.checkpoints import CorruptCheckpoint
from ottla.storage.files import Files

_LOG: Final = getLogger(__name__)

COMMITTED_OFFSETS_FILE: Final = "_rlmm_committed_offsets"
#: The interval at which due snapshots are written.
_SAVE_CHECK_S: Final = 30.0
#: The longest time that the stop of a broker waits for the last snapshots.
_LAST_SAVE_S: Final = 15.0
#: The pause after an attempt at which the topic's id was not known.
_RETRY_S: Final = 1.0


class Subscriptions:
    """All subscribers of a broker, with their readers and snapshots. Belongs to the event loop."""

    def __init__(
        self,
        runtime: Runtime,
        topic: MetadataTopic,
        *,
        log_directory: Callable[[TopicIdPartition], Path | None],
        files: Files,
    ) -> None:
        """`log_directory`: the folder of a partition's log, for snapshots; None: there is none, or it is offline."""
        self._runtime = runtime
        self._topic = topic
        self._log_directory = log_directory
        self._files = files
        self._snapshots = Snapshots(runtime, files, self._directory)
        #: All subscribers, in the order in which they were added.
        self._subscribers: dict[Subscriber, None] = {}
        #: Subscribers whose snapshots are not read yet, in the order in which they were added.
        self._pending: dict[Subscriber, None] = {}
        self._has_pending = asyncio.Event()
        #: The readers by metadata partition.
        self._readers: dict[int, MetadataPartitionReader] = {}
        self._applying = asyncio.Lock()
        #: The directory of the committed offsets, once started, and the offsets that were last read or written.
        self._log_dir: Path | None = None
        self._committed: dict[int, int] | None = None
        self._services: list[asyncio.Task[None]] = []

    def start(self, log_dir: Path) -> None:
        """Begin to read: the topic is open. `log_dir` has `_rlmm_committed_offsets`."""
        assert self._log_dir is None, self._log_dir
        self._log_dir = log_dir
        for run, name in ((self._load, "loading"), (self._save, "snapshots")):
            self._services.append(self._runtime.supervise(run, name=f"{TOPIC}-{name}"))

    async def stop(self) -> None:
        """Stop reading, and write what the snapshots lack; `until_applied` raises."""
        for service in self._services:
            service.cancel()
        if self._services:
            await asyncio.wait(self._services)
        await asyncio.gather(*(reader.stop() for reader in self._readers.values()))
        try:
            async with asyncio.timeout(_LAST_SAVE_S):
                await self._save_once(is_last=True)
        except (TimeoutError, RemoteStorageError) as error:
            _LOG.info("not all remote log metadata is saved; it is read again: %s", error)
        for subscriber in self._subscribers:
            if (reader := self._readers.get(subscriber.metadata_partition)) is not None:
                reader.unsubscribe(subscriber)
        self._subscribers.clear()

    def add(self, subscriber: Subscriber) -> None:
        """Restore a subscriber from its snapshot, and give it all further records."""
        self._subscribers[subscriber] = self._pending[subscriber] = None
        self._has_pending.set()

    def refresh(self, subscriber: Subscriber) -> None:
        """Make a subscriber not current, until it has everything that is stored now."""
        if subscriber not in self._pending:  # else it is not anyway
            self._readers[subscriber.metadata_partition].refresh(subscriber)

    def remove(self, subscriber: Subscriber) -> None:
        """Remove a subscriber: it gets no more records."""
        del self._subscribers[subscriber]
        self._snapshots.forget(subscriber)
        if subscriber in self._pending:
            del self._pending[subscriber]
            return
        reader = self._readers[subscriber.metadata_partition]
        reader.unsubscribe(subscriber)
        if not reader:
            del self._readers[subscriber.metadata_partition]
            self._runtime.create_task(reader.stop(), name=f"{TOPIC}-{reader.partition}-stop")

    async def until_applied(self, subscriber: Subscriber, offset: int) -> None:
        """Wait until a subscriber has the record at `offset`. Without a time-out. Raises RemoteStorageError."""
        if subscriber not in self._pending:
            await self._reader(subscriber.metadata_partition).until_applied(subscriber, offset)

    # -- the parts

    async def _load(self) -> None:
        """Read the snapshots of pending subscribers, and subscribe them, now and later."""
        if self._committed is None:
            self._committed = await self._runtime.run_blocking(self._read_offsets, pool=Pool.LOGS)
        while True:
            await self._has_pending.wait()
            batch = list(self._pending)
            try:
                await self._snapshots.load(batch, self._topic.topic_id)
            except RemoteStorageError as error:
                _LOG.info("remote log metadata is not read yet: %s", error)
                await asyncio.sleep(_RETRY_S)
                continue
            for subscriber in batch:
                if subscriber in self._pending:  # not removed meanwhile
                    del self._pending[subscriber]
                    self._reader(subscriber.metadata_partition).subscribe(subscriber)
            if not self._pending:
                self._has_pending.clear()

    def _reader(self, number: int) -> MetadataPartitionReader:
        reader = self._readers.get(number)
        if reader is None:
            first_offset = (self._committed or {}).get(number, 0)
            reader = MetadataPartitionReader(
                self._runtime, self._topic, number, first_offset=first_offset, applying=self._applying
            )
            self._readers[number] = reader
        return reader

    async def _save(self) -> None:
        while True:
            await asyncio.sleep(jittered(_SAVE_CHECK_S, self._runtime.random))
            try:
                await self._save_once()
            except RemoteStorageError as error:
                _LOG.info("no snapshots of remote log metadata are written: %s", error)

    async def _save_once(self, *, is_last: bool = False) -> None:
        if self._log_dir is None:
            return
        subscribers = [each for each in self._subscribers if each not in self._pending]
        await self._snapshots.save(
            subscribers,
            position=self._position,
            metadata_topic_id=self._topic.topic_id,
            is_last=is_last,
        )
        offsets: dict[int, int] = {}
        for each in subscribers:
            if (offset := self._snapshots.next_offset(each)) is not None:
                offsets[each.metadata_partition] = min(offset, offsets.get(each.metadata_partition, offset))
        if offsets != self._committed:
            await self._runtime.run_blocking(self._write_offsets, self._log_dir, offsets, pool=Pool.UPKEEP)
            self._committed = offsets

    def _position(self, subscriber: Subscriber) -> Position | None:
        reader = self._readers.get(subscriber.metadata_partition)
        if reader is None or not (subscriber.is_ready and subscriber.is_at_tail):
            return None
        return reader.applied(subscriber)

    def _directory(self, subscriber: Subscriber) -> Path | None:
        """Return the folder of a snapshot: that of the user partition's log, or of the metadata partition's."""
        if isinstance(subscriber, UserPartition):
            return self._log_directory(subscriber.partition)
        number = subscriber.metadata_partition
        return self._log_directory(TopicIdPartition(self._topic.topic_id, TopicPartition(TOPIC, number)))

    def _read_offsets(self) -> dict[int, int]:
        assert self._log_dir is not None
        try:
            return read_committed_offsets(self._log_dir, self._files)
        except (OSError, CorruptCheckpoint) as error:
            _LOG.info("%s is not used: %s", COMMITTED_OFFSETS_FILE, error)
            return {}

    def _write_offsets(self, log_dir: Path, offsets: Mapping[int, int]) -> None:
        try:
            write_committed_offsets(log_dir, offsets, self._files)
        except OSError as error:
            _LOG.info("%s is not written: %s", COMMITTED_OFFSETS_FILE, error)


def write_committed_offsets(log_dir: Path, offsets: Mapping[int, int], files: Files) -> None:
    """Replace the file of committed offsets. Raises OSError. [any thread]"""
    lines = (f"{partition} {offset}" for partition, offset in sorted(offsets.items()))
    data = checkpoints.encode(lines, len(offsets))
    files.write_atomically(log_dir / COMMITTED_OFFSETS_FILE, data, durable=False)


def read_committed_offsets(log_dir: Path, files: Files) -> dict[int, int]:
    """Return the offset of each metadata partition; none if there is no file.

    Raises CorruptCheckpoint, OSError. [any thread]
    """
    try:
        data = files.read(log_dir / COMMITTED_OFFSETS_FILE)
    except FileNotFoundError:
        return {}
    return dict(checkpoints.decode(data, _parsed_offset))


def _parsed_offset(words: Sequence[str]) -> tuple[int, int]:
    partition, offset = words
    return checkpoints.number(partition, MAX_PARTITION), checkpoints.number(offset, MAX_OFFSET)
