"""A broker's stored state as clients see it: two views of the same folder must be equal, whichever broker serves it."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.records.batch import BatchHeader, batches, crc_is_valid
from ottla.protocol.records.record import Record, records
from tests.compat.admin import wait_until
from tests.harness.blocking_wire import BlockingWire

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
#: How many of the topic's timestamps are looked up; each with its neighbours.
_TIMESTAMPS = 12
#: A broker that has just started returns errors for a moment.
_NOT_YET = {3, 5, 6, 13, 14, 15, 16}

Partition = tuple[str, int]


class Stored(NamedTuple):
    """A batch as it is stored in the log, and its records."""

    header: BatchHeader
    records: tuple[Record, ...]


class Offset(NamedTuple):
    """A ListOffsets response. The epoch of the log's end is the newest leader's: not compared."""

    offset: int
    timestamp: int
    leader_epoch: int | None


class View(NamedTuple):
    """The contents of a topic as clients see them; each part is by partition."""

    stored: dict[Partition, list[Stored]]
    #: Producer and first offset of each.
    aborted: dict[Partition, list[tuple[int, int]]]
    #: What a consumer with read_committed receives.
    committed: dict[Partition, list[tuple[Any, ...]]]
    #: The requested timestamp, special ones included, and isolation level.
    offsets: dict[Partition, dict[tuple[int, int], Offset]]
    #: The end offsets of former epochs.
    epoch_ends: dict[Partition, dict[int, tuple[int, int]]]
    #: Group -> committed offset, epoch and metadata.
    groups: dict[str, dict[Partition, tuple[int, int, str | None]]]


def view(port: int, topics: dict[str, int], groups: Sequence[str]) -> View:
    """Request everything; `topics` with their numbers of partitions."""
    partitions = [(topic, index) for topic, count in topics.items() for index in range(count)]
    with BlockingWire(port) as wire:
        wait_until(lambda: _is_ready(wire, partitions, groups))
        fetched = {partition: _fetch_all(wire, partition) for partition in partitions}
        stored = {partition: found for partition, (found, _) in fetched.items()}
        return View(
            stored=stored,
            aborted={partition: aborted for partition, (_, aborted) in fetched.items()},
            committed=_consume(f"127.0.0.1:{port}", partitions),
            offsets={
                partition: _list_offsets(wire, partition, stored[partition]) for partition in partitions
            },
            epoch_ends={
                partition: _epoch_ends(wire, partition, stored[partition]) for partition in partitions
            },
            groups={group: _commits(wire, group, topics) for group in groups},
        )


def differences(left: View, right: View) -> Iterator[str]:
    """The differences, in short lines: whole views would fill pages."""
    for part in View._fields:
        a, b = getattr(left, part), getattr(right, part)
        for key in a.keys() | b.keys():
            if (one := a.get(key)) != (other := b.get(key)):
                yield f"{part} of {key}: {_first_difference(one, other)}"


def _first_difference(a: Any, b: Any) -> str:
    if isinstance(a, dict) and isinstance(b, dict):
        return "; ".join(
            f"{key}: {a.get(key)} != {b.get(key)}" for key in a.keys() | b.keys() if a.get(key) != b.get(key)
        )
    if isinstance(a, list) and isinstance(b, list):
        for at, (one, other) in enumerate(zip(a, b, strict=False)):
            if one != other:
                return f"at {at}: {str(one)[:500]} != {str(other)[:500]}"
        return f"{len(a)} != {len(b)} of them"
    return f"{a} != {b}"


def _is_ready(wire: BlockingWire, partitions: list[Partition], groups: Sequence[str]) -> bool:
    answers = [_ask_offset(wire, partition, LATEST, READ_UNCOMMITTED).error_code for partition in partitions]
    answers += [_ask_commits(wire, group, []).error_code for group in groups]
    assert set(answers) <= _NOT_YET | {0}, answers
    return set(answers) == {0}


def _fetch_all(wire: BlockingWire, partition: Partition) -> tuple[list[Stored], list[tuple[int, int]]]:
    """All batches up to the high watermark, and the aborted transactions among them."""
    stored: list[Stored] = []
    aborted: set[tuple[int, int]] = set()
    for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
        offset = _ask_offset(wire, partition, EARLIEST, isolation).offset
        end = _ask_offset(wire, partition, LATEST, isolation).offset
        while offset < end:
            asked = FetchPartition(partition=partition[1], fetch_offset=offset, partition_max_bytes=2**20)
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=2**20,
                isolation_level=isolation,
                session_id=0,
                session_epoch=-1,
                topics=[FetchTopic(topic=partition[0], partitions=[asked])],
            )
            row = wire.call(ApiKey.FETCH, 12, request).responses[0].partitions[0]
            assert row.error_code == 0, row.error_code
            aborted |= {(one.producer_id, one.first_offset) for one in row.aborted_transactions or ()}
            data = memoryview(bytes(row.records or b""))
            before = offset
            for header, batch in batches(data):
                assert crc_is_valid(batch)
                if isolation == READ_UNCOMMITTED:
                    stored.append(Stored(header, tuple(records(batch))))
                offset = header.next_offset
            assert offset > before, f"nothing at {offset} of {partition}, which ends at {end}"
    return stored, sorted(aborted)


def _consume(bootstrap: str, partitions: list[Partition]) -> dict[Partition, list[tuple[Any, ...]]]:
    """Every record that librdkafka returns under read_committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
        }
    )
    taken: dict[Partition, list[tuple[Any, ...]]] = {partition: [] for partition in partitions}
    ended: set[Partition] = set()

    def is_all() -> bool:
        for message in consumer.consume(5000, 0.2):
            partition = (str(message.topic()), int(message.partition() or 0))
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(partition)
            else:
                taken[partition].append(
                    (message.offset(), message.timestamp(), message.key(), message.value(), message.headers())
                )
        return len(ended) == len(partitions)

    try:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for topic, index in partitions])
        wait_until(is_all, detail=lambda: f"{ended} have ended")
    finally:
        consumer.close()
    return taken


