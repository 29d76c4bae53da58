"""A Kafka broker that answers producers and drops their records: it shows the limit and the cost of generators.

    python -m ottla.bench.generators.null_sink PARTITIONS

It serves ApiVersions, Metadata (of one topic, TOPIC, with PARTITIONS), InitProducerId and Produce. Of a
Produce only what is before the records is read; the kernel drops the records without a copy, where it can.
"""

import contextlib
import io
import itertools
import re
import socket
import struct
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ottla.bench.components.processes import Child
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.codec import encode_response
from ottla.protocol.framing import frame_head
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdResponse
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from ottla.protocol.schema import Response

#: The served versions. Produce: those without tagged fields, of which librdkafka and Kafka's client take the
#: last one. Fetch is not served; but without it librdkafka sends the record format of before Kafka 0.11.
_VERSIONS: Final = {
    ApiKey.PRODUCE: (3, 8),
    ApiKey.FETCH: (4, 11),
    ApiKey.METADATA: (4, 9),
    ApiKey.API_VERSIONS: (0, 3),
    ApiKey.INIT_PRODUCER_ID: (0, 2),
}
TOPIC: Final = "null"
#: The folder from which the package `ottla` is imported.
_IMPORTED_FROM: Final = Path(__file__).parents[3]
_READY: Final = re.compile(r"^READY (\d+)$", re.MULTILINE)
_NODE: Final = 1
_HEADER: Final = struct.Struct(">ihhih")
_DROPPED_AT_ONCE: Final = 1 << 20
_BUFFER_BYTES: Final = 16 << 10
#: The flag with which Linux drops received bytes; elsewhere they are copied, and ignored.
_DROP: Final = socket.MSG_TRUNC if sys.platform == "linux" else 0


class NullSink:
    """The null sink as a process of its own; a context manager."""

    def __init__(self, folder: Path, *, partitions: int) -> None:
        """Create the sink; the output of its process goes to `folder`."""
        self.partitions = partitions
        self._folder = folder

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", __spec__.name, str(self.partitions)]
        self.child = Child(
            command, log=self._folder / "null-sink.log", env={"PYTHONPATH": str(_IMPORTED_FROM)}
        )
        self.child.wait_until(lambda: _READY.search(self.child.output()) is not None)
        found = _READY.search(self.child.output())
        assert found is not None
        self.bootstrap = f"127.0.0.1:{found[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.stop()


class _Connection:
    """A client's connection, whose requests are answered in their order."""

    def __init__(self, connected: socket.socket, *, partitions: int) -> None:
        self._socket = connected
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = io.BufferedReader(connected.makefile("rb", buffering=0), _BUFFER_BYTES)
        self._partitions = partitions
        self._scratch = bytearray(_DROPPED_AT_ONCE)
        #: The topics and partitions of a Produce -> a whole answer but for its correlation id.
        self._prepared: dict[tuple[int, tuple[tuple[str, int], ...]], bytes] = {}

    def serve(self) -> None:
        """Answer requests until the client is gone."""
        with self._socket, contextlib.suppress(ConnectionError, EOFError):
            while True:
                size, api_key, version, correlation_id, client_size = _HEADER.unpack(self._read(_HEADER.size))
                self._read(max(0, client_size))
                if api_key == ApiKey.PRODUCE:
                    self._answer_produce(version, correlation_id)
                else:
                    self._read(size - _HEADER.size + 4 - max(0, client_size))
                    self._answer_other(api_key, version, correlation_id)

    def _read(self, count: int) -> bytes:
        read = self._stream.read(count)
        if read is None or len(read) < count:
            raise EOFError
        return read

    def _int(self, size: int) -> int:
        return int.from_bytes(self._read(size), "big", signed=True)

    def _answer_produce(self, version: int, correlation_id: int) -> None:
        self._read(max(0, self._int(2)))  # the transactional id
        acks = self._int(2)
        self._int(4)  # the timeout
        written: list[tuple[str, int]] = []
        for _ in range(self._int(4)):
            topic = self._read(self._int(2)).decode()
            for _ in range(self._int(4)):
                written.append((topic, self._int(4)))
                self._drop(self._int(4))
        if not acks:
            return
        key = (version, tuple(written))
        answer = self._prepared.get(key)
        if answer is None:
            answer = self._prepared[key] = _produced(version, written)
        self._send(ApiKey.PRODUCE, version, correlation_id, answer)

    def _drop(self, count: int) -> None:
        buffered = min(count, len(self._stream.peek(1)))
        self._read(buffered)
        count -= buffered
        while count > 0:
            dropped = self._socket.recv_into(self._scratch, min(count, _DROPPED_AT_ONCE), _DROP)
            if not dropped:
                raise EOFError
            count -= dropped

    def _answer_other(self, api_key: int, version: int, correlation_id: int) -> None:
        response: Response
        match api_key:
            case ApiKey.API_VERSIONS:
                # As any broker: a version that is not known is answered in version 0.
                version = version if version <= _VERSIONS[ApiKey.API_VERSIONS][1] else 0
                response = ApiVersionsResponse(
                    api_keys=[
                        ApiVersion(api_key=key, min_version=least, max_version=most)
                        for key, (least, most) in _VERSIONS.items()
                    ]
                )
            case ApiKey.METADATA:
                response = self._metadata()
            case ApiKey.INIT_PRODUCER_ID:
                response = InitProducerIdResponse(producer_id=1)
            case _:
                raise EOFError
        self._send(api_key, version, correlation_id, encode_response(api_key, version, response))

    def _metadata(self) -> MetadataResponse:
        host, port = self._socket.getsockname()
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=_NODE, host=host, port=port)],
            cluster_id="null-sink",
            controller_id=_NODE,
            topics=[
                MetadataResponseTopic(
                    name=TOPIC,
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=each, leader_id=_NODE, replica_nodes=[_NODE], isr_nodes=[_NODE]
                        )
                        for each in range(self._partitions)
                    ],
                )
            ],
        )

    def _send(self, api_key: int, version: int, correlation_id: int, body: bytes) -> None:
        self._socket.sendall(frame_head(api_key, version, correlation_id, len(body)) + body)


def _produced(version: int, written: list[tuple[str, int]]) -> bytes:
    topics = [
        TopicProduceResponse(
            name=topic, partition_responses=[PartitionProduceResponse(index=index) for _, index in rows]
        )
        for topic, rows in itertools.groupby(written, key=lambda row: row[0])
    ]
    return encode_response(ApiKey.PRODUCE, version, ProduceResponse(responses=topics))


def main() -> None:
    """Serve until the process gets SIGTERM."""
    partitions = int(sys.argv[1])
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        print(f"READY {listener.getsockname()[1]}", flush=True)
        while True:
            connected, _ = listener.accept()
            connection = _Connection(connected, partitions=partitions)
            threading.Thread(target=connection.serve, daemon=True).start()


if __name__ == "__main__":
    main()
