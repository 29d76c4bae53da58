"""Clients of the simulated cluster: their common part, and producers, which record their operations.

Each finds leaders by Metadata, tries again after errors that may pass, and keeps Kafka's rules: an idempotent producer
sends the same batch with the same sequence until it is answered.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any
from uuid import UUID

from cluster_machine import CLIENT_PORT

from ottla.broker.network.client import Address, ClientSettings, NodeClient
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.runtime.simulated import Simulation
from tests.harness.history import History, Send, Transaction

#: What a request may end with besides an answer.
UNANSWERED = (OSError, TimeoutError, KafkaError)
REQUEST_TIMEOUT_S = 2.0
BACKOFF_S = 0.1

#: Answers that say that nothing was written: a producer that gives up has not sent.
_NOT_WRITTEN = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.leader_not_available,
        ErrorCode.not_enough_replicas,
        ErrorCode.fenced_leader_epoch,
    }
)
#: Answers after which the same batch is sent again.
_RETRIABLE = _NOT_WRITTEN | {
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.request_timed_out,
    ErrorCode.kafka_storage_error,
    ErrorCode.network_exception,
    # A leader that does not know yet that it is none lacks what its successor has acknowledged. One that goes on
    # to answer so has lost a batch: the write never ends then, and that is what the world complains of.
    ErrorCode.out_of_order_sequence_number,
}


class Client:
    """The common part: a connection to each broker, and the known leaders of a topic."""

    def __init__(self, simulation: Simulation, random: Random, brokers: Sequence[int], *, name: str) -> None:
        self.name = name
        self.random = random
        self.simulation = simulation
        self.runtime = simulation.runtime(name)
        self._client = NodeClient(
            self.runtime,
            client_id=name,
            settings=ClientSettings(connect_timeout_ms=1500, reconnect_backoff_max_ms=300),
        )
        self._brokers = list(brokers)
        self._topic_ids: dict[str, UUID] = {}
        #: (topic, partition) -> (leader, leader epoch)
        self._leaders: dict[tuple[str, int], tuple[int, int]] = {}
        #: The newest epoch in any response: a broker in an older one is not asked (KIP-320).
        self._epochs: dict[tuple[str, int], int] = {}

    async def request(self, broker_id: int, api_key: int, message: Any, **options: Any) -> Any:
        """Ask one broker. Raises one of UNANSWERED."""
        return await self._client.request(
            address_of(broker_id), api_key, message, timeout_s=REQUEST_TIMEOUT_S, **options
        )

    async def request_any(self, api_key: int, message: Any) -> Any:
        """Ask brokers, one after the other, until one answers."""
        while True:
            try:
                return await self.request(self.random.choice(self._brokers), api_key, message)
            except UNANSWERED:
                await asyncio.sleep(BACKOFF_S)

    async def refresh(self, topic: str) -> None:
        """Ask a broker for the leader."""
        message = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        response = await self.request_any(ApiKey.METADATA, message)
        for found in response.topics:
            if found.error_code != ErrorCode.none:
                continue
            self._topic_ids[topic] = found.topic_id
            for row in found.partitions:
                key = (topic, row.partition_index)
                if row.leader_id >= 0 and row.leader_epoch >= self._epochs.get(key, -1):
                    self._leaders[key] = row.leader_id, row.leader_epoch
                    self._epochs[key] = row.leader_epoch

    async def leader_of(self, topic: str, partition: int) -> tuple[int, int]:
        """(leader, leader epoch), as soon as a broker returns it."""
        while (topic, partition) not in self._leaders:
            await self.refresh(topic)
            if (topic, partition) not in self._leaders:
                await asyncio.sleep(BACKOFF_S)
        return self._leaders[topic, partition]

    async def lost_leader(self, topic: str, partition: int) -> None:
        """It does not lead, or does not respond: look the leader up again."""
        await asyncio.sleep(BACKOFF_S)
        self._leaders.pop((topic, partition), None)
        await self.refresh(topic)

    async def close(self) -> None:
        await self._client.close()


def address_of(broker_id: int) -> Address:
    """The address at which clients reach a broker."""
    return f"n{broker_id}", CLIENT_PORT


class Producer(Client):
    """Writes unique values to one partition, batch after batch; with one of so many keys each, if any."""

    def __init__(
        self,
        simulation: Simulation,
        random: Random,
        brokers: Sequence[int],
        history: History,
        *,
        name: str,
        topic: str,
        partition: int,
        acks: int = -1,
        keys: int = 0,
        is_idempotent: bool = True,
    ) -> None:
        """Create a producer, which is idempotent with acks=-1 only. One that is not sends each batch once."""
        super().__init__(simulation, random, brokers, name=name)
        self._history = history
        self._topic, self._partition, self._acks = topic, partition, acks
        self._keys = keys
        self._is_idempotent = is_idempotent and acks == -1
        self._count = 0
        #: (producer id, its epoch); None: it has to ask for one.
        self._producer: tuple[int, int] | None = None
        self._sequence = 0

    async def produce(self, *, pause_s: float, is_over: Callable[[], bool]) -> None:
        """Produce until the story is over, with a short pause after each batch."""
        while not is_over():
            if self._producer is None:
                self._producer = await self._init() if self._is_idempotent else (-1, -1)
                self._sequence = 0
            await self._write()
            await asyncio.sleep(self.random.uniform(0, 2 * pause_s))

    async def _write(self, transaction: Transaction | None = None) -> None:
        """The next batch, perhaps of a transaction."""
        assert self._producer is not None
        producer_id, epoch = self._producer
        values = [self._next_value() for _ in range(self.random.choice((1, 1, 1, 2, 5)))]
        pairs = [(self._key(), value) for value in values]
        if self._keys and self.random.random() < 0.1:
            values, pairs = [], [(self._key(), None)]
        batch = build_batch(
            simple_records(pairs, timestamp=self.runtime.now_ms()),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self._sequence if self._is_idempotent else -1,
            is_transactional=transaction is not None,
        )
        send = self._history.begin(
            Send(
                client=self.name,
                topic=self._topic,
                partition=self._partition,
                values=values,
                acks=self._acks,
                transaction=transaction,
            ),
            self.simulation.loop.time(),
        )
        await self._send(batch, send)
        send.ended_s = self.simulation.loop.time()
        self._sequence += len(pairs)

    def _key(self) -> bytes | None:
        return f"k{self.random.randrange(self._keys)}".encode() if self._keys else None

    async def _init(self) -> tuple[int, int]:
        while True:
            response = await self.request_any(
                ApiKey.INIT_PRODUCER_ID,
                InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
            )
            if response.error_code == ErrorCode.none:
                return response.producer_id, response.producer_epoch
            await asyncio.sleep(BACKOFF_S)

    def _next_value(self) -> bytes:
        self._count += 1
        return f"{self.name}-{self._count}".encode()

    async def _send(self, batch: bytes | bytearray, send: Send) -> None:
        while True:
            leader, _ = await self.leader_of(self._topic, self._partition)
            data = PartitionProduceData(index=self._partition, records=bytes(batch))
            message = ProduceRequest(
                acks=self._acks,
                timeout_ms=1000,
                topic_data=[
                    TopicProduceData(
                        name=self._topic, topic_id=self._topic_ids[self._topic], partition_data=[data]
                    )
                ],
            )
            try:
                response = await self.request(leader, ApiKey.PRODUCE, message)
            except UNANSWERED:
                if not self._is_idempotent:
                    return  # unknown
                await self.lost_leader(self._topic, self._partition)
                continue
            row = response.responses[0].partition_responses[0]
            code = ErrorCode(row.error_code)
            if code == ErrorCode.none:
                send.is_ok, send.base_offset = True, row.base_offset
                return
            if code == ErrorCode.duplicate_sequence_number:
                send.is_ok = True
                return
            send.errors.append(code)
            if not self._is_idempotent:
                # With acks=all, a leader that is none any more may have written it.
                if code in _NOT_WRITTEN and self._acks != -1:
                    send.is_ok = False
                await self.lost_leader(self._topic, self._partition)
                return
            if code == ErrorCode.out_of_order_sequence_number and self._topic in self._history.unclean:
                # An acknowledged batch has been lost: the outcome of this one is unknown,
                # and it takes a new epoch (KIP-360).
                self._producer = None
                return
            if code not in _RETRIABLE:
                self._history.errors.append(f"{self.name}: {code.name} for {send}")
                return
            await self.lost_leader(self._topic, self._partition)
