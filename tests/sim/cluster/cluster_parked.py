"""Requests that wait while leaders change: for followers that are far away, and for threads that take their time."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

from cluster_clients import UNANSWERED, Client
from cluster_operator import Operator
from cluster_violated import Violated
from cluster_world import World

from ottla.broker.replicas.leading.delayed_produce import DelayedAcknowledgement
from ottla.broker.replicas.waiting.delayed_operation import DelayedOperation
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.runtime import Pool
from ottla.runtime.simulated import SimulatedRuntime
from ottla.storage.validation import QUICK_BYTES
from tests.harness.history import Send

#: Compacted, with a partition on each broker that never leads elsewhere: a large batch is validated in a thread there.
HEAVY = "heavy"


class HalfInAThread(Client):
    """Writes to one partition and, by the same requests, what its leader validates in a thread. Each batch once."""

    def __init__(self, world: World, topic: str, *, name: str) -> None:
        super().__init__(world.simulation, Random(world.random.getrandbits(64)), world.broker_ids, name=name)
        self._history = world.history
        self._topic = topic
        self._heavy_partitions = range(3 * len(world.brokers))

    async def produce(self, *, is_over: Callable[[], bool]) -> None:
        """Produce until the story is over."""
        number = 0
        while not is_over():
            number += 1
            leader, _ = await self.leader_of(self._topic, 0)
            value = f"{self.name}-{number}".encode()
            send = self._history.begin(
                Send(client=self.name, topic=self._topic, partition=0, values=[value], acks=-1),
                self.simulation.loop.time(),
            )
            await self._send(leader, await self._heavy_of(leader), value, send)
            send.ended_s = self.simulation.loop.time()
        await self.close()

    async def _heavy_of(self, broker_id: int) -> int | None:
        """A heavy partition that it leads; None: all of them were placed while it was fenced."""
        for index in self._heavy_partitions:
            if (await self.leader_of(HEAVY, index))[0] == broker_id:
                return index
        return None

    async def _send(self, leader: int, heavy_index: int | None, value: bytes, send: Send) -> None:
        rows = {self._topic: (0, value)}
        if heavy_index is not None:
            rows[HEAVY] = heavy_index, bytes(QUICK_BYTES + 1)
        message = ProduceRequest(
            acks=-1,
            timeout_ms=700,  # shorter than the client's own, also behind a slow thread
            topic_data=[
                TopicProduceData(
                    name=topic,
                    topic_id=self._topic_ids[topic],
                    partition_data=[PartitionProduceData(index=index, records=self._batch(data))],
                )
                for topic, (index, data) in rows.items()
            ],
        )
        try:
            response = await self.request(leader, ApiKey.PRODUCE, message)
        except UNANSWERED:
            await self.lost_leader(self._topic, 0)
            return
        topic_id = self._topic_ids[self._topic]
        (row,) = next(each.partition_responses for each in response.responses if each.topic_id == topic_id)
        if row.error_code == ErrorCode.none:
            send.is_ok, send.base_offset = True, row.base_offset
        else:
            send.errors.append(ErrorCode(row.error_code))
            await self.lost_leader(self._topic, 0)

    def _batch(self, value: bytes) -> bytes:
        return bytes(build_batch(simple_records([(b"k", value)], timestamp=self.runtime.now_ms())))


@contextmanager
def slow_requests(world: World) -> Iterator[None]:
    """Make the requests' work in threads slow, and no other work, since role changes would be as late
    otherwise."""
    run_blocking, random = SimulatedRuntime.run_blocking, world.random

    async def run_late(
        self: SimulatedRuntime, function: Callable[..., Any], *args: object, pool: Pool
    ) -> Any:
        if pool in (Pool.VALIDATION, Pool.READS):
            await asyncio.sleep(random.choice((0.0, 0.3, 0.8)))
        return await run_blocking(self, function, *args, pool=pool)

    with patch.object(SimulatedRuntime, "run_blocking", run_late):
        yield


@contextmanager
def no_signal_is_lost(world: World) -> Iterator[None]:
    """Check that no request times out whose condition is satisfied, unless its signal is a moment old."""
    expire = DelayedOperation.expire

    def expire_checked(self: DelayedOperation) -> None:
        is_signalled = any(key in self._purgatory._signalled for key in self._keys)
        if isinstance(self, DelayedAcknowledgement) and not is_signalled and self.can_complete():
            world.failures.append(Violated(f"NoSignalIsLost: {[str(key) for key in self._keys]}"))
        expire(self)

    with patch.object(DelayedOperation, "expire", expire_checked):
        yield


async def parked(world: World) -> None:
    """Leaders change while a Produce waits for one of its rows in a thread, or for followers that are far away."""
    for topic in ("loose", "quiet"):
        await world.create_topic(topic, replicas=len(world.brokers))
    await world.create_topic(HEAVY, partitions=3 * len(world.brokers), replicas=1, cleanup_policy="compact")
    world.produce("loose", acks=1, pause_s=0.05)
    world.consume("loose")
    world.ask("loose")
    # The quiet partition is not signalled again before its only client is answered.
    for number, topic in enumerate(["quiet"] + ["loose"] * 7):
        client = HalfInAThread(world, topic, name=f"half{number}")
        world.begin(client.produce(is_over=lambda: world.is_stopping))
    random, operator, until = world.random, Operator(world), world.now + 5
    delays_s = world.simulation.network.conditions.delays_s
    with no_signal_is_lost(world), slow_requests(world):
        while world.now < until:
            for machine in world.brokers:
                for other in world.brokers:
                    delays_s[machine.host, other.host] = random.choice((0.0, 0.0, 0.01, 0.05, 0.1))
            operator.crown("loose", 0, random.choice(world.broker_ids[:2]))
            await asyncio.sleep(random.choice((0.05, 0.15, 0.4)) * random.uniform(0.5, 1.5))
