"""Produce (key 0), v3-13: requests whose records stay in the frame, and their responses."""

from collections.abc import Callable, Generator, Sequence
from functools import cache, lru_cache
from struct import Struct
from struct import error as struct_error
from typing import Any, Final, NamedTuple
from uuid import UUID

from ottla.protocol.codec import decoder, encoder, stepwise_decoder, stepwise_encoder
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.reader_helpers import rest_of_uvarint, uuid_of
from ottla.protocol.varint import encode_uvarint

#: The records to be appended to one partition, with its index: (index, records).
ProducedRow = tuple[int, memoryview | bytes | None]
#: A topic's name, or its id from version 13 on, and its rows.
ProducedTopic = tuple[str | UUID, list[ProducedRow]]

#: The most bytes of a name, and one, whose number takes one byte in all versions.
_MOST_NAME_BYTES: Final = 0x7F

#: Larger bodies, without their records, do not have their topic kept: it need not exist, and its name may have 32 KB.
_MOST_ROW_HEAD_BYTES: Final = 512

#: Topics and rows, together, of a request that is read at once: half a millisecond. `decode_in_steps` reads
#: larger ones.
_MOST_READ_AT_ONCE: Final = 1_000

#: Beginnings of responses that are kept, with the names of their topics.
_MOST_CACHED: Final = 1024

_COUNT = Struct(">i")
_NAME_LENGTH = Struct(">h")
_ROW_HEAD = Struct(">ii")
_COMPACT_ROW_HEAD = Struct(">iB")
_CORRELATION_ID = Struct(">i")
#: Of a row, of a topic, and of the body.
_NO_TAGS: Final = bytes(3)
_ROW = Struct(">ihqqq")  # an `AppendedRow`
_ROW_V3 = Struct(">ihqq")  # without the log start offset, before version 5


class AppendedRow(NamedTuple):
    """A partition's row of a response, without an error; the fields in the order of the wire."""

    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int


#: A topic's name, or its id from version 13 on, and its rows.
AppendedTopic = tuple[str | UUID, Sequence[AppendedRow]]


class _Layout(NamedTuple):
    """The layout of a response without errors in one version."""

    #: An `AppendedRow` and `row_end` to bytes.
    pack_row: Callable[..., bytes]
    #: No errors of records, no message, no tagged fields.
    row_end: tuple[int, ...]
    topic_end: bytes
    #: The throttle time.
    end: bytes


_V3: Final = _Layout(lambda *row: _ROW_V3.pack(*row[:4]), (), b"", bytes(4))
_V5: Final = _Layout(Struct(">ihqqq").pack, (), b"", bytes(4))
_V8: Final = _Layout(Struct(">ihqqqih").pack, (0, -1), b"", bytes(4))
_V9: Final = _Layout(Struct(">ihqqqBBB").pack, (1, 0, 0), bytes(1), bytes(5))
_LAYOUTS: Final = {
    version: _V3 if version < 5 else _V5 if version < 8 else _V8 if version < 9 else _V9
    for version in range(3, 14)
}


def decode(version: int, body: memoryview) -> ProduceRequest:
    """A request's body; `records` are slices of `body`, writable if it is. Raises MalformedMessage.

    Cost: 1.5 to 3 microseconds for one partition, whatever the size of its records.
    """
    return _decoder(version)(body)


def decode_in_steps(
    version: int, body: memoryview, parts: list[Any]
) -> Generator[None, None, ProduceRequest]:
    """Decode a Produce request of any number of rows in short steps; few rows are decoded in the first one.

    The elements of each step are appended to `parts`, as one list (`stepwise_decoder`).
    """
    return stepwise_decoder(ProduceRequest, version)(body, parts)


def encode_response(version: int, response: ProduceResponse) -> bytes:
    """Encode the body of a Produce response, without its header."""
    return _encoder(version)(response)


def encode_response_in_steps(
    version: int, response: ProduceResponse, parts: list[Any]
) -> Generator[None, None, bytes]:
    """Encode the body of a Produce response of any number of rows in short steps (`stepwise_encoder`)."""
    return stepwise_encoder(ProduceResponse, version)(response, parts)


@cache
def _decoder(version: int) -> Callable[[memoryview], ProduceRequest]:
    return decoder(ProduceRequest, version)


