"""A public port receives noise, lies and almost valid requests, thousands of them.

Whatever it is, the broker stays up, its memory stays bounded, nothing of it is a bug in the log, and
a well-behaved producer next to it keeps producing. The seed is printed by a failure; set HOSTILE_SEED to
repeat it, HOSTILE_SECONDS to go on for longer.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import struct
import time
from collections import Counter
from random import Random

from ottla.bench.components.processes import PATIENCE_S
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.codec import decode_response
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import encode_request_header
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.batch import batches
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.record import records
from tests.harness.wire import WireClient
from tests.hostile.messages import SERVED, Attacker

log = logging.getLogger(__name__)

SEED = int(os.environ.get("HOSTILE_SEED", "20261121"))
SECONDS = float(os.environ.get("HOSTILE_SECONDS", "4"))
WORKERS = 8
GROWTH_BYTES = 150 * 1024 * 1024

#: A topic that has just been created is known a moment later, and led another one later.
_NOT_YET = (ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower)
_PROBE_ID = 0x7A7A7A7A
_PROBE = encode_request_header(ApiKey.API_VERSIONS, 0, _PROBE_ID, "probe")


def framed(data, length=None):
    return struct.pack(">i", len(data) if length is None else length) + data


_open_writers = []
_numbers = itertools.count()


async def dial(port):
    """A connection that is closed when the test ends, if not before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    _open_writers.append(writer)
    return reader, writer


async def well_behaved(port):
    return WireClient(*await dial(port))


def run(main):
    """Run a test's coroutine and end what it leaves open: warnings are errors."""

    async def body():
        try:
            await main()
        finally:
            for writer in _open_writers:
                writer.transport.abort()
            _open_writers.clear()
            await asyncio.sleep(0)

    asyncio.run(body())


class Peer:
    """A hostile connection: sends, then asks ApiVersions to see whether it is still served."""

    def __init__(self, port):
        self._port = port
        self._writer = None

    async def attack(self, data, *, patience_s=PATIENCE_S):
        """Send bytes; "answered" if a probe behind them is, else "closed", or "waiting" (then closed by us)."""
        if self._writer is None:
            self._reader, self._writer = await dial(self._port)
        outcome = "closed"
        try:
            async with asyncio.timeout(patience_s):
                self._writer.write(data + framed(_PROBE))
                await self._writer.drain()
                while True:
                    size = struct.unpack(">i", await self._reader.readexactly(4))[0]
                    reply = await self._reader.readexactly(size)
                    if reply[:4] == _PROBE_ID.to_bytes(4, "big"):
                        return "answered"
        except TimeoutError:
            outcome = "waiting"
        except (OSError, asyncio.IncompleteReadError):
            pass
        self.leave()
        return outcome

    def leave(self):
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None


