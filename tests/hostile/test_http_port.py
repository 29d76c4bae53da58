"""The HTTP port of a broker: 500 slow connections and 1,000 odd requests leave the broker's latency as it was.

The seed is printed by a failure.
"""

import asyncio
import statistics
import time
from random import Random
from urllib.parse import quote

import pytest

from ottla.bench.components.processes import PATIENCE_S, free_port
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import build_batch, simple_records
from tests.harness.ottla import OttlaServer
from tests.harness.wire import WireClient

SEED = 20261126
SLOW = 500
ODD = 1_000
#: Measured before, and meanwhile, so often.
ROUNDS = 150
_VIEWS = (
    "overview",
    "topics",
    "topic",
    "partition",
    "groups",
    "group",
    "records",
    "nothing",
    "../etc/passwd",
    "",
)
_NAMES = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "key",
    "page",
    "search",
    "order",
    "group",
    "count",
    "x",
)
_VALUES = ("t", "0", "1", "-1", "99999999999999999999", "", "\x00", "<b>", "é" * 300, "name", "1e9", "٣")


@pytest.fixture
def served(tmp_path):
    port = free_port()
    server = OttlaServer(tmp_path, settings={"metrics.listeners": f"http://127.0.0.1:{port}"}).start()
    yield server, port
    server.kill()


class Producer:
    """One producer that waits for each response."""

    def __init__(self, client):
        self._client = client
        batch = build_batch(simple_records([(None, b"x")], timestamp=1))
        rows = [PartitionProduceData(index=0, records=batch)]
        data = [TopicProduceData(name="t", partition_data=rows)]
        self._request = ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=data)

    @classmethod
    async def start(cls, port):
        client = await WireClient.connect("127.0.0.1", port)
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        await client.request(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
        return cls(client)

    async def close(self):
        await self._client.close()

    async def times_s(self, rounds):
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            response = await self._client.request(ApiKey.PRODUCE, 9, self._request)
            times.append(time.perf_counter() - began)
            assert response.responses[0].partition_responses[0].error_code == 0
        return times


def odd_request(random):
    """A request that is almost one, or asks for something that is almost there."""
    if random.random() < 0.2:
        return random.randbytes(random.randrange(1, 3000)) + b"\r\n\r\n"
    pairs = [(random.choice(_NAMES), random.choice(_VALUES)) for _ in range(random.randrange(6))]
    query = "&".join(f"{name}={quote(value)}" for name, value in pairs)
    head = random.choice(("GET", "GET", "GET", "HEAD", "POST", "\x00"))
    lines = [f"{head} /view/{random.choice(_VIEWS)}?{query} HTTP/1.{random.choice('0111')}"]
    lines.append(f"Host: {random.choice(('127.0.0.1', 'localhost', 'evil.example', ''))}")
    if random.random() < 0.2:
        lines.append("Accept: text/event-stream")
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode()


async def ask(port, data):
    """The first bytes of the response; empty if the connection was closed instead."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read(64)
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


async def drip(port, opened):
    """A connection that sends its request a byte at a time; opened again when it is closed."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.2)
            continue
        opened.put_nowait(None)
        try:
            for byte in b"GET /view/overview HTTP/1.1\r\nHost: localhost\r\n" * 100:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.5)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()


def test_slow_connections_and_odd_requests_leave_the_latency_as_it_was(served):
    server, port = served

    async def scenario():
        producer = await Producer.start(server.port)
        await producer.times_s(ROUNDS)
        calm = await producer.times_s(ROUNDS)
        opened = asyncio.Queue()
        slow = [asyncio.ensure_future(drip(port, opened)) for _ in range(SLOW)]
        try:
            for _ in range(SLOW):
                await opened.get()
            meanwhile = await producer.times_s(ROUNDS)
            found = await ask(port, b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
            assert found.startswith(b"HTTP/1.1 200"), "a scraper is served beside them"
        finally:
            for task in slow:
                task.cancel()
            await asyncio.gather(*slow, return_exceptions=True)
        assert statistics.median(meanwhile) < 3 * statistics.median(calm) + 0.002
        random = Random(SEED)
        producing = asyncio.ensure_future(producer.times_s(10**9))
        answers = [await ask(port, odd_request(random)) for _ in range(ODD)]
        assert not producing.done(), (SEED, producing)
        producing.cancel()
        await producer.close()
        assert all(each.startswith(b"HTTP/1.") or not each for each in answers), SEED
        assert sum(bool(each) for each in answers) > ODD / 2
        after = await Producer.start(server.port)
        assert statistics.median(await after.times_s(ROUNDS)) < 3 * statistics.median(calm) + 0.002
        await after.close()
        found = await ask(port, b"GET /view/overview HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert found.startswith(b"HTTP/1.1 200")

    asyncio.run(scenario())
    log = server.child.output()
    assert [line for line in log.splitlines() if " ERROR " in line or "Traceback" in line] == []