@cache
def _encoder(version: int) -> Callable[[ProduceResponse], bytes]:
    return encoder(ProduceResponse, version)


class _RowHead(NamedTuple):
    """The bytes before the records of a request that has one row, and how to unpack them."""

    topic: str | UUID
    #: The number of topics, the topic, the number of its rows.
    before: bytes
    #: `before`, the partition's index, and the records' length, or its first byte. (bytes, position) -> tuple.
    unpack: Callable[[memoryview, int], tuple[bytes, int, int]]
    size_bytes: int


@lru_cache(maxsize=_MOST_CACHED)
def _row_head(version: int, topic: str | UUID) -> _RowHead:
    before = _count(version, 1) + _before_rows(version, topic, 1)
    layout = Struct(f">{len(before)}si{'B' if version >= 9 else 'i'}")
    return _RowHead(topic, before, layout.unpack_from, layout.size)


class TopicsDecoder:
    """`read_topics` for the requests of a connection, whose topics begin at the same position.

    If the previous request had one row, and this one has one for the same topic, nothing but its index and length is
    parsed: 0.26 us instead of 0.62 (v8), 0.41 instead of 0.88 (v13, with a topic id). What is kept says which
    topic some bytes name, so that no event can make it wrong.
    """

    __slots__ = ("_position", "_row_head", "_version")

    def __init__(self, version: int, position: int) -> None:
        self._version = version
        self._position = position
        #: The bytes before the records in the last request that had one row.
        self._row_head: _RowHead | None = None

    def decode(self, body: memoryview) -> list[ProducedTopic] | None:
        """Return the topics of a request's body; None: the body is unusual, and is left to the function
        `decode`.
        """
        head = self._row_head
        if head is not None and len(body) > (records_at := self._position + head.size_bytes):
            before, index, length = head.unpack(body, self._position)
            if before == head.before:
                if self._version < 9:
                    if records_at + length == len(body):
                        return [(head.topic, [(index, body[records_at:])])]
                else:
                    if length >= 0x80:
                        try:
                            length, records_at = rest_of_uvarint(body, records_at, length)
                        except (IndexError, MalformedMessage):
                            return None
                    end = records_at + length - 1
                    if length and body[end:] == _NO_TAGS:
                        return [(head.topic, [(index, body[records_at:end])])]
        topics = read_topics(self._version, body, self._position)
        if topics is not None and len(topics) == 1 and len(topics[0][1]) == 1:
            topic, ((_, records),) = topics[0]
            if records and len(body) - len(records) <= _MOST_ROW_HEAD_BYTES:
                self._row_head = _row_head(self._version, topic)
        return topics


def read_topics(version: int, body: memoryview, position: int) -> list[ProducedTopic] | None:
    """The topics of a request's body, which begin at `position`; the same as those of `decode`, in half of its time.

    None for a body that is malformed, has a null, a tagged field or an unusual number of anything: `decode` decides.
    """
    try:
        if version >= 9:
            return _compact_topics(body, position, by_id=version >= 13)
        return _topics(body, position)
    except (IndexError, ValueError, struct_error, MalformedMessage):
        return None


def _topics(body: memoryview, position: int) -> list[ProducedTopic] | None:
    size = len(body)
    (topics_count,) = _COUNT.unpack_from(body, position)
    position += 4
    topics: list[ProducedTopic] = []
    budget = _MOST_READ_AT_ONCE - topics_count
    if topics_count < 0 or budget < 0:
        return None
    for _ in range(topics_count):
        (length,) = _NAME_LENGTH.unpack_from(body, position)
        position += 2
        end = position + length
        if length < 0:
            return None
        name = str(body[position:end], "utf-8")
        (rows_count,) = _COUNT.unpack_from(body, end)
        position = end + 4
        budget -= rows_count
        if rows_count < 0 or budget < 0:
            return None
        rows: list[ProducedRow] = []
        for _ in range(rows_count):
            index, length = _ROW_HEAD.unpack_from(body, position)
            position += 8
            end = position + length
            if length < 0 or end > size:
                return None
            rows.append((index, body[position:end]))
            position = end
        topics.append((name, rows))
    return topics if position == size else None


