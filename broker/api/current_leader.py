"""Where to go instead: the leader that a NOT_LEADER_OR_FOLLOWER row names, with its address (KIP-951)."""

from dataclasses import dataclass
from uuid import UUID

from broker.broker import Broker


@dataclass(slots=True, frozen=True, kw_only=True)
class CurrentLeader:
    """A partition's leader as far as this broker knows; -1 where it knows none, as on the wire."""

    leader_id: int = -1
    leader_epoch: int = -1


@dataclass(slots=True, frozen=True, kw_only=True)
class LeaderEndpoint:
    """Where a leader listens, under the name of the listener that the request came by."""

    node_id: int
    host: str
    port: int
    rack: str | None


def current_leader(broker: Broker, topic: str | UUID, index: int) -> CurrentLeader:
    """The leader of a partition, hosted here or not."""
    hosted = broker.replicas.hosted.get((topic, index))
    if hosted is not None:
        leader_id = -1 if hosted.leader_id is None else hosted.leader_id
        return CurrentLeader(leader_id=leader_id, leader_epoch=hosted.leader_epoch)
    metadata = broker.metadata
    image = metadata.topic(topic) if isinstance(topic, str) else metadata.topic_by_id(topic)
    partition = image.partitions.get(index) if image is not None else None
    if partition is None:
        return CurrentLeader()
    leader_id = -1 if partition.leader is None else partition.leader
    return CurrentLeader(leader_id=leader_id, leader_epoch=partition.leader_epoch)


def leader_endpoint(broker: Broker, leader_id: int, listener_name: str) -> LeaderEndpoint | None:
    """The address of a leader that is alive and has this listener; else None."""
    if not broker.metadata.is_available(leader_id, listener_name):
        return None
    registration = broker.metadata.broker(leader_id)
    assert registration is not None
    endpoint = registration.endpoints[listener_name]
    return LeaderEndpoint(node_id=leader_id, host=endpoint.host, port=endpoint.port, rack=registration.rack)
