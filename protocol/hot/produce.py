"""Produce (key 0), v3-13: requests whose records stay in the frame, and their responses."""

from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Final

from protocol.codec import decoder, encoder
from protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

_LONGEST_SHORT_NAME: Final = 126
_ONE_TOPIC = Struct(">iih")
_ONE_COMPACT_TOPIC = Struct(">ixBB")
_ONE_TOPIC_ID = Struct(">ixB16s")
_ROW_V3 = Struct(">iihqqi")
_ROW_V5 = Struct(">iihqqqi")
_ROW_V8 = Struct(">iihqqqihi")
_ROW_V9 = Struct(">BihqqqBBBBiB")


def decode(version: int, body: memoryview) -> ProduceRequest:
    """A request's body; `records` are slices of `body`, writable if it is. Raises MalformedMessage.

    Cost: 1.5 to 3 microseconds for one partition, whatever the size of its records.
    """
    return _decoder(version)(body)


def encode_response(version: int, response: ProduceResponse) -> bytes:
    """A response's body."""
    return _encoder(version)(response)


@cache
def _decoder(version: int) -> Callable[[memoryview], ProduceRequest]:
    return decoder(ProduceRequest, version)


@cache
def _encoder(version: int) -> Callable[[ProduceResponse], bytes]:
    return encoder(ProduceResponse, version)


def encode_one_row(
    version: int, correlation_id: int, topic: TopicProduceResponse, row: PartitionProduceResponse
) -> bytes | None:
    """Header and body of the most frequent response: one partition, no error.

    The same bytes in a fifth of the time of `encode_response`, which takes as long as a small append. None for
    a name too long for a length of one byte. Of `row`, only the index, offsets and append time are used.
    """
    offset, time_ms, log_start = row.base_offset, row.log_append_time_ms, row.log_start_offset
    if version >= 13:
        head = _ONE_TOPIC_ID.pack(correlation_id, 2, topic.topic_id.bytes)
        return head + _ROW_V9.pack(2, row.index, 0, offset, time_ms, log_start, 1, 0, 0, 0, 0, 0)
    name = topic.name.encode()
    if len(name) > _LONGEST_SHORT_NAME:
        return None
    if version >= 9:
        head = _ONE_COMPACT_TOPIC.pack(correlation_id, 2, len(name) + 1)
        return head + name + _ROW_V9.pack(2, row.index, 0, offset, time_ms, log_start, 1, 0, 0, 0, 0, 0)
    head = _ONE_TOPIC.pack(correlation_id, 1, len(name))
    if version == 8:
        return head + name + _ROW_V8.pack(1, row.index, 0, offset, time_ms, log_start, 0, -1, 0)
    if version >= 5:
        return head + name + _ROW_V5.pack(1, row.index, 0, offset, time_ms, log_start, 0)
    return head + name + _ROW_V3.pack(1, row.index, 0, offset, time_ms, 0)
