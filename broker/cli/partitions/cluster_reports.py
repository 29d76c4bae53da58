"""Describes partitions: asks one broker for the metadata, then the broker of each replica for its logs.

A broker that cannot be reached is no failure: the rows of its replicas name the reason. All brokers are asked
at the same time, each over one connection.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from ottla.broker.cli.bootstrap import existing_topics
from ottla.broker.cluster_client.client import ClusterClient
from ottla.broker.cluster_client.errors import BrokerUnreachable
from ottla.broker.cluster_client.topics import is_internal
from ottla.broker.network.client import Address
from ottla.broker.reports.description import Description, Replica, ReplicaLog, TopicSettings
from ottla.broker.reports.replica_reports import Asked, Reported, replica_reports
from ottla.metadata.leader_preference import NO_PREFERENCE, LeaderPreference
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
)
from ottla.protocol.schema import Request, Response
from ottla.protocol.types import TopicPartition

R = TypeVar("R", bound=Response)

#: A broker that does not answer is given up sooner than a cluster.
_BROKER_TIMEOUT_S: Final = 10.0
_TOPIC: Final = 2  # DescribeConfigs: the type of a topic
_EARLY: Final = "leader.election.prefer.early.local.log.start.offset"
_THRESHOLD: Final = "leader.election.local.log.start.offset.threshold"
_LOCAL_MS: Final = "leader.election.eligible.local.log.ms"
_LOCAL_BYTES: Final = "leader.election.eligible.local.log.bytes"
_TIERED: Final = "remote.storage.enable"
_MIN_ISR: Final = "min.insync.replicas"


class _Elr(NamedTuple):
    """The replicas that DescribeTopicPartitions names and Metadata does not (KIP-966)."""

    eligible: Sequence[int]
    last_known: Sequence[int]


class _Move(NamedTuple):
    """A reassignment that is under way."""

    adding: Sequence[int]
    removing: Sequence[int]


async def describe(
    client: ClusterClient, names: Sequence[str], *, has_internal: bool = True
) -> list[Description]:
    """The partitions of these topics, or of all, with or without internal ones. Raises ClusterError."""
    return await _Cluster(client).describe(names, has_internal=has_internal)


class _Cluster:
    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    async def describe(self, names: Sequence[str], *, has_internal: bool) -> list[Description]:
        found = await existing_topics(self._client, names)
        topics = {
            topic.name: topic
            for topic in found.topics
            if topic.name is not None
            and not topic.error_code
            and (names or has_internal or not is_internal(topic))
        }
        ids = {name: topic.topic_id for name, topic in topics.items()}
        partitions = {
            TopicPartition(name, row.partition_index): row
            for name, topic in topics.items()
            for row in topic.partitions
        }
        settings = await self._settings(list(topics))
        elr = await self._elr(list(topics))
        moves = await self._moves(partitions)
        logs = await self._logs(found, partitions, ids, settings)
        racks = {each.node_id: each.rack for each in found.brokers}
        return [
            _description(each, row, settings[each.topic], elr.get(each), moves.get(each), logs, racks)
            for each, row in sorted(partitions.items())
        ]

    async def _ask(self, request: Request, expected: type[R]) -> R | None:
        """Return a broker's response; None: it does not serve the API, or the user is not authorized."""
        try:
            return await self._client.ask_any(request, expected)
        except KafkaError:
            return None

    async def _settings(self, names: Sequence[str]) -> dict[str, TopicSettings]:
        keys = [_TIERED, _MIN_ISR, _EARLY, _THRESHOLD, _LOCAL_MS, _LOCAL_BYTES]
        resources = [
            DescribeConfigsResource(resource_type=_TOPIC, resource_name=name, configuration_keys=keys)
            for name in names
        ]
        found = await self._ask(DescribeConfigsRequest(resources=resources), DescribeConfigsResponse)
        results = [] if found is None else found.results
        values = {
            result.resource_name: {each.name: each.value for each in result.configs}
            for result in results
            if not result.error_code
        }
        return {name: settings_of(values.get(name, {})) for name in names}

    async def _elr(self, names: Sequence[str]) -> dict[TopicPartition, _Elr]:
        found: dict[TopicPartition, _Elr] = {}
        cursor: Cursor | None = None
        while names:
            request = DescribeTopicPartitionsRequest(
                topics=[TopicRequest(name=name) for name in sorted(names)], cursor=cursor
            )
            response = await self._ask(request, DescribeTopicPartitionsResponse)
            if response is None:
                break
            for topic in response.topics:
                for row in topic.partitions:
                    if topic.name is not None and row.eligible_leader_replicas is not None:
                        found[TopicPartition(topic.name, row.partition_index)] = _Elr(
                            row.eligible_leader_replicas, row.last_known_elr or ()
                        )
            if (cursor := response.next_cursor) is None:
                break
        return found

    async def _moves(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, _Move]:
        topics: dict[str, ListPartitionReassignmentsTopics] = {}
        for name, index in partitions:
            topics.setdefault(name, ListPartitionReassignmentsTopics(name=name)).partition_indexes.append(
                index
            )
        response = await self._ask(
            ListPartitionReassignmentsRequest(
                topics=list(topics.values()), timeout_ms=self._client.timeout_ms
            ),
            ListPartitionReassignmentsResponse,
        )
        return {
            TopicPartition(topic.name, row.partition_index): _Move(row.adding_replicas, row.removing_replicas)
            for topic in ([] if response is None else response.topics)
            for row in topic.partitions
        }

    async def _logs(
        self,
        found: MetadataResponse,
        partitions: Mapping[TopicPartition, MetadataResponsePartition],
        ids: Mapping[str, UUID],
        settings: Mapping[str, TopicSettings],
    ) -> dict[tuple[int, TopicPartition], Reported]:
        """Return the reported logs by broker id and partition, of the brokers that the metadata names."""
        asked: dict[int, list[Asked]] = {}
        for each, row in partitions.items():
            needs_timestamp = settings[each.topic].preference.eligible_local_ms is not None
            for broker_id in row.replica_nodes:
                asked.setdefault(broker_id, []).append(Asked(each, ids[each.topic], needs_timestamp))
        alive = [broker for broker in found.brokers if broker.node_id in asked]
        reports = await asyncio.gather(
            *(self._of_broker((broker.host, broker.port), asked[broker.node_id]) for broker in alive)
        )
        return {
            (broker.node_id, each): reported
            for broker, by_partition in zip(alive, reports, strict=True)
            for each, reported in by_partition.items()
        }

    async def _of_broker(self, address: Address, replicas: Sequence[Asked]) -> dict[TopicPartition, Reported]:
        async def ask(_: ApiKey, message: Request, versions: range) -> Response:
            return await self._client.request(
                address, message, Response, versions=versions, timeout_s=_BROKER_TIMEOUT_S
            )

        try:
            return await replica_reports(ask, replicas)
        except (BrokerUnreachable, KafkaError) as error:
            return {each.topic_partition: Reported(ReplicaLog(), str(error)) for each in replicas}


