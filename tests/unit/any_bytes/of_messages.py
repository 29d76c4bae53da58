"""Entry points of requests and responses."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from uuid import UUID

from ottla.broker.telemetry import otlp
from ottla.broker.telemetry.series import ClientSeries
from ottla.broker.telemetry.subscriptions import Client
from ottla.protocol import framing
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.codec import decode_request, decode_response, encode_request, encode_response
from ottla.protocol.errors import InvalidRecord, MalformedMessage
from ottla.protocol.hot import fetch, produce
from ottla.protocol.messages import request_class, response_class
from ottla.protocol.messages.produce import ProduceRequest
from tests.unit.any_bytes.entry_point import (
    batch_of,
    entry_point,
)
from tests.unit.any_bytes.filled import filled

#: API and version of a message: two bytes before its body.
_KEYS = tuple(ApiKey)


def _api(data: bytes) -> tuple[ApiKey, int, bytes]:
    if len(data) < 2:
        raise MalformedMessage("no API")
    key = _KEYS[data[0] % len(_KEYS)]
    versions = KAFKA_VERSIONS[key]
    return key, versions[data[1] % len(versions)], data[2:]


def _each_api() -> Iterator[tuple[ApiKey, int, bytes]]:
    for number, key in enumerate(_KEYS):
        for index, version in enumerate(KAFKA_VERSIONS[key]):
            yield key, version, bytes((number, index))


def _requests() -> Sequence[bytes]:
    return [
        head + encode_request(key, version, filled(request_class(key), version))
        for key, version, head in _each_api()
    ]


def _responses() -> Sequence[bytes]:
    return [
        head + encode_response(key, version, filled(response_class(key), version))
        for key, version, head in _each_api()
    ]


@entry_point(MalformedMessage, seeds=_requests)
def request_bodies(data: bytes) -> None:
    """The bounded reader, for every API and version."""
    key, version, body = _api(data)
    for view in (body, memoryview(body)):
        encode_request(key, version, decode_request(key, version, view))


@entry_point(MalformedMessage, seeds=_responses)
def response_bodies(data: bytes) -> None:
    """The bodies of responses from other nodes."""
    key, version, body = _api(data)
    encode_response(key, version, decode_response(key, version, memoryview(body)))


def _frames() -> Sequence[bytes]:
    return [
        framing.encode_request_header(key, version, 7, "client")
        + encode_request(key, version, filled(request_class(key), version))
        for key, version, _ in _each_api()
    ]


@entry_point(MalformedMessage, seeds=_frames)
def request_frames(data: bytes) -> None:
    """Header and body of a frame."""
    frame = memoryview(data)
    header, at = framing.decode_request_header(frame)
    if header.api_key in KAFKA_VERSIONS and header.api_version in KAFKA_VERSIONS[ApiKey(header.api_key)]:
        decode_request(header.api_key, header.api_version, frame[at:])
        framing.decode_response_header(header.api_key, header.api_version, frame)


def _of(key: ApiKey) -> Callable[[], Sequence[bytes]]:
    def seeds() -> Sequence[bytes]:
        return [
            bytes((index,))
            + encode_request(key, version, filled(request_class(key), version, batch=batch_of(2)))
            for index, version in enumerate(KAFKA_VERSIONS[key])
        ]

    return seeds


@entry_point(MalformedMessage, seeds=_of(ApiKey.PRODUCE))
def hot_produce(data: bytes) -> None:
    """The codec of Produce: what the fast path reads is what the general one reads."""
    version, body = _hot(ApiKey.PRODUCE, data)
    with suppress(MalformedMessage):
        produce.decode(version, body)
    # No transactional id, acks, timeout: what the fast path has recognised before.
    empty = encode_request(ApiKey.PRODUCE, version, ProduceRequest())
    before = 7 if version >= 9 else 8
    body = memoryview(empty[:before] + bytes(body[before:]))
    decoder = produce.TopicsDecoder(version, before)
    for _ in range(2):
        found = decoder.decode(body)
        if found is not None:
            fast = [(key, [(index, bytes(rows)) for index, rows in topic]) for key, topic in found]
            assert fast == _topics_of(version, body)


def _topics_of(version: int, body: memoryview) -> object:
    try:
        request = produce.decode(version, body)
    except MalformedMessage as error:
        return error
    return [
        (
            topic.topic_id if version >= 13 else topic.name,
            [
                (row.index, None if row.records is None else bytes(row.records))
                for row in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]


@entry_point(MalformedMessage, seeds=_of(ApiKey.FETCH))
def hot_fetch(data: bytes) -> None:
    """The codec of Fetch."""
    version, body = _hot(ApiKey.FETCH, data)
    for is_of_kind, requests in (
        (fetch.is_incremental, fetch.IncrementalRequests),
        (fetch.is_full, fetch.FullRequests),
    ):
        if is_of_kind(version, body):
            decoder = requests(version)
            if any([decoder.decode(body), decoder.decode(body)]):
                # What the fast path reads is no refusal of the general one.
                assert _can_be_decoded(version, body)
    fetch.decode(version, body)


def _can_be_decoded(version: int, body: memoryview) -> bool:
    try:
        fetch.decode(version, body)
    except MalformedMessage:
        return False
    return True


def _fetched() -> Sequence[bytes]:
    return [
        bytes((index,))
        + encode_response(
            ApiKey.FETCH, version, filled(response_class(ApiKey.FETCH), version, batch=batch_of(2))
        )
        for index, version in enumerate(KAFKA_VERSIONS[ApiKey.FETCH])
    ]


@entry_point(MalformedMessage, seeds=_fetched)
def hot_fetch_responses(data: bytes) -> None:
    """A follower's Fetch is answered."""
    version, body = _hot(ApiKey.FETCH, data)
    fetch.decode_fast_response(version, body)
    fetch.decode_response(version, body)


def _pushed() -> Sequence[bytes]:
    attribute = b"\x0a\x05topic\x12\x03\x0a\x01t"
    points = b"\x0a\x18\x3a\x0c" + attribute + b"\x21" + bytes(8) + b"\x48\x01"
    metrics = [
        b"\x12" + bytes((len(metric),)) + metric
        for metric in (
            b"\x0a\x01a\x2a" + bytes((len(points),)) + points,
            b"\x0a\x01b\x3a" + bytes((len(points) + 4,)) + points + b"\x10\x01\x18\x01",
        )
    ]
    scope = b"".join(metrics)
    return [b"", b"\x0a\x00", b"\x0a" + bytes((len(scope) + 2,)) + b"\x12" + bytes((len(scope),)) + scope]


@entry_point(InvalidRecord, seeds=_pushed)
def pushed_metrics(data: bytes) -> None:
    """PushTelemetry's OTLP, which becomes series."""
    reading = otlp.read(data, max_points=5)
    pushed = otlp.Pushed()

    def read() -> Iterator[None]:
        nonlocal pushed
        pushed = yield from reading

    for _ in read():
        pass
    series = ClientSeries(max_series=5)
    client = Client(UUID(int=2), "c", "java", "4.3.1", "192.0.2.1", 5000)
    for _ in series.add(client, pushed, interval_ms=1000, now_ms=0):
        pass
    assert series.count <= 5


def _hot(key: ApiKey, data: bytes) -> tuple[int, memoryview]:
    if not data:
        raise MalformedMessage("no version")
    versions = KAFKA_VERSIONS[key]
    return versions[data[0] % len(versions)], memoryview(data)[1:]
