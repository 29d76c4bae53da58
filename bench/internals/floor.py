"""The floor of a load: a process that does nothing but the necessary part of a broker's work in Python.

python -m ottla.bench.internals.floor PORT FOLDER RECEIVE_BUFFER SEND_BUFFER [FOLLOWER_PORT ...]

    Produce         received -> the batch's CRC checked -> its base offset set -> written to the file -> answered
    with followers  ... -> sent to each from the file's mapping -> answered when each of them has answered
    others          answered as before if the same was asked before, else by `floor_topics.py`

A follower is such a process, too: the leader sends it the client's request with the records from its file.

What is missing is what a broker is for: producer state, indexes, leader epochs, time, limits, quotas, ACLs,
metrics, errors, fsync. A Produce has one batch for one partition and acks != 0; other clients than the
bench's are not expected, nor any error. The loop, the sockets' options and the sizes of reads are those of
Ottla's broker; a read of several requests is answered by one write. What precedes the records in a Produce is
parsed when it is first seen: a client repeats it with each request.
"""

import asyncio
import gc
import sys
from collections import deque
from pathlib import Path
from struct import Struct
from typing import Final, cast

from ottla.bench.internals.floor_topics import VERSIONS, Partition, Topics
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.codec import decode_request, encode_response
from ottla.protocol.framing import decode_request_header, frame_head
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.runtime import SocketOptions
from ottla.runtime.production import ProductionRuntime, run

#: The sizes of the broker's reads (`broker/network/receive_buffer.py`, `broker/network/connection.py`).
_READ_BYTES: Final = 128 * 1024
_JOIN_BYTES: Final = 16 * 1024
#: While more than this waits for followers, a connection is not read: as with any broker, the queue is the client's.
_AHEAD_BYTES: Final = 64 * 1024
#: Length, API key, version, correlation id: requests of one kind differ in the first and the last one only.
_HEAD: Final = Struct(">ihhi")
_LENGTH: Final = Struct(">i")
_ANSWER_HEAD: Final = Struct(">ii")
#: Marks the place of the base offset in an answer that is encoded once.
_ANY_OFFSET: Final = 0x0123_4567_89AB_CDEF
_OFFSET: Final = Struct(">q")
#: The requests whose answer is repeated, until topics are created or deleted.
_REPEATED: Final = (ApiKey.FETCH, ApiKey.METADATA, ApiKey.API_VERSIONS)
_CHANGES: Final = (ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS)
_CONNECT_S: Final = 0.02


class _Kind:
    """A kind of Produce requests, which differ in correlation id and records only."""

    def __init__(self, partition: Partition, version: int, request: ProduceRequest) -> None:
        self.partition = partition
        [topic] = request.topic_data
        [row] = topic.partition_data
        answer = PartitionProduceResponse(index=row.index, base_offset=_ANY_OFFSET)
        response = ProduceResponse(
            responses=[TopicProduceResponse(name=topic.name, partition_responses=[answer])]
        )
        body = encode_response(ApiKey.PRODUCE, version, response)
        self._before, self._behind = body.split(_OFFSET.pack(_ANY_OFFSET))
        self._answer_bytes = len(body) + 4

    def answer(self, correlation_id: int, base_offset: int) -> bytes:
        """Return the frame of the answer."""
        head = _ANSWER_HEAD.pack(self._answer_bytes, correlation_id)
        return b"".join((head, self._before, _OFFSET.pack(base_offset), self._behind))


class _Waiting:
    """An answer that is sent once all followers have answered."""

    __slots__ = ("answer", "connection", "missing", "size_bytes")

    def __init__(self, connection: "_Connection", answer: bytes, *, size_bytes: int, missing: int) -> None:
        self.connection = connection
        self.answer = answer
        self.size_bytes = size_bytes
        self.missing = missing


