"""`__remote_log_metadata` in memory, for managers on a simulated runtime: with delays, failures, lost acknowledgements.

topic = MemoryTopic(runtime, partition_count=2)
manager = TopicBasedRemoteLogMetadataManager(runtime=runtime, topic=topic, ...)
topic.faults.lose_acknowledgement = 0.1

Several managers may share one topic: each broker has its own `MemoryTopic(..., shared=other)`, with faults of its own.
"""

import asyncio
from dataclasses import dataclass
from typing import SupportsIndex
from uuid import UUID

from ottla.remote.errors import RetriableRemoteStorageError
from ottla.remote.topic_metadata.settings import TopicSettings
from ottla.remote.topic_metadata.topic import (
    MetadataDiverged,
    MetadataOffsetOutOfRange,
    MetadataRecords,
    MetadataTopicUnusable,
    Position,
    ReadRecord,
)
from ottla.replication.replica_rules import has_diverged
from ottla.runtime import Runtime


@dataclass(slots=True, kw_only=True)
class Faults:
    """Probabilities, but for the delay."""

    #: An append fails and has no effect.
    fail_append: float = 0
    #: An append fails but has appended the record: the manager repeats it, or its caller does.
    lose_acknowledgement: float = 0
    #: An append appends the record twice.
    duplicate: float = 0
    fail_read: float = 0
    #: The longest delay of a call.
    max_delay_s: float = 0
    #: Every call fails.
    is_down: bool = False


class Log(list[bytes | None]):
    """A partition's values. A removal, as by an unclean election, begins a leader epoch."""

    def __init__(self) -> None:
        super().__init__()
        self._epoch = 0
        self._epochs: list[int] = []

    @property
    def epochs(self) -> list[int]:
        """The leader epoch of each value."""
        self._epochs += [self._epoch] * (len(self) - len(self._epochs))
        return self._epochs

    def end_of_epoch(self, epoch: int) -> tuple[int, int] | None:
        known = max((each for each in (0, *self.epochs, self._epoch) if each <= epoch), default=None)
        return None if known is None else (known, sum(each <= known for each in self.epochs))

    def pop(self, at: SupportsIndex = -1, /) -> bytes | None:
        value, self._epochs = super().pop(at), self.epochs
        self._truncated()
        return value

    def clear(self) -> None:
        self._epochs = self.epochs
        super().clear()
        self._truncated()

    def __delitem__(self, at: SupportsIndex | slice) -> None:
        self._epochs = self.epochs
        super().__delitem__(at)
        self._truncated()

    def _truncated(self) -> None:
        del self._epochs[len(self) :]
        self._epoch += 1


class Partitions:
    """The partitions of the metadata topic, which all brokers share."""

    def __init__(self, partition_count: int) -> None:
        self.topic_id = UUID(int=4711)
        self.values = [Log() for _ in range(partition_count)]
        self.start_offsets = [0] * partition_count
        self.changed = asyncio.Condition()


class MemoryTopic:
    """A `MetadataTopic`; at most `batch` records of a partition are read at a time."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        partition_count: int = 50,
        batch: int = 100,
        shared: "MemoryTopic | None" = None,
    ) -> None:
        self._runtime = runtime
        self._batch = batch
        self.partitions: Partitions = Partitions(partition_count) if shared is None else shared.partitions
        self.faults = Faults()
        self.opened_with: TopicSettings | None = None
        #: Raised by `open`.
        self.unusable: str | None = None
        #: Records that `read` has returned.
        self.read_count = 0

    @property
    def topic_id(self) -> UUID:
        return self.partitions.topic_id

    async def open(self, settings: TopicSettings) -> None:
        await self._delay(0)
        if self.unusable is not None:
            raise MetadataTopicUnusable(self.unusable)
        self.opened_with = settings

    async def append(self, partition: int, value: bytes | None) -> int:
        await self._delay(self.faults.fail_append)
        log = self.partitions.values[partition]
        offset = len(log)
        _ = log.epochs
        log += [value] * (2 if self._happens(self.faults.duplicate) else 1)
        async with self.partitions.changed:
            self.partitions.changed.notify_all()
        await self._delay(self.faults.lose_acknowledgement)
        return offset

    async def read(self, partition: int, position: Position, *, max_wait_ms: int) -> MetadataRecords:
        await self._delay(self.faults.fail_read)
        offset, last_epoch = position
        start, log = self.partitions.start_offsets[partition], self.partitions.values[partition]
        if not start <= offset <= len(log):
            raise MetadataOffsetOutOfRange(
                partition=partition, offset=offset, start_offset=start, end_offset=len(log)
            )
        known = None if last_epoch is None else log.end_of_epoch(last_epoch)
        if (
            known is not None
            and last_epoch is not None
            and has_diverged(known, last_fetched_epoch=last_epoch, fetch_offset=offset)
        ):
            raise MetadataDiverged(partition, position, epoch=known[0], end_offset=known[1])
        if max_wait_ms and offset == len(log):
            try:
                async with asyncio.timeout(max_wait_ms / 1000), self.partitions.changed:
                    await self.partitions.changed.wait()
            except TimeoutError:
                pass
        log = self.partitions.values[partition]
        values, epochs = log[offset : offset + self._batch], log.epochs[offset : offset + self._batch]
        records = [
            ReadRecord(at, epoch, value)
            for at, (epoch, value) in enumerate(zip(epochs, values, strict=True), start=offset)
        ]
        self.read_count += len(records)
        await self._delay(0)
        reached = Position(records[-1].offset + 1, records[-1].leader_epoch) if records else position
        return MetadataRecords(records=records, next=reached)

    async def end_of_epoch(self, partition: int, *, epoch: int) -> tuple[int, int] | None:
        await self._delay(self.faults.fail_read)
        return self.partitions.values[partition].end_of_epoch(epoch)

    async def end_offset(self, partition: int) -> int:
        await self._delay(self.faults.fail_read)
        return len(self.partitions.values[partition])

    async def close(self) -> None:
        pass

    async def create_again(self) -> None:
        """Delete the topic, and create it: all records are lost."""
        self.partitions.topic_id = UUID(int=self.partitions.topic_id.int + 1)
        for log in self.partitions.values:
            log.clear()
        async with self.partitions.changed:
            self.partitions.changed.notify_all()

    async def _delay(self, failure: float) -> None:
        random = self._runtime.random
        if self.faults.max_delay_s:
            await asyncio.sleep(random.random() * self.faults.max_delay_s)
        if self.faults.is_down or self._happens(failure):
            raise RetriableRemoteStorageError("injected")

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._runtime.random.random() < probability
