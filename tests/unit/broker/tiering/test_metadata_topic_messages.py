"""Responses of the leaders of `__remote_log_metadata`, whatever clients have written there."""

import time
import tracemalloc
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.tiering.metadata_topic_messages import (
    end_of_epoch,
    fetch_request,
    fetched,
    produce_request,
    records_from,
)
from ottla.config.log_config import LogConfig
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset as EpochRow,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from ottla.protocol.records.batch import NO_TIMESTAMP
from ottla.protocol.records.builder import assemble, build_batch, simple_records
from ottla.protocol.records.compression import Compression, compress
from ottla.remote.errors import RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.topic_metadata.topic import TOPIC, MetadataDiverged, Position
from ottla.storage.validation import validate


def batch(base_offset, *values, epoch=3):
    return build_batch(
        simple_records([(None, each) for each in values], timestamp=1, base_offset=base_offset),
        base_offset=base_offset,
        leader_epoch=epoch,
    )


@pytest.mark.parametrize("now_ms", [0, 2**50], ids=["behind", "ahead"])
def test_a_leader_whose_clock_differs_accepts_the_records(now_ms):
    """Kafka's leaders, too: a record without a timestamp is in any range (LogValidator.validateTimestamp)."""
    request = produce_request(UUID(int=1), {0: [b"one", b"two"]}, timeout_ms=1)
    config = LogConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000)
    data = bytearray(request.topic_data[0].partition_data[0].records)
    validated = validate(data, first_offset=5, now_ms=now_ms, config=config, leader_epoch=3)
    assert validated.header.base_offset == 5
    assert validated.max_timestamp == NO_TIMESTAMP


def forged(
    payload, *, count, base_offset=0, last_offset_delta=None, compression=Compression.NONE, attributes=None
):
    """A batch with a right CRC around any bytes."""
    return assemble(
        payload if compression is Compression.NONE else compress(compression, payload),
        base_offset=base_offset,
        leader_epoch=3,
        attributes=compression if attributes is None else attributes,
        last_offset_delta=count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        records_count=count,
    )


EMPTY = bytes([12, 0, 0, 0, 1, 1, 0])  # a record without key and value


BEGINNING = Position(0)


def found_in(data, position=BEGINNING):
    found = records_from(memoryview(data), 0, position)
    return [
        (each.offset, "unreadable" if isinstance(each.value, KafkaError) else each.value)
        for each in found.records
    ], found.next


def test_records_continue_behind_a_position_with_the_epoch_of_the_last():
    data = batch(0, b"a", b"b", epoch=3) + batch(2, b"c", epoch=5)
    assert found_in(data) == ([(0, b"a"), (1, b"b"), (2, b"c")], Position(3, 5))
    assert found_in(data, Position(1, 3)) == ([(1, b"b"), (2, b"c")], Position(3, 5))
    assert found_in(b"", Position(7, 2)) == ([], Position(7, 2))


@pytest.mark.parametrize(
    "bad",
    [
        forged(b"\xff" * 40, count=2, base_offset=1),
        forged(b"no zstd", count=2, base_offset=1, attributes=Compression.ZSTD),
        forged(EMPTY * 3, count=4, base_offset=1, last_offset_delta=1),
        forged(EMPTY, count=2, base_offset=1),
        forged(EMPTY + b"\x01", count=2, base_offset=1),
        forged(EMPTY, count=60_000, base_offset=1, last_offset_delta=1),
        forged(bytes(9 * 1024 * 1024), count=2, base_offset=1, compression=Compression.ZSTD),
    ],
    ids=["noise", "text", "more records than offsets", "too few", "cut off", "too many", "too large"],
)
def test_a_batch_that_cannot_be_read_is_skipped_and_what_follows_is_read(bad):
    found, position = found_in(batch(0, b"a") + bad + batch(3, b"d"))
    assert (found[0], found[-1]) == ((0, b"a"), (3, b"d"))
    assert [value for _, value in found].count("unreadable") <= 1
    assert [offset for offset, _ in found] == sorted({offset for offset, _ in found})
    assert position == Position(4, 3)


def test_a_small_batch_of_millions_of_records_takes_no_time():
    bomb = forged(EMPTY * 14_000_000, count=14_000_000, compression=Compression.ZSTD)
    assert len(bomb) < 20_000
    before = time.thread_time()
    tracemalloc.start()
    found, position = found_in(bomb)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == [(0, "unreadable")]
    assert position == Position(14_000_000, 3)
    assert most_bytes < 1024 * 1024
    assert time.thread_time() - before < 0.1


def test_a_batch_whose_crc_is_wrong_is_read_again():
    damaged = bytearray(batch(0, b"a"))
    damaged[-2] ^= 1
    with pytest.raises(RetriableRemoteStorageError):
        records_from(memoryview(damaged), 0, Position(0))


@given(st.binary(max_size=120), st.integers(0, 5), st.sampled_from([None, *Compression]))
def test_whatever_the_bytes_only_the_errors_of_the_tier_are_raised(payload, count, compression):
    data = payload
    if compression is not None:
        data = forged(payload, count=count, last_offset_delta=max(count - 1, 0), compression=compression)
    try:
        records = list(records_from(memoryview(data), 0, Position(0)).records)
    except RemoteStorageError:
        return
    assert len(records) <= count + 1


def test_a_read_names_the_epoch_and_gets_the_divergence():
    reads = {0: Position(7, 2), 1: Position(0)}
    request = fetch_request(UUID(int=1), reads, leader_epochs={0: 4, 1: 4}, max_wait_ms=0)
    asked = {
        each.partition: (each.fetch_offset, each.last_fetched_epoch) for each in request.topics[0].partitions
    }
    assert asked == {0: (7, 2), 1: (0, -1)}
    row = PartitionData(partition_index=0, diverging_epoch=EpochEndOffset(epoch=1, end_offset=5))
    response = FetchResponse(responses=[FetchableTopicResponse(topic=TOPIC, partitions=[row])])
    (found,) = fetched(response, reads).values()
    assert isinstance(found, MetadataDiverged)
    assert "has epoch 1 up to 5, and not what was read of epoch 2 up to 7" in str(found)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (EpochRow(partition=0, leader_epoch=2, end_offset=9), (2, 9)),
        (EpochRow(partition=0, leader_epoch=-1, end_offset=-1), None),
        (EpochRow(partition=0, error_code=ErrorCode.not_leader_or_follower), RetriableRemoteStorageError),
        (EpochRow(partition=1, leader_epoch=2, end_offset=9), RetriableRemoteStorageError),
    ],
)
def test_the_end_of_an_epoch(row, expected):
    response = OffsetForLeaderEpochResponse(
        topics=[OffsetForLeaderTopicResult(topic=TOPIC, partitions=[row])]
    )
    if isinstance(expected, type):
        with pytest.raises(expected):
            end_of_epoch(response, 0)
    else:
        assert end_of_epoch(response, 0) == expected
