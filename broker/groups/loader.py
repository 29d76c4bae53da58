"""Reading one partition of the offsets topic, when its leadership comes to this broker."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from broker.groups.shard import Shard
from protocol.coordinator.record_codec import UnknownRecordKind, decode
from protocol.errors import KafkaError, MalformedMessage
from protocol.records.batch import BatchHeader
from protocol.records.control import ControlRecordType, control_type
from protocol.records.record import records
from protocol.types import TopicPartition

logger = logging.getLogger(__name__)

#: Read at one go; then others have their turn on the loop. Some ten milliseconds' worth of records.
SLICE_BYTES = 256 * 1024


class ReadableLog(Protocol):
    """Where records are read from."""

    def records_since(
        self, topic_partition: TopicPartition, offset: int | None = None
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Whole batches, from the one that holds `offset` (None: the log's start) to the log's end."""


class Loaded(NamedTuple):
    """What was read."""

    records_count: int
    #: Where the log ended; None if it was empty. The high watermark may not be there yet.
    end_offset: int | None


async def load(
    shard: Shard,
    log: ReadableLog,
    topic_partition: TopicPartition,
    *,
    is_wanted: Callable[[], bool],
    now_ms: Callable[[], int],
) -> Loaded:
    """Replay the whole partition into `shard`. Stops early if it `is_wanted` no more.

    Raises KafkaError if the partition cannot be read. A record that makes no sense is passed over with a
    warning: Kafka would refuse the partition, and so all its groups, for one bad record.
    """
    offset: int | None = None
    count = 0
    while is_wanted():
        size_bytes = 0
        for header, batch in log.records_since(topic_partition, offset):
            count += _replay_batch(shard, topic_partition, header, batch, now_ms=now_ms())
            offset = header.next_offset
            size_bytes += header.size_bytes
            if size_bytes >= SLICE_BYTES:
                break
        else:
            break
        await asyncio.sleep(0)
    return Loaded(count, offset)


def _replay_batch(
    shard: Shard, topic_partition: TopicPartition, header: BatchHeader, batch: memoryview, *, now_ms: int
) -> int:
    producer_id = header.producer_id if header.is_transactional else None
    try:
        for record in records(batch):
            if header.is_control:
                kind = control_type(record.key)
                if kind in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
                    is_committed = kind is ControlRecordType.COMMIT
                    shard.offsets.end_transaction(header.producer_id, is_committed=is_committed)
                continue
            try:
                decoded = decode(record.key, record.value)
            except (UnknownRecordKind, MalformedMessage) as error:
                logger.warning("%s: record %d is passed over: %s", topic_partition, record.offset, error)
                continue
            shard.replay(decoded, record_offset=record.offset, producer_id=producer_id, now_ms=now_ms)
    except KafkaError as error:
        logger.warning("%s: batch %d is passed over: %s", topic_partition, header.base_offset, error)
    return header.records_count