def _compact_topics(body: memoryview, position: int, *, by_id: bool) -> list[ProducedTopic] | None:
    """Read the topics of a flexible version; None: something is unusual.

    Lengths and counts are one more than they say; a byte of zero is no tagged fields.
    """
    size = len(body)
    topics_count, position = _compact_count(body, position)
    topics: list[ProducedTopic] = []
    budget = _MOST_READ_AT_ONCE + 1 - topics_count
    if not topics_count or budget < 0:
        return None
    for _ in range(topics_count - 1):
        name: str | UUID
        if by_id:
            end = position + 16
            if end > size:
                return None
            name = uuid_of(bytes(body[position:end]))
        else:
            length = body[position]
            end = position + length
            if not 0 < length <= _MOST_NAME_BYTES:
                return None
            name = str(body[position + 1 : end], "utf-8")
        rows_count, position = _compact_count(body, end)
        budget -= rows_count - 1
        if not rows_count or budget < 0:
            return None
        rows: list[ProducedRow] = []
        for _ in range(rows_count - 1):
            index, length = _COMPACT_ROW_HEAD.unpack_from(body, position)
            position += 5
            if length >= 0x80:
                length, position = rest_of_uvarint(body, position, length)
            end = position + length - 1
            if not length or end >= size or body[end]:
                return None
            rows.append((index, body[position:end]))
            position = end + 1
        if body[position]:
            return None
        position += 1
        topics.append((name, rows))
    return topics if position == size - 1 and not body[position] else None


def _compact_count(body: memoryview, position: int) -> tuple[int, int]:
    """A number of elements as it is written, 0 for null, and the position behind it."""
    count = body[position]
    return rest_of_uvarint(body, position + 1, count) if count >= 0x80 else (count, position + 1)


def encode_appended(version: int, correlation_id: int, topics: Sequence[AppendedTopic]) -> bytes:
    """Encode header and body of a response without errors: the bytes of `encode_response`, in a fifth of its time.

    That takes as long as a small append. A response of one row takes half of that fifth.
    """
    if len(topics) == 1 and version >= 5:
        ((topic, rows),) = topics
        if len(rows) == 1:
            pack, before, after = _around_row(version, topic)
            return pack(correlation_id, before, *rows[0], after)
    pack_row, row_end, topic_end, end = _LAYOUTS[version]
    pieces = [_CORRELATION_ID.pack(correlation_id), _before_topics(version, len(topics))]
    for topic, rows in topics:
        pieces.append(_before_rows(version, topic, len(rows)))
        for row in rows:
            pieces.append(pack_row(*row, *row_end))  # noqa: PERF401 (nearly always one: a loop takes less)
        pieces.append(topic_end)
    pieces.append(end)
    return b"".join(pieces)


@lru_cache(maxsize=_MOST_CACHED)
def _around_row(version: int, topic: str | UUID) -> tuple[Callable[..., bytes], bytes, bytes]:
    """A response of one row, from version 5 on: (correlation id, the first bytes, row, the second bytes) to bytes."""
    layout = _LAYOUTS[version]
    before = _before_topics(version, 1) + _before_rows(version, topic, 1)
    row_end = layout.pack_row(*bytes(5), *layout.row_end)[_ROW.size :]
    after = row_end + layout.topic_end + layout.end
    pack = Struct(f">i{len(before)}s{_ROW.format[1:]}{len(after)}s").pack
    return pack, before, after


@lru_cache(maxsize=_MOST_CACHED)
def _before_topics(version: int, count: int) -> bytes:
    """The end of the header, and the number of topics."""
    tags = b"\0" if version >= 9 else b""
    return tags + _count(version, count)


def _count(version: int, count: int) -> bytes:
    return encode_uvarint(count + 1) if version >= 9 else _COUNT.pack(count)


@lru_cache(maxsize=_MOST_CACHED)
def _before_rows(version: int, topic: str | UUID, count: int) -> bytes:
    """A topic's name or id, and the number of its rows."""
    if isinstance(topic, UUID):
        assert version >= 13, (version, topic)
        return topic.bytes + _count(version, count)
    name = topic.encode()
    length = encode_uvarint(len(name) + 1) if version >= 9 else _NAME_LENGTH.pack(len(name))
    return length + name + _count(version, count)
