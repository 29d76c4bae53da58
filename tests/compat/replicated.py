"""Topics with several replicas, through librdkafka's admin client and, for what it cannot do, the protocol itself.

A change is known to its controller first and to each broker a moment later, and a client asks whichever
broker it likes. So a test states the expected metadata, and waits until every broker that it names returns
it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, Self

from confluent_kafka import ElectionType
from confluent_kafka.admin import NewTopic

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.compat.admin import admin_of, code_of, once, wait_until
from tests.harness.blocking_wire import BlockingWire


class State(NamedTuple):
    """One broker's view of a topic; rows are partitions."""

    #: -1 without a leader.
    leaders: list[int]
    in_sync: list[set[int]]


class Topic:
    """A topic as the brokers behind `bootstrap` see it, those that are down left out."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        self._ports = [int(listener.rpartition(":")[2]) for listener in bootstrap.split(",")]
        self._admin = admin_of(bootstrap)

    @classmethod
    def create(cls, bootstrap: str, name: str, *replicas: Sequence[int], through: str = "") -> Self:
        """Create the topic with these replicas of its partitions, by way of the broker `through`; when this
        returns, the first replicas lead, and all brokers know it.
        """
        topic = cls(bootstrap, name)
        topic._create(
            NewTopic(name, len(replicas), replica_assignment=[list(row) for row in replicas]),
            through or bootstrap,
        )
        topic.wait(leaders=[first for first, *_ in replicas])
        return topic

    @classmethod
    def spread(cls, bootstrap: str, name: str, *, partitions: int, replicas: int) -> Self:
        """Create the topic on brokers that the controller chooses; all brokers know it when this returns.

        A consumer that asks a broker too early would ask again after minutes.
        """
        topic = cls(bootstrap, name)
        topic._create(NewTopic(name, partitions, replicas), bootstrap)
        once(topic.seen, lambda states: all(len(state.leaders) == partitions for state in states))
        return topic

    def _create(self, new: NewTopic, bootstrap: str) -> None:
        admin = admin_of(bootstrap)
        # Brokers that have not found a new controller in time are fenced for a moment.
        fenced = {"INVALID_REPLICA_ASSIGNMENT", "INVALID_REPLICATION_FACTOR"}
        # A controller that is deposed when it has written the topic has not answered: the broker asks the
        # next one again.
        created = {None, "TOPIC_ALREADY_EXISTS"}
        # librdkafka has asked a broker that was killed, and removes it when the next Metadata response leaves it out.
        removed = {"_DESTROY_BROKER"}
        codes: list[str | None] = []

        def is_created() -> bool:
            codes[:] = [code_of(admin.create_topics([new])[self.name])]
            assert codes[0] in fenced | created | removed, codes
            return codes[0] in created

        wait_until(is_created, detail=lambda: f"{self.name}: {codes}")

    def wait(
        self, *, leaders: Sequence[int] | None = None, in_sync: Sequence[Iterable[int]] | None = None
    ) -> None:
        """Wait until all brokers report this; an argument that is None may have any value."""
        wanted = [set(row) for row in in_sync or ()]

        def is_so(state: State) -> bool:
            are_leaders = leaders is None or state.leaders == list(leaders)
            return are_leaders and (in_sync is None or state.in_sync == wanted)

        found: list[State] = []

        def is_so_everywhere() -> bool:
            found[:] = self.seen()
            return bool(found) and all(map(is_so, found))

        wait_until(is_so_everywhere, detail=lambda: f"{found}: not led by {leaders}, or not {wanted} in sync")

    def wait_in_sync(self, replicas: Iterable[int]) -> None:
        """Wait until all partitions of the topic have exactly these replicas in sync."""
        wanted = set(replicas)
        found: list[State] = []

        def are_in_sync() -> bool:
            found[:] = self.seen()
            rows = [row for state in found for row in state.in_sync]
            return bool(rows) and all(row == wanted for row in rows)

        wait_until(are_in_sync, detail=lambda: f"{found}: not {wanted} in sync")

    def _wires(self) -> Iterator[BlockingWire]:
        """The connections to the brokers that can be reached."""
        for port in self._ports:
            with suppress(ConnectionRefusedError):
                yield BlockingWire(port)

    def seen(self) -> list[State]:
        """The views of all brokers that can be reached."""
        asked = MetadataRequest(
            topics=[MetadataRequestTopic(name=self.name)], allow_auto_topic_creation=False
        )
        states = []
        for wire in self._wires():
            with wire:
                (row,) = wire.call(ApiKey.METADATA, 12, asked).topics
            partitions = sorted(row.partitions, key=lambda partition: partition.partition_index)
            states.append(
                State(
                    [partition.leader_id for partition in partitions],
                    [set(partition.isr_nodes) for partition in partitions],
                )
            )
        return states

    def elect(self, kind: ElectionType) -> ErrorCode:
        """The result of an election in partition 0, requested from a broker that can be reached.

        An admin client would ask the one that it takes for the controller, which may be the one that is gone.
        """
        asked = ElectLeadersRequest(
            election_type=kind.value,
            topic_partitions=[TopicPartitions(topic=self.name, partitions=[0])],
            timeout_ms=60_000,
        )
        with next(self._wires()) as wire:
            answer = wire.call(ApiKey.ELECT_LEADERS, 2, asked)
        rows = [row for topic in answer.replica_election_results for row in topic.partition_result]
        return ErrorCode(answer.error_code or rows[0].error_code)

    def prefer(self, leader: int) -> None:
        """Have partition 0 led by its preferred replica, which is this one; known to all when this returns."""
        answer = self.elect(ElectionType.PREFERRED)
        assert answer in {ErrorCode.none, ErrorCode.election_not_needed}, answer
        self.wait(leaders=[leader])

    def reassign(self, port: int, *replicas: Sequence[int]) -> None:
        """Begin to move the partitions to these replicas, by any broker's port."""
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=60_000,
            topics=[
                ReassignableTopic(
                    name=self.name,
                    partitions=[
                        ReassignablePartition(partition_index=index, replicas=list(row))
                        for index, row in enumerate(replicas)
                    ],
                )
            ],
        )
        with BlockingWire(port) as wire:
            answer = wire.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)
        rows = [answer, *(row for topic in answer.responses for row in topic.partitions)]
        assert all(row.error_code == ErrorCode.none for row in rows), answer
