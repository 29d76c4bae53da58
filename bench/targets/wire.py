"""Requests by hand over blocking sockets, and the frames of loads that no client library paces."""

import contextlib
import socket
import time
from collections.abc import Mapping
from typing import Final, NamedTuple, Self, TypeVar

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.codec import decoder, encode_request
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import decode_response_header, encode_request_header, framed
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.record import Record
from ottla.protocol.schema import Request, Response
from ottla.protocol.special_timestamps import LATEST

_R = TypeVar("_R", bound=Response)

_CLIENT_ID: Final = "ottla-bench"
_CORRELATION_ID: Final = 1
#: Versions that any broker since Kafka 2.4 serves, so that older ones can be measured, too.
_VERSIONS: Final = {
    ApiKey.PRODUCE: 8,
    ApiKey.LIST_OFFSETS: 5,
    ApiKey.METADATA: 9,
    ApiKey.API_VERSIONS: 3,
    ApiKey.CREATE_TOPICS: 5,
    ApiKey.DELETE_TOPICS: 4,
    ApiKey.FETCH: 12,
    ApiKey.DESCRIBE_QUORUM: 1,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.DESCRIBE_CONFIGS: 2,
    ApiKey.ELECT_LEADERS: 2,
}

#: The version of ListOffsets from which the offset of the last copied record can be requested (KIP-1005).
TIER_VERSIONS: Final = {ApiKey.LIST_OFFSETS: 9}

#: The versions that name topics by their ids, as current clients do (KIP-516).
TOPIC_ID_VERSIONS: Final = {ApiKey.METADATA: 12, ApiKey.FETCH: 16}


class Address(NamedTuple):
    """The address at which a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


API_VERSIONS_REQUEST: Final = ApiVersionsRequest(
    client_software_name="ottla-bench", client_software_version="1"
)


class RequestFailed(Exception):
    """A broker answered with an error; `code` is 0 if it answered several."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class WireClient:
    """A connection to one broker; requests and their answers, one after the other."""

    def __init__(
        self,
        port: int,
        *,
        host: str = "127.0.0.1",
        timeout_s: float = 30,
        versions: Mapping[ApiKey, int] = _VERSIONS,
    ) -> None:
        """Connect; `versions` are those that differ from the ones that any broker serves."""
        self._versions = {**_VERSIONS, **versions}
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @staticmethod
    def answers(port: int) -> bool:
        """Whether the broker at this port answers ApiVersions."""
        with contextlib.suppress(OSError), WireClient(port, timeout_s=5) as client:
            return not client.request(
                ApiKey.API_VERSIONS, API_VERSIONS_REQUEST, ApiVersionsResponse
            ).error_code
        return False

    def request(self, api_key: ApiKey, message: Request, answer: type[_R]) -> _R:
        """Send a message and decode the answer."""
        self.send(api_key, message)
        return self.receive(api_key, answer)

    def fileno(self) -> int:
        """Return the socket's file descriptor, for `select`."""
        return self._socket.fileno()

    def send(self, api_key: ApiKey, message: Request) -> None:
        """Send a message, whose answer `receive` returns later."""
        self.send_frame(request_frame(api_key, message, version=self._versions[api_key]))

    def send_frame(self, frame: bytes) -> None:
        """Send a frame that is encoded already."""
        self._socket.sendall(frame)

    def receive(self, api_key: ApiKey, answer: type[_R]) -> _R:
        """Wait for the answer to the last message, and decode it. Raises OSError if the connection ends instead."""
        version = self._versions[api_key]
        frame = self._receive()
        _, body_at = decode_response_header(api_key, version, memoryview(frame))
        return decoder(answer, version)(frame[body_at:])

    def _receive(self) -> bytes:
        size = self._read(4)
        if not size:
            raise ConnectionResetError("the broker has closed the connection")
        return self._read(int.from_bytes(size, "big"))

    def _read(self, count: int) -> bytes:
        """Read so many bytes, fewer if the stream ends; none behind them, which `select` would not show any more."""
        pieces: list[bytes] = []
        while count and (piece := self._socket.recv(count)):
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    def record_count(self, name: str, *, partitions: int) -> int:
        """Return the sum of the log end offsets of partitions that this broker leads. Raises RequestFailed."""
        asked = [ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in range(partitions)]
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=asked)], timeout_ms=10_000
        )
        rows = self.request(ApiKey.LIST_OFFSETS, request, ListOffsetsResponse).topics[0].partitions
        for row in rows:
            if row.error_code:
                raise RequestFailed(f"{name}: {ErrorCode(row.error_code).name}", row.error_code)
        return sum(row.offset for row in rows)


def request_frame(api_key: ApiKey, message: Request, *, version: int | None = None) -> bytes:
    """Return a whole frame of a request, length included."""
    version = _VERSIONS[api_key] if version is None else version
    header = encode_request_header(api_key, version, _CORRELATION_ID, _CLIENT_ID)
    return framed(header, encode_request(api_key, version, message))


def produce_frame(topic: str, *, batch_bytes: int, acks: int = -1) -> bytes:
    """Return the frame of a Produce of one record in a batch of exactly `batch_bytes`, to partition 0."""
    return request_frame(ApiKey.PRODUCE, produce_message(topic, batch_bytes=batch_bytes, acks=acks))


def produce_message(topic: str, *, batch_bytes: int, acks: int = -1) -> ProduceRequest:
    """Return a Produce of one record in a batch of exactly `batch_bytes`, to partition 0, not encoded yet."""
    value_bytes = batch_bytes
    while True:
        now_ms = int(time.time() * 1000)
        batch = build_batch([Record(0, now_ms, None, b"x" * value_bytes, ())])
        if len(batch) <= batch_bytes:
            break
        value_bytes -= len(batch) - batch_bytes
    data = PartitionProduceData(index=0, records=batch)
    return ProduceRequest(
        acks=acks, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
