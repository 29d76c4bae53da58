"""Requests of `ottla cluster status`. A part of the cluster that does not answer is a reason, and no failure."""

from collections.abc import Mapping
from typing import Final

from ottla.broker.cli.admin.configs import Resource, described
from ottla.broker.cli.admin.groups import described_groups
from ottla.broker.cli.admin.topic_rows import state_of
from ottla.broker.cluster_client.client import ClusterClient
from ottla.broker.cluster_client.errors import ClusterError
from ottla.broker.cluster_client.topics import leaders_of
from ottla.broker.reports.health import Cluster, GroupLag, PartitionTally
from ottla.metadata.image import ConfigResourceType
from ottla.protocol.errors import ErrorCode, UnsupportedVersion
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionData,
    PartitionDataResponse,
    TopicData,
)
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.protocol.special_timestamps import EARLIEST_PENDING_UPLOAD, LATEST
from ottla.protocol.types import TopicPartition

_METADATA_TOPIC: Final = "__cluster_metadata"
_MIN_ISR: Final = "min.insync.replicas"
#: A broker that has no controller to ask waits for one.
_QUORUM_TIMEOUT_S: Final = 5.0
_TIERED: Final = "remote.storage.enable"


async def status_of(client: ClusterClient, *, max_lag: int | None) -> Cluster:
    """The state of the cluster. Raises ClusterError if no broker answers."""
    metadata = await client.metadata()
    unanswered: list[str] = []
    alive = sorted(each.node_id for each in metadata.brokers)
    cluster_id, fenced = metadata.cluster_id or "", list[int]()
    try:
        request = DescribeClusterRequest(include_fenced_brokers=True)
        found = await client.ask_any(request, DescribeClusterResponse, versions=range(2, 3))
        fenced = sorted(each.broker_id for each in found.brokers if each.is_fenced)
    except UnsupportedVersion:
        pass  # Kafka before 4.0: fenced brokers are missing ones
    min_isr, tiered = await _settings(client, metadata)
    groups: list[GroupLag] = []
    try:
        groups = [
            GroupLag(group=each.listed.group, lag=each.lag, members_count=len(each.members))
            for each in await described_groups(client, [])
        ]
    except ClusterError as error:
        unanswered.append(f"the groups are not known ({str(error).rstrip('.')})")
    not_copied: Mapping[TopicPartition, int | None] = {}
    try:
        not_copied = await _not_copied(client, metadata, tiered)
    except ClusterError as error:
        unanswered.append(f"the remote tier is not known ({str(error).rstrip('.')})")
    return Cluster(
        cluster_id=cluster_id,
        alive=alive,
        fenced=fenced,
        quorum=await _quorum(client),
        partitions=_tally(metadata, min_isr),
        groups=groups,
        not_copied=not_copied,
        unanswered=unanswered,
        max_lag=max_lag,
    )


def _tally(metadata: MetadataResponse, min_isr: Mapping[str, int]) -> PartitionTally:
    tally = PartitionTally()
    for topic in metadata.topics:
        if topic.name is None:
            continue
        for row in topic.partitions:
            tally.add(
                TopicPartition(topic.name, row.partition_index),
                state_of(row, min_isr=min_isr.get(topic.name)),
                replicas=row.replica_nodes,
                offline=row.offline_replicas,
            )
    return tally


async def _quorum(client: ClusterClient) -> PartitionDataResponse | None:
    """The metadata quorum; with leader -1 if it is not known who leads it."""
    partition = TopicData(topic_name=_METADATA_TOPIC, partitions=[PartitionData(partition_index=0)])
    try:
        response = await client.ask_any(
            DescribeQuorumRequest(topics=[partition]), DescribeQuorumResponse, timeout_s=_QUORUM_TIMEOUT_S
        )
    except UnsupportedVersion:
        return None
    except ClusterError:
        # A broker answers, or there would be no metadata: it waits for a controller.
        return PartitionDataResponse(leader_id=-1)
    rows = [row for topic in response.topics for row in topic.partitions]
    if response.error_code or not rows or rows[0].error_code != ErrorCode.none:
        return PartitionDataResponse(leader_id=-1)
    return rows[0]


async def _settings(client: ClusterClient, metadata: MetadataResponse) -> tuple[dict[str, int], set[str]]:
    """min.insync.replicas by topic, and the tiered topics."""
    names = [each.name for each in metadata.topics if each.name is not None and not each.error_code]
    resources = [Resource(ConfigResourceType.TOPIC, name) for name in names]
    found = await described(client, resources, keys=[_MIN_ISR, _TIERED]) if resources else {}
    min_isr = {
        resource.name: int(configs[_MIN_ISR].value or 1)
        for resource, configs in found.items()
        if _MIN_ISR in configs
    }
    tiered = {
        resource.name
        for resource, configs in found.items()
        if _TIERED in configs and configs[_TIERED].value == "true"
    }
    return min_isr, tiered


async def _not_copied(
    client: ClusterClient, metadata: MetadataResponse, tiered: set[str]
) -> dict[TopicPartition, int | None]:
    led = {each: leader for each, leader in leaders_of(metadata).items() if each.topic in tiered}
    pending = (await client.offsets(led, EARLIEST_PENDING_UPLOAD)).reported()
    ends = (await client.offsets(led, LATEST)).reported()
    return {
        each: None if start is None or end is None else end - start
        for each in led
        for start, end in [(pending[each], ends[each])]
    }
