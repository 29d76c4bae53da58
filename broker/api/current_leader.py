"""Leader discovery: rows with NOT_LEADER_OR_FOLLOWER contain the current leader and its endpoint (KIP-951)."""

from collections.abc import Iterable
from typing import Any, TypeVar
from uuid import UUID

from ottla.broker.replicas.hosted_partitions import PartitionKey
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.messages import fetch, produce

Leader = TypeVar("Leader", produce.LeaderIdAndEpoch, fetch.LeaderIdAndEpoch)
Endpoint = TypeVar("Endpoint", produce.NodeEndpoint, fetch.NodeEndpoint)


def name_leaders(
    rows: Iterable[tuple[PartitionKey, Any]],
    context: RequestContext,
    broker: BrokerServices,
    *,
    leader: type[Leader],
    endpoint: type[Endpoint],
) -> list[Endpoint]:
    """Set `current_leader` in each of these rows; returns the endpoints of the available leaders.

    `leader` and `endpoint` are the response's own structs. Unknown values stay unset.
    """
    endpoints: dict[int, Endpoint] = {}
    for (topic, index), row in rows:
        leader_id, leader_epoch = _leader_of(broker, topic, index)
        row.current_leader = leader(leader_id=leader_id, leader_epoch=leader_epoch)
        registration = broker.metadata.broker(leader_id)
        if registration is None or not broker.metadata.is_available(leader_id, context.listener_name):
            continue
        where = registration.endpoints[context.listener_name]
        endpoints[leader_id] = endpoint(
            node_id=leader_id, host=where.host, port=where.port, rack=registration.rack
        )
    return list(endpoints.values())


def _leader_of(broker: BrokerServices, topic: str | UUID, index: int) -> tuple[int, int]:
    """Return leader and leader epoch as on the wire: -1 for none."""
    hosted = broker.replicas.hosted.get((topic, index))
    if hosted is not None:
        return -1 if hosted.leader_id is None else hosted.leader_id, hosted.leader_epoch
    metadata = broker.metadata
    image = metadata.topic(topic) if isinstance(topic, str) else metadata.topic_by_id(topic)
    partition = image.partitions.get(index) if image is not None else None
    if partition is None:
        return -1, -1
    return -1 if partition.leader is None else partition.leader, partition.leader_epoch