class Bystander:
    """A producer that minds its own business; each batch must get the next offset."""

    def __init__(self, port, topic):
        self._port = port
        self._topic = topic
        self.sent = 0
        self.slowest_s = 0.0

    async def run(self):
        client = await well_behaved(self._port)
        topic = CreatableTopic(name=self._topic, num_partitions=1, replication_factor=1)
        await client.request(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
        while True:
            began = time.monotonic()
            batch = build_batch(
                simple_records([(None, b"%d" % self.sent)], timestamp=int(time.time() * 1000))
            )
            request = ProduceRequest(
                acks=-1,
                timeout_ms=60_000,
                topic_data=[
                    TopicProduceData(
                        name=self._topic, partition_data=[PartitionProduceData(index=0, records=batch)]
                    )
                ],
            )
            async with asyncio.timeout(PATIENCE_S):
                response = await client.request(ApiKey.PRODUCE, 9, request)
            row = response.responses[0].partition_responses[0]
            if self.sent or row.error_code not in _NOT_YET:
                assert (row.error_code, row.base_offset) == (ErrorCode.none, self.sent), row
                self.sent += 1
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            await asyncio.sleep(0.01)

    async def check(self):
        """Everything that was acknowledged is there, in order; the last record may have been cut off from its
        answer.
        """
        client = await well_behaved(self._port)
        found = []
        while len(found) < self.sent:
            partition = FetchPartition(partition=0, fetch_offset=len(found), partition_max_bytes=1 << 20)
            response = await client.request(
                ApiKey.FETCH,
                12,
                FetchRequest(
                    max_wait_ms=500,
                    min_bytes=1,
                    max_bytes=1 << 20,
                    session_epoch=-1,
                    topics=[FetchTopic(topic=self._topic, partitions=[partition])],
                ),
            )
            batch = response.responses[0].partitions[0].records
            assert batch, f"{len(found)} of {self.sent} records"
            found += [int(record.value) for record in every_record(memoryview(bytes(batch)))]
        assert found == list(range(len(found)))
        assert self.sent <= len(found) <= self.sent + 1


def every_record(data):
    for _, batch in batches(data):
        yield from records(batch)


async def topic_ids(port):
    """The id of a topic that attackers may do anything to."""
    client = await well_behaved(port)
    topic = CreatableTopic(name="victim", num_partitions=3, replication_factor=1)
    await client.request(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
    asked = MetadataRequest(topics=[MetadataRequestTopic(name="victim")])
    while True:
        (row,) = (await client.request(ApiKey.METADATA, 12, asked)).topics
        if row.error_code == ErrorCode.none:
            return [row.topic_id]


def under_attack(broker, examples, **enough):
    """Have `WORKERS` peers send what `examples(attacker, random)` yields for a while, and until so many were
    `answered`, `closed` or anything (`total`).
    """
    grown_from = broker.child.resident_bytes()
    outcomes = Counter()
    most_resident = 0
    bystander = Bystander(broker.port, f"steady-{next(_numbers)}")

    def is_enough():
        found = {"total": outcomes.total(), **outcomes}
        return bystander.sent > 20 and all(found.get(name, 0) > least for name, least in enough.items())

    async def work(number, ids, until):
        random = Random(SEED * 1000 + number)
        attacker = Attacker(random, ids)
        peer = Peer(broker.port)
        while (is_early := time.monotonic() < until) or not is_enough():
            # On a machine that is slow today, nothing may be answered as soon as that.
            patience_s = 0.25 if is_early else 5.0
            outcomes[await peer.attack(examples(attacker, random), patience_s=patience_s)] += 1
            if random.random() < 0.02:
                peer.leave()

    async def main():
        nonlocal most_resident
        ids = await topic_ids(broker.port)
        producing = asyncio.ensure_future(bystander.run())
        until = time.monotonic() + SECONDS
        log.info("HOSTILE_SEED=%d", SEED)
        working = asyncio.gather(*(work(number, ids, until) for number in range(WORKERS)))
        while not working.done():
            await asyncio.wait({working, producing}, timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
            assert broker.child.is_running, broker.child.output()[-4000:]
            most_resident = max(most_resident, broker.child.resident_bytes())
            if producing.done():
                producing.result()
        await working
        producing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await producing
        await bystander.check()

    run(main)
    grown = most_resident - grown_from
    log.info(
        "%s, %d batches produced (slowest %d ms), grown by %d MiB",
        dict(outcomes),
        bystander.sent,
        bystander.slowest_s * 1000,
        grown >> 20,
    )
    assert grown < GROWTH_BYTES
    assert "Traceback" not in broker.child.output(), broker.child.output()[-6000:]


def test_noise(broker):
    """Random bytes, with and without a frame around them."""

    def examples(_, random):
        noise = random.randbytes(random.choice((1, 3, 4, 5, 10, 100, 1000)))
        return random.choice((noise, framed(noise), framed(noise, random.getrandbits(32) - 2**31)))

    under_attack(broker, examples, total=100)


def test_any_header_before_any_body(broker):
    """Every API, served or not, every version, and a body that is not theirs."""

    def examples(_, random):
        key = random.choice((random.randrange(100), random.getrandbits(16) - 2**15))
        header = encode_request_header(random.choice(SERVED)[0], random.randrange(20), 1, "client")
        header = key.to_bytes(2, "big", signed=True) + header[2:]
        return framed(header + random.randbytes(random.randrange(60)))

    under_attack(broker, examples, total=100)


def test_valid_requests_with_odd_values(broker):
    """Every API in every version: of the right shape, with values that no client would send."""

    def examples(attacker, random):
        return framed(attacker.valid(*random.choice(SERVED)))

    under_attack(broker, examples, answered=100)


def test_mutated_requests(broker):
    def examples(attacker, random):
        return framed(attacker.mutated(attacker.valid(*random.choice(SERVED))))

    under_attack(broker, examples, answered=20, closed=50)


def test_truncated_requests(broker):
    """Cut off anywhere: with a shorter length, or without the rest."""

    def examples(attacker, random):
        request = attacker.valid(*random.choice(SERVED))
        kept = request[: random.randrange(len(request))]
        return framed(kept, len(request)) if random.random() < 0.1 else framed(kept or b"\0")

    under_attack(broker, examples, closed=50)


def test_claims_of_a_hundred_megabytes(broker):
    """Frame lengths, and array counts within, that are claimed and never sent."""

    async def main():
        before = broker.child.resident_bytes()
        for number in range(500):
            _, writer = await dial(broker.port)
            writer.write(struct.pack(">i", 100 * 1024 * 1024) + bytes(number))
        for _ in range(100):
            # Metadata v12, a compact array of 2**28 topics in a body of a few bytes.
            body = encode_request_header(ApiKey.METADATA, 12, 1, "x") + b"\xff\xff\xff\xff\x07" + bytes(20)
            assert await Peer(broker.port).attack(framed(body)) == "closed"
            # Header v2 with 20 million tagged fields (CVE-2026-111115).
            body = encode_request_header(ApiKey.METADATA, 12, 1, "x")[:-1] + b"\x80\xda\xc4\x09" + bytes(1000)
            assert await Peer(broker.port).attack(framed(body)) == "closed"
        assert broker.child.resident_bytes() - before < 20 * 1024 * 1024

    run(main)


def test_pipelined_requests_whose_responses_are_not_read(broker):
    """Thousands of requests at once from a peer that reads nothing: bounded, and over when it leaves."""

    async def main():
        before = broker.child.resident_bytes()
        request = framed(encode_request_header(ApiKey.API_VERSIONS, 3, 1, "x") + b"\x02x\x02y\x00")
        for _ in range(20):
            _, writer = await dial(broker.port)
            writer.transport.pause_reading()
            writer.write(request * 20_000)
        # Answered one after the other: by the last of these, the broker has taken what it will of the others.
        for _ in range(5):
            assert await Peer(broker.port).attack(b"") == "answered"
        assert broker.child.resident_bytes() - before < 60 * 1024 * 1024

    run(main)


def test_it_is_still_itself(broker):
    """After all of that: a new client is served, and a stop is clean."""

    async def main():
        client = await well_behaved(broker.port)
        client._writer.write(framed(_PROBE))
        reply = await client.receive()
        assert decode_response(ApiKey.API_VERSIONS, 0, reply[4:]).error_code == ErrorCode.none

    run(main)
    assert broker.stop() == 0
    assert "Traceback" not in broker.child.output()