def settings_of(values: Mapping[str, str | None]) -> TopicSettings:
    """The configurations of a topic by name; Kafka's brokers have none of KIP-1303."""
    min_isr = values.get(_MIN_ISR)
    preference = NO_PREFERENCE
    if values.get(_TIERED) == "true":
        preference = LeaderPreference(
            prefers_early_start=values.get(_EARLY) == "true",
            start_offset_threshold=int(values.get(_THRESHOLD) or NO_PREFERENCE.start_offset_threshold),
            eligible_local_ms=_bound(values.get(_LOCAL_MS)),
            eligible_local_bytes=_bound(values.get(_LOCAL_BYTES)),
        )
    return TopicSettings(preference=preference, min_isr=None if min_isr is None else int(min_isr))


def _bound(text: str | None) -> int | None:
    return None if text is None or int(text) < 0 else int(text)


def _description(
    topic_partition: TopicPartition,
    row: MetadataResponsePartition,
    settings: TopicSettings,
    elr: _Elr | None,
    move: _Move | None,
    logs: Mapping[tuple[int, TopicPartition], Reported],
    racks: Mapping[int, str | None],
) -> Description:
    offline = {*row.offline_replicas, *(set(row.replica_nodes) - racks.keys())}
    not_alive = Reported(ReplicaLog(), None)
    reported = {each: logs.get((each, topic_partition), not_alive) for each in row.replica_nodes}
    return Description(
        topic_partition=topic_partition,
        leader=row.leader_id if row.leader_id >= 0 else None,
        leader_epoch=row.leader_epoch,
        replicas=[
            Replica(
                broker_id=each,
                rack=racks.get(each),
                is_offline=each in offline,
                is_adding=move is not None and each in move.adding,
                is_removing=move is not None and each in move.removing,
                log=reported[each].log,
                problem=reported[each].problem,
            )
            for each in row.replica_nodes
        ],
        isr=row.isr_nodes,
        elr=None if elr is None else elr.eligible,
        last_known_elr=() if elr is None else elr.last_known,
        settings=settings,
    )
