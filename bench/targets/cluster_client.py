"""Requests of a benchmark to all brokers of a cluster, or the only one: topics, partitions, the quorum."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import Final, Self

from ottla.bench.targets.wire import Address, RequestFailed, WireClient
from ottla.config.config_def import AlterOperation
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from ottla.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionDataResponse,
)
from ottla.protocol.messages.describe_quorum import PartitionData as QuorumPartition
from ottla.protocol.messages.describe_quorum import TopicData as QuorumTopic
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from ottla.protocol.special_timestamps import LATEST

_PATIENCE_S: Final = 120
_POLL_S: Final = 0.02
_TIMEOUT_MS: Final = 60_000
_TOPIC_RESOURCE: Final = 2


class ClusterClient:
    """One connection to each broker, opened when it is first needed."""

    def __init__(
        self, addresses: Mapping[int, Address], *, versions: Mapping[ApiKey, int] = MappingProxyType({})
    ) -> None:
        self._addresses = addresses
        self._versions = versions
        self._open: dict[int, WireClient] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def broker(self, node_id: int) -> WireClient:
        """Return the connection to one broker."""
        if node_id not in self._open:
            host, port = self._addresses[node_id]
            client = WireClient(port, host=host, timeout_s=90, versions=self._versions)
            self._open[node_id] = self._stack.enter_context(client)
        return self._open[node_id]

    @property
    def any_broker(self) -> WireClient:
        """Return the connection to a broker that runs."""
        return self.broker(min(self._addresses))

    # -- the cluster -------------------------------------------------------------------------------

    def is_complete(self) -> bool:
        """Whether every broker knows that all of them are there."""
        request = MetadataRequest(topics=[])
        return all(
            {row.node_id for row in self._ask_metadata(each, request).brokers} == set(self._addresses)
            for each in self._addresses
        )

    def quorum(self) -> PartitionDataResponse:
        """Return DescribeQuorum's row of the metadata partition. Raises RequestFailed."""
        topic = QuorumTopic(topic_name="__cluster_metadata", partitions=[QuorumPartition()])
        request = DescribeQuorumRequest(topics=[topic])
        response = self.any_broker.request(ApiKey.DESCRIBE_QUORUM, request, DescribeQuorumResponse)
        if response.error_code or response.topics[0].partitions[0].error_code:
            raise RequestFailed(f"DescribeQuorum: {response}")
        return response.topics[0].partitions[0]

    # -- topics ------------------------------------------------------------------------------------

    def create_topic(self, name: str, *, partitions: int, replication_factor: int = 3) -> None:
        """Create the topic; wait until each broker sees all replicas in the ISRs, and all leaders serve."""

        def is_placed() -> bool:
            try:
                self.ask_for_topic(name, partitions=partitions, replication_factor=replication_factor)
            except RequestFailed as error:
                # A broker that has just started answers before the controller may place replicas on it.
                if error.code == ErrorCode.invalid_replication_factor:
                    return False
                raise
            return True

        _wait(is_placed, f"brokers for {name}")
        for node_id in self._addresses:
            self.wait_for_isr(name, partitions=partitions, size=replication_factor, asking=node_id)
        # Kafka's leader names itself in Metadata before it has the log.
        self.wait_until_served(name)

    def ask_for_topic(self, name: str, *, partitions: int, replication_factor: int = 3) -> None:
        """Create the topic, without waiting for its leaders. Raises RequestFailed."""
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replication_factor)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)
        row = self.any_broker.request(ApiKey.CREATE_TOPICS, request, CreateTopicsResponse).topics[0]
        if row.error_code:
            words = f"{name}: {ErrorCode(row.error_code).name} {row.error_message}"
            raise RequestFailed(words, row.error_code)

    def delete_topic(self, name: str) -> None:
        """Delete the topic, and wait until no broker knows it."""
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=_TIMEOUT_MS)
        row = self.any_broker.request(ApiKey.DELETE_TOPICS, request, DeleteTopicsResponse).responses[0]
        if row.error_code:
            raise RequestFailed(f"{name}: {ErrorCode(row.error_code).name}")
        _wait(
            lambda: not any(self.partitions(name, asking=each) for each in self._addresses), f"{name} to go"
        )

    def partitions(self, name: str, *, asking: int | None = None) -> dict[int, MetadataResponsePartition]:
        """Return the partitions of a topic as one broker sees them; none while it does not know the topic."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        topic = self._ask_metadata(min(self._addresses) if asking is None else asking, request).topics[0]
        return {row.partition_index: row for row in topic.partitions}

    def leader(self, name: str, index: int = 0) -> int:
        """The leader of a partition; -1: none."""
        return self.partitions(name)[index].leader_id

    def wait_for_isr(self, name: str, *, partitions: int, size: int, asking: int | None = None) -> None:
        """Wait until a broker reports leaders for all partitions, and `size` replicas in each ISR.

        Raises TimeoutError.
        """

        def is_so() -> bool:
            rows = self.partitions(name, asking=asking).values()
            return len(rows) == partitions and all(
                row.leader_id >= 0 and len(row.isr_nodes) == size for row in rows
            )

        _wait(is_so, f"{name}'s ISRs")

    def wait_until_served(self, name: str) -> None:
        """Wait until every leader answers for its partitions, so that it has their logs. Raises TimeoutError."""

        def is_so() -> bool:
            try:
                self.record_count(name)
            except RequestFailed:
                return False
            return True

        _wait(is_so, f"{name}'s leaders")

    def record_count(self, name: str) -> int:
        """Return the sum of the high watermarks of a topic's partitions, as their leaders return them."""
        return sum(self.offsets(name, LATEST).values())

    def offsets(self, name: str, timestamp: int) -> dict[int, int]:
        """Return the offset of each partition for a special timestamp of ListOffsets. Raises RequestFailed."""
        by_leader: dict[int, list[int]] = {}
        for index, row in self.partitions(name).items():
            by_leader.setdefault(row.leader_id, []).append(index)
        found: dict[int, int] = {}
        for leader, indexes in by_leader.items():
            found |= self._offsets_at(leader, name, indexes, timestamp)
        return found

    def _offsets_at(self, leader: int, name: str, indexes: list[int], timestamp: int) -> dict[int, int]:
        asked = [ListOffsetsPartition(partition_index=index, timestamp=timestamp) for index in indexes]
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=asked)], timeout_ms=_TIMEOUT_MS
        )
        response = self.broker(leader).request(ApiKey.LIST_OFFSETS, request, ListOffsetsResponse)
        rows = response.topics[0].partitions
        if any(row.error_code for row in rows):
            raise RequestFailed(f"ListOffsets: {rows}")
        return {row.partition_index: row.offset for row in rows}

    def alter_topic(self, name: str, configs: Mapping[str, str]) -> None:
        """Set these configurations of a topic. Raises RequestFailed."""
        altered = [
            AlterableConfig(name=key, config_operation=AlterOperation.SET, value=value)
            for key, value in configs.items()
        ]
        resource = AlterConfigsResource(resource_type=_TOPIC_RESOURCE, resource_name=name, configs=altered)
        request = IncrementalAlterConfigsRequest(resources=[resource])
        response = self.any_broker.request(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, request, IncrementalAlterConfigsResponse
        )
        row = response.responses[0]
        if row.error_code:
            raise RequestFailed(f"{name}: {ErrorCode(row.error_code).name} {row.error_message}")

    def elect_preferred(self, name: str) -> None:
        """Let the preferred replica of each partition lead (KIP-183). Raises RequestFailed."""
        asked = [TopicPartitions(topic=name, partitions=sorted(self.partitions(name)))]
        request = ElectLeadersRequest(topic_partitions=asked, timeout_ms=_TIMEOUT_MS)
        response = self.any_broker.request(ApiKey.ELECT_LEADERS, request, ElectLeadersResponse)
        errors = {response.error_code} | {
            row.error_code for topic in response.replica_election_results for row in topic.partition_result
        }
        # Where the preferred replica leads already, there is nothing to elect.
        if errors := errors - {0, ErrorCode.election_not_needed}:
            raise RequestFailed(f"{name}: {', '.join(ErrorCode(code).name for code in sorted(errors))}")

    def _ask_metadata(self, node_id: int, request: MetadataRequest) -> MetadataResponse:
        return self.broker(node_id).request(ApiKey.METADATA, request, MetadataResponse)


def _wait(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_PATIENCE_S} s for {what}")
        time.sleep(_POLL_S)
