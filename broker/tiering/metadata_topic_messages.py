"""Requests to the leaders of `__remote_log_metadata`, and the meaning of their responses; nothing here waits.

Each row of a response becomes a result or an exception, which the one who waits for it gets.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

from ottla.protocol.errors import CorruptMessage, ErrorCode, InvalidRecord, KafkaError
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records.batch import NO_TIMESTAMP, BatchHeader, batches, crc_is_valid
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.record import Bounds, records
from ottla.remote.errors import RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.topic_metadata.topic import TOPIC, MetadataDiverged, MetadataRecords, Position, ReadRecord

#: The maximum size of the records of one partition: some 1,200 records, which are parsed within 5 ms.
_PARTITION_MAX_BYTES: Final = 256 * 1024
_RESPONSE_MAX_BYTES: Final = 8 * 1024 * 1024
#: The bounds of one batch. Brokers send at most 500 records at once, of some hundred bytes each; a client may
#: send anything.
_BOUNDS: Final = Bounds(max_bytes=8 * 1024 * 1024, max_records=50_000)
#: The errors with which a leader refuses a record that it will never accept.
_FINAL_ERRORS: Final = frozenset(
    {
        ErrorCode.message_too_large,
        ErrorCode.record_list_too_large,
        ErrorCode.invalid_record,
        ErrorCode.topic_authorization_failed,
        ErrorCode.cluster_authorization_failed,
    }
)


class OffsetOutOfRange(Exception):
    """The leader's log does not have the offset; its bounds are not in the response."""


def produce_request(
    topic_id: UUID, values: Mapping[int, Sequence[bytes]], *, timeout_ms: int
) -> ProduceRequest:
    """Make a Produce with one batch of records without keys for each partition, and acks=all.

    They have no timestamp: a leader refuses one that is an hour ahead of its clock (`message.timestamp.after.max.ms`),
    so that a broker with a wrong clock could not copy, and retention would go by it. A value has its own event
    timestamp.
    """
    rows = [
        PartitionProduceData(
            index=partition,
            records=build_batch(
                simple_records([(None, each) for each in of_partition], timestamp=NO_TIMESTAMP)
            ),
        )
        for partition, of_partition in values.items()
    ]
    topic = TopicProduceData(topic_id=topic_id, name=TOPIC, partition_data=rows)
    return ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=[topic])


def base_offsets(response: ProduceResponse) -> dict[int, int | RemoteStorageError]:
    """Return the offset of each partition's first record, or the error of the partition."""
    return {
        row.index: row.base_offset if not row.error_code else _error(row.index, row.error_code)
        for topic in response.responses
        for row in topic.partition_responses
    }


def fetch_request(
    topic_id: UUID, reads: Mapping[int, Position], *, leader_epochs: Mapping[int, int], max_wait_ms: int
) -> FetchRequest:
    """Make a Fetch of records below the high watermark; `reads` has the position of each partition."""
    rows = [
        FetchPartition(
            partition=partition,
            current_leader_epoch=leader_epochs[partition],
            fetch_offset=position.offset,
            last_fetched_epoch=-1 if position.last_epoch is None else position.last_epoch,
            partition_max_bytes=_PARTITION_MAX_BYTES,
        )
        for partition, position in reads.items()
    ]
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=_RESPONSE_MAX_BYTES,
        topics=[FetchTopic(topic_id=topic_id, topic=TOPIC, partitions=rows)],
    )


def fetched(response: FetchResponse, reads: Mapping[int, Position]) -> dict[int, memoryview | Exception]:
    """Return the batches of each partition of `reads`, or OffsetOutOfRange, MetadataDiverged, or another error."""
    if response.error_code:
        raise RetriableRemoteStorageError(f"{TOPIC} cannot be read: {_name(response.error_code)}")
    found: dict[int, memoryview | Exception] = {}
    for topic in response.responses:
        for row in topic.partitions:
            if row.error_code == ErrorCode.offset_out_of_range:
                found[row.partition_index] = OffsetOutOfRange()
            elif row.error_code:
                found[row.partition_index] = _error(row.partition_index, row.error_code)
            elif row.diverging_epoch.epoch >= 0 and row.partition_index in reads:
                found[row.partition_index] = MetadataDiverged(
                    row.partition_index,
                    reads[row.partition_index],
                    epoch=row.diverging_epoch.epoch,
                    end_offset=row.diverging_epoch.end_offset,
                )
            else:
                found[row.partition_index] = memoryview(row.records or b"")
    return found


