"""Overview: the health of the cluster with its reasons, its brokers and controllers, and what this node does."""

from collections.abc import Iterator
from typing import Any, Final

from ottla import VERSION
from ottla.broker.page.query import CannotShow, Query
from ottla.broker.page.sources import Sources
from ottla.broker.page.tally import Tallied
from ottla.broker.reports.health import Cluster, status_row
from ottla.metadata.image import BrokerImage
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionData,
    PartitionDataResponse,
    ReplicaState,
    TopicData,
)

_METADATA_TOPIC: Final = "__cluster_metadata"


async def overview(sources: Sources, query: Query) -> dict[str, Any]:
    """The health of the cluster, its brokers and controllers, and what this node does now."""
    query.check_all_read()
    tallied = await sources.tally.current()
    brokers = sorted(sources.broker.metadata.image.brokers.values())
    quorum = await described_quorum(sources)
    cluster = Cluster(
        cluster_id=sources.broker.cluster_id,
        alive=[each.broker_id for each in brokers if not each.is_fenced],
        fenced=[each.broker_id for each in brokers if each.is_fenced],
        quorum=quorum,
        partitions=tallied.partitions,
    )
    health = status_row(cluster)
    return {
        "level": health["level"],
        "sentence": health["sentence"],
        "reasons": health["reasons"],
        "cluster_id": cluster.cluster_id,
        "node": {"id": sources.broker.node_id, "version": VERSION},
        "brokers": [
            *(_broker(sources, each, tallied) for each in brokers),
            *(_missing(each, tallied) for each in cluster.missing),
        ],
        "controllers": list(_controllers(quorum)),
        "totals": {
            "topics": len(tallied.topics),
            "partitions": tallied.partitions.count,
            **{
                state.replace(" ", "_").replace("-", "_"): count
                for state, count in tallied.partitions.states.items()
            },
        },
        "rates": await sources.rates.current(),
    }


async def described_quorum(sources: Sources) -> PartitionDataResponse:
    """The metadata quorum; with leader -1 if this broker has no controller to ask."""
    topic = TopicData(topic_name=_METADATA_TOPIC, partitions=[PartitionData(partition_index=0)])
    try:
        response = await sources.ask(
            sources.broker.node_id, DescribeQuorumRequest(topics=[topic]), DescribeQuorumResponse
        )
    except CannotShow:
        return PartitionDataResponse(leader_id=-1)
    rows = [row for topic in response.topics for row in topic.partitions]
    if response.error_code or not rows or rows[0].error_code != ErrorCode.none:
        return PartitionDataResponse(leader_id=-1)
    return rows[0]


def _broker(sources: Sources, broker: BrokerImage, tallied: Tallied) -> dict[str, Any]:
    address = sources.address_of(broker.broker_id)
    return {
        "id": broker.broker_id,
        "state": "fenced" if broker.is_fenced else "leaving" if broker.in_controlled_shutdown else "alive",
        "address": None if address is None else "{}:{}".format(*address),
        "rack": broker.rack,
        "leaders": tallied.leaders[broker.broker_id],
        "replicas": tallied.partitions.replicas[broker.broker_id],
        "offline_replicas": tallied.partitions.offline[broker.broker_id],
        "log_dirs": len(broker.log_dirs),
    }


def _missing(broker_id: int, tallied: Tallied) -> dict[str, Any]:
    count = tallied.partitions.replicas[broker_id]
    return {
        "id": broker_id, "state": "not alive", "address": None, "rack": None, "leaders": 0, "replicas": count,
        "offline_replicas": count, "log_dirs": 0,
    }  # fmt: skip


def _controllers(quorum: PartitionDataResponse) -> Iterator[dict[str, Any]]:
    """The voters and observers of the metadata quorum, with what they lack of its log."""
    leader = next((each for each in quorum.current_voters if each.replica_id == quorum.leader_id), None)
    for role, replicas in (("voter", quorum.current_voters), ("observer", quorum.observers)):
        for each in replicas:
            yield {
                "id": each.replica_id,
                "role": "active" if each.replica_id == quorum.leader_id else role,
                "epoch": quorum.leader_epoch,
                "log_end_offset": None if each.log_end_offset < 0 else each.log_end_offset,
                "lag": _lag(each, leader),
                "caught_up_ms_ago": _age(each, leader),
            }


def _lag(replica: ReplicaState, leader: ReplicaState | None) -> int | None:
    if leader is None or replica.log_end_offset < 0:
        return None
    return leader.log_end_offset - replica.log_end_offset


def _age(replica: ReplicaState, leader: ReplicaState | None) -> int | None:
    if leader is None or replica.last_caught_up_timestamp < 0:
        return None
    return max(0, leader.last_caught_up_timestamp - replica.last_caught_up_timestamp)