def _list_offsets(
    wire: BlockingWire, partition: Partition, stored: list[Stored]
) -> dict[tuple[int, int], Offset]:
    times = sorted({record.timestamp for batch in stored for record in batch.records})
    some = times[:: max(len(times) // _TIMESTAMPS, 1)] + times[-1:]
    asked = {time + near for time in some for near in (-1, 0, 1)}
    found: dict[tuple[int, int], Offset] = {}
    end = _ask_offset(wire, partition, LATEST, READ_UNCOMMITTED).offset
    # Not 0: where compaction has left nothing but an emptied batch in the first segment, Kafka finds no record at all,
    # and we the first one of the next segment.
    for timestamp in (LATEST, EARLIEST, MAX_TIMESTAMP, *sorted(asked)):
        for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
            row = _ask_offset(wire, partition, timestamp, isolation)
            assert row.error_code == 0, row
            epoch = None if timestamp == LATEST or row.offset == end else row.leader_epoch
            found[timestamp, isolation] = Offset(row.offset, row.timestamp, epoch)
    return found


def _ask_offset(wire: BlockingWire, partition: Partition, timestamp: int, isolation: int) -> Any:
    row = ListOffsetsPartition(partition_index=partition[1], timestamp=timestamp)
    topic = ListOffsetsTopic(name=partition[0], partitions=[row])
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=[topic])
    return wire.call(ApiKey.LIST_OFFSETS, 10, request).topics[0].partitions[0]


def _epoch_ends(wire: BlockingWire, partition: Partition, stored: list[Stored]) -> dict[int, tuple[int, int]]:
    newest = max((batch.header.partition_leader_epoch for batch in stored), default=0)
    ends: dict[int, tuple[int, int]] = {}
    for epoch in range(newest):
        asked = OffsetForLeaderPartition(partition=partition[1], leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic(topic=partition[0], partitions=[asked])]
        )
        row = wire.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, request).topics[0].partitions[0]
        assert row.error_code == 0, row
        ends[epoch] = (row.leader_epoch, row.end_offset)
    return ends


def _ask_commits(wire: BlockingWire, group: str, topics: list[OffsetFetchRequestTopics]) -> Any:
    asked = OffsetFetchRequestGroup(group_id=group, topics=topics)
    return wire.call(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=[asked])).groups[0]


def _commits(
    wire: BlockingWire, group: str, topics: dict[str, int]
) -> dict[Partition, tuple[int, int, str | None]]:
    asked = [
        OffsetFetchRequestTopics(name=topic, partition_indexes=list(range(count)))
        for topic, count in topics.items()
    ]
    answer = _ask_commits(wire, group, asked)
    assert answer.error_code == 0, answer
    return {
        (topic.name, row.partition_index): (row.committed_offset, row.committed_leader_epoch, row.metadata)
        for topic in answer.topics
        for row in topic.partitions
    }
