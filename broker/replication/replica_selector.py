"""Replica selector: chooses a consumer's preferred read replica (KIP-392), for each fetch that names a rack.

`replica.selector.class` names the selector: Kafka's two by their Java names, a Python class as `package.module.Class`,
or an entry point of the group `ottla.replica_selectors` in an installed package. A custom selector has one method:

    class Cheapest:
        def select(self, topic_partition, client, partition):
            return min(partition.replicas, key=lambda replica: price_of(client.rack, replica.rack))

It is created once, without arguments (`configure(configs)` is called if it exists). `select` is called on the event
loop and must not block. An exception from it is logged, and the leader serves the fetch.

Source: KIP-392; ReplicaSelector, RackAwareReplicaSelector and ReplicaManager.findPreferredReadReplica of Kafka 4.3.1.
"""

import importlib
import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from protocol.types import TopicPartition


@dataclass(slots=True, frozen=True, kw_only=True)
class ClientMetadata:
    """The consumer that fetches."""

    rack: str
    client_id: str
    client_address: str
    principal: str
    listener_name: str


@dataclass(slots=True, frozen=True, kw_only=True)
class ReplicaView:
    """A replica that has the fetch offset."""

    broker_id: int
    #: None if its broker has no rack, or is not reachable over the client's listener.
    rack: str | None
    is_reachable: bool
    log_end_offset: int
    #: Time since its log last reached the leader's log end; 0 for the leader.
    ms_since_caught_up: int


@dataclass(slots=True, frozen=True, kw_only=True)
class PartitionView:
    """The replicas to choose from: the leader first, then followers by broker id."""

    replicas: Sequence[ReplicaView]
    leader: ReplicaView


class ReplicaSelector(Protocol):
    """Chooses a replica; None leaves the consumer with the leader."""

    def select(
        self, topic_partition: TopicPartition, client: ClientMetadata, partition: PartitionView
    ) -> ReplicaView | None:
        """One of `partition.replicas`, or None."""


class LeaderSelector:
    """Always the leader, which is also the behaviour without a selector."""

    def select(
        self, topic_partition: TopicPartition, client: ClientMetadata, partition: PartitionView
    ) -> ReplicaView | None:
        """The leader."""
        return partition.leader


class RackAwareReplicaSelector:
    """A replica in the consumer's rack: the leader if it is there, else the one with the largest log end offset."""

    def select(
        self, topic_partition: TopicPartition, client: ClientMetadata, partition: PartitionView
    ) -> ReplicaView | None:
        """The leader where no replica shares the rack."""
        if not client.rack:
            return partition.leader
        near = [replica for replica in partition.replicas if replica.rack == client.rack]
        if not near or partition.leader in near:
            return partition.leader
        # The largest log end offset; then the most recently caught up; then the largest id, as in Kafka's comparator.
        return max(
            near, key=lambda replica: (replica.log_end_offset, -replica.ms_since_caught_up, replica.broker_id)
        )


_ENTRY_POINTS: Final = "ottla.replica_selectors"
_KAFKAS: Final[Mapping[str, type[ReplicaSelector]]] = {
    "org.apache.kafka.common.replica.LeaderSelector": LeaderSelector,
    "org.apache.kafka.common.replica.RackAwareReplicaSelector": RackAwareReplicaSelector,
}


class UnknownSelector(ValueError):
    """replica.selector.class does not name a usable class."""


def load_selector(name: str | None, configs: Mapping[str, object]) -> ReplicaSelector | None:
    """The selector that `replica.selector.class` names; None if it is not set. Raises UnknownSelector.

    The name comes from the node's own properties file, never from a client or a dynamic configuration.
    """
    if not name:
        return None
    kind = _KAFKAS.get(name)
    if kind is None:
        kind = _imported(name)
    selector = kind()
    configure = getattr(selector, "configure", None)
    if configure is not None:
        configure(configs)
    return selector


def _imported(name: str) -> type[ReplicaSelector]:
    module, _, attribute = name.rpartition(".")
    try:
        offers = importlib.metadata.entry_points(group=_ENTRY_POINTS, name=name)
        found = next(iter(offers)).load() if offers else getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownSelector(
            f"replica.selector.class={name} cannot be imported ({error}). Name a Python class as "
            f"package.module.Class, an entry point of the group {_ENTRY_POINTS}, or one of {', '.join(_KAFKAS)}."
        ) from error
    if not callable(getattr(found, "select", None)):
        raise UnknownSelector(f"replica.selector.class={name} has no method `select`.")
    kind: type[ReplicaSelector] = found
    return kind