def offsets_request(partition: int, *, leader_epoch: int, timestamp: int) -> ListOffsetsRequest:
    """Make a ListOffsets like a consumer's: the latest offset is the high watermark."""
    row = ListOffsetsPartition(
        partition_index=partition, current_leader_epoch=leader_epoch, timestamp=timestamp
    )
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=[row])])


def offset_of(response: ListOffsetsResponse, partition: int) -> int:
    """Return the offset in the partition's row of the response. Raises RemoteStorageError."""
    for topic in response.topics:
        for row in topic.partitions:
            if row.partition_index == partition:
                if row.error_code:
                    raise _error(partition, row.error_code)
                return row.offset
    raise RetriableRemoteStorageError(f"{TOPIC}-{partition} is not in the leader's response")


def epoch_request(
    partition: int, *, leader_epoch: int, epoch: int, node_id: int
) -> OffsetForLeaderEpochRequest:
    """Make an OffsetForLeaderEpoch like a follower's, about the whole log.

    The high watermark of the log may be behind after an election.
    """
    row = OffsetForLeaderPartition(partition=partition, current_leader_epoch=leader_epoch, leader_epoch=epoch)
    return OffsetForLeaderEpochRequest(
        replica_id=node_id, topics=[OffsetForLeaderTopic(topic=TOPIC, partitions=[row])]
    )


def end_of_epoch(response: OffsetForLeaderEpochResponse, partition: int) -> tuple[int, int] | None:
    """Return the leader epoch of the response and its end offset; None: the leader knows none.

    Raises RemoteStorageError.
    """
    for topic in response.topics:
        for row in topic.partitions:
            if row.partition == partition:
                if row.error_code:
                    raise _error(partition, row.error_code)
                return None if row.leader_epoch < 0 else (row.leader_epoch, row.end_offset)
    raise RetriableRemoteStorageError(f"{TOPIC}-{partition} is not in the leader's response")


def records_from(view: memoryview, partition: int, position: Position) -> MetadataRecords:
    """Return the records of a partition from a position on.

    Batches are opened, and records parsed, as they are iterated over.
    """
    found: list[tuple[BatchHeader, memoryview]] = []
    offset, last_epoch = position
    next_offset = offset
    try:
        for header, batch in batches(view):
            if not crc_is_valid(batch):
                raise CorruptMessage(f"the CRC of the batch at offset {header.base_offset} is wrong")
            if header.next_offset > offset and not header.is_control:
                found.append((header, batch))
            if header.next_offset > next_offset:
                next_offset, last_epoch = header.next_offset, header.partition_leader_epoch
    except KafkaError as error:
        raise RetriableRemoteStorageError(f"{TOPIC}-{partition} at offset {next_offset}: {error}") from error
    return MetadataRecords(records=_records(found, offset), next=Position(next_offset, last_epoch))


def _records(found: Sequence[tuple[BatchHeader, memoryview]], start: int) -> Iterator[ReadRecord]:
    for header, batch in found:
        epoch = header.partition_leader_epoch
        # The topic is never compacted: offsets have no gaps within a batch. Those of the records are not verified.
        offset = header.base_offset
        try:
            for record in records(batch, _BOUNDS):
                if offset >= header.next_offset:
                    raise InvalidRecord(
                        f"the batch at offset {header.base_offset} has more records than offsets"
                    )
                if offset >= start:
                    yield ReadRecord(offset, epoch, record.value)
                offset += 1
        except KafkaError as error:
            # The CRC is right: these are the bytes that a client has written, and the next read finds the same.
            if start <= offset < header.next_offset:
                yield ReadRecord(offset, epoch, error)


def _error(partition: int, code: int) -> RemoteStorageError:
    kind = RemoteStorageError if code in _FINAL_ERRORS else RetriableRemoteStorageError
    return kind(f"{TOPIC}-{partition}: {_name(code)}")


def _name(code: int) -> str:
    return ErrorCode(code).name.upper()