class _Follower(asyncio.Protocol):
    """The leader's connection to a follower, which answers requests in their order."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(self, pieces: list[bytes | memoryview], waiting: _Waiting) -> None:
        """Send a request to the follower."""
        self._waiting.append(waiting)
        self._transport.writelines(pieces)

    def data_received(self, data: bytes) -> None:
        data = self._received + data
        start = 0
        while len(data) - start >= _LENGTH.size:
            stop = start + _LENGTH.size + _LENGTH.unpack_from(data, start)[0]
            if stop > len(data):
                break
            start = stop
            waiting = self._waiting.popleft()
            waiting.missing -= 1
            if not waiting.missing:
                waiting.connection.on_replicated(waiting)
        self._received = data[start:]


class _Floor:
    """The state that all connections share: topics, followers, and the kinds of requests that were seen."""

    def __init__(self, topics: Topics, followers: list[_Follower]) -> None:
        self.topics = topics
        self.followers = followers
        #: The bytes between the correlation id and the size of the records -> the kind of the Produce.
        self.kinds: dict[bytes, _Kind] = {}
        #: A request without its correlation id -> the answer behind that.
        self.answers: dict[tuple[int, int, bytes], bytes] = {}

    def kind(self, version: int, frame: memoryview) -> tuple[_Kind, int]:
        """Parse a Produce of a kind that was not seen before; return the kind, and the position of its records."""
        _, body_at = decode_request_header(frame[_LENGTH.size :])
        request = decode_request(ApiKey.PRODUCE, version, frame[_LENGTH.size + body_at :])
        assert isinstance(request, ProduceRequest)
        [topic] = request.topic_data
        [row] = topic.partition_data
        assert row.records is not None
        records_at = len(frame) - len(row.records)
        kind = _Kind(self.topics.partition(topic.name, row.index), version, request)
        self.kinds[bytes(frame[_HEAD.size : records_at - _LENGTH.size])] = kind
        return kind, records_at

    def answer(self, key: int, version: int, correlation_id: int, frame: memoryview) -> bytes:
        """Return the answer to a request that is no Produce."""
        asked = (key, version, bytes(frame[_HEAD.size :]))
        rest = self.answers.get(asked)
        if rest is None:
            if key in _CHANGES:
                self.answers.clear()
                self.kinds.clear()
            if key == ApiKey.API_VERSIONS and version > VERSIONS[ApiKey.API_VERSIONS][1]:
                version = 0  # as any broker answers a version that it does not know
            _, body_at = decode_request_header(frame[_LENGTH.size :])
            response = self.topics.answer(
                decode_request(key, version, bytes(frame[_LENGTH.size + body_at :]))
            )
            body = encode_response(key, version, response)
            rest = frame_head(key, version, correlation_id, len(body))[_ANSWER_HEAD.size :] + body
            if key in _REPEATED:
                self.answers[asked] = rest
        return _ANSWER_HEAD.pack(4 + len(rest), correlation_id) + rest


class _Connection(asyncio.BufferedProtocol):
    """A connection of a client, or of the leader at a follower; its buffer grows to the largest frame."""

    def __init__(self, floor: _Floor) -> None:
        self._floor = floor
        self._view = memoryview(bytearray(_READ_BYTES))
        self._end = 0
        #: The position of the records in the frame of the last Produce.
        self._records_at = 0
        #: The size of the requests that followers have not answered.
        self._waiting_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        view, start, end = self._view, 0, self._end + nbytes
        answers: list[bytes] = []
        frame_bytes = 0
        while end - start >= _HEAD.size:
            length, key, version, correlation_id = _HEAD.unpack_from(view, start)
            frame_bytes = _LENGTH.size + length
            if frame_bytes > end - start:
                break
            frame = view[start : start + frame_bytes]
            start += frame_bytes
            if key == ApiKey.PRODUCE:
                answer, pieces = self._produce(version, correlation_id, frame)
            else:
                answer = self._floor.answer(key, version, correlation_id, frame)
                pieces = [bytes(frame)] if key in _CHANGES else None
            if pieces is None or not self._floor.followers:
                answers.append(answer)
            else:
                self._replicate(pieces, answer)
        if answers:
            self._transport.write(b"".join(answers) if len(answers) > 1 else answers[0])
        rest = view[start:end]
        if frame_bytes > len(view):
            self._view = memoryview(bytearray(frame_bytes))
        self._view[: len(rest)] = rest
        self._end = len(rest)

    def _produce(
        self, version: int, correlation_id: int, frame: memoryview
    ) -> tuple[bytes, list[bytes | memoryview] | None]:
        """Append a Produce; return the answer, and for followers the request with the records from the file."""
        floor, records_at = self._floor, self._records_at
        kind = floor.kinds.get(bytes(frame[_HEAD.size : records_at - _LENGTH.size])) if records_at else None
        if kind is None:
            kind, records_at = floor.kind(version, frame)
            self._records_at = records_at
        batch = frame[records_at:]
        answer = kind.answer(correlation_id, kind.partition.append(batch))
        if not floor.followers:
            return answer, None
        return answer, [bytes(frame[:records_at]), kind.partition.last_bytes(len(batch))]

    def _replicate(self, pieces: list[bytes | memoryview], answer: bytes) -> None:
        size_bytes = sum(map(len, pieces))
        if size_bytes <= _JOIN_BYTES:
            pieces = [b"".join(pieces)]
        waiting = _Waiting(self, answer, size_bytes=size_bytes, missing=len(self._floor.followers))
        for follower in self._floor.followers:
            follower.send(pieces, waiting)
        self._waiting_bytes += size_bytes
        if self._waiting_bytes > _AHEAD_BYTES:
            self._transport.pause_reading()

    def on_replicated(self, waiting: _Waiting) -> None:
        """Send the answer: all followers have answered."""
        self._transport.write(waiting.answer)
        if self._waiting_bytes > _AHEAD_BYTES >= self._waiting_bytes - waiting.size_bytes:
            self._transport.resume_reading()
        self._waiting_bytes -= waiting.size_bytes


async def _connect(runtime: ProductionRuntime, port: int, options: SocketOptions) -> _Follower:
    """Connect to a follower, which may be starting."""
    while True:
        try:
            return (await runtime.connect("127.0.0.1", port, _Follower, options))[1]
        except OSError:
            await asyncio.sleep(_CONNECT_S)


async def _serve(
    runtime: ProductionRuntime, port: int, folder: Path, options: SocketOptions, ports: list[int]
) -> None:
    followers = [await _connect(runtime, each, options) for each in ports]
    floor = _Floor(Topics(folder, port=port, followers=len(followers)), followers)
    await runtime.listen("127.0.0.1", port, lambda: _Connection(floor), options)
    gc.disable()  # nothing here makes cycles
    print(f"READY bootstrap=127.0.0.1:{port}", flush=True)  # as brokers do: turns count from here on
    await asyncio.Event().wait()


def main(port: str, folder: str, receive_buffer: str, send_buffer: str, *follower_ports: str) -> None:
    """Serve until a signal, with the arguments of the command line."""
    receive_bytes, send_bytes = (
        None if size == "-1" else int(size) for size in (receive_buffer, send_buffer)
    )
    options = SocketOptions(receive_buffer_bytes=receive_bytes, send_buffer_bytes=send_bytes)
    run(
        lambda runtime: _serve(
            runtime, int(port), Path(folder), options, [int(each) for each in follower_ports]
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
