"""Replica selector: chooses a consumer's preferred read replica (KIP-392), for each fetch that names a rack.

`replica.selector.class` names the selector: Kafka's two by their Java names, `LocalAwareRackReplicaSelector`, a Python
class as `package.module.Class`, or an entry point of the group `ottla.replica_selectors` in an installed
package. A custom selector has one method:

    class Cheapest:
        def select(self, topic_partition, client, partition):
            return min(partition.replicas, key=lambda replica: price_of(client.rack, replica.rack))

It is created once, without arguments (`configure(configs)` is called if it exists). `select` is called on the event
loop and must not block. An exception from it is logged, and the leader serves the fetch. Where the followers'
local logs start is known if the class has `uses_local_logs = True` (all brokers of a cluster have the same
selector: each reports its own to the leaders it follows), or if the topic's elections use it, too (KIP-1303).

Source: KIP-392; ReplicaSelector, RackAwareReplicaSelector and ReplicaManager.findPreferredReadReplica of Kafka 4.3.1.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ottla.protocol.types import TopicPartition


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
    #: None: unknown, as of a follower that has not reported it.
    local_log_start_offset: int | None = None

    def has_locally(self, offset: int) -> bool:
        """Whether it reads this offset from its own disk rather than from the remote tier, as far as is known."""
        return self.local_log_start_offset is None or self.local_log_start_offset <= offset


@dataclass(slots=True, frozen=True, kw_only=True)
class PartitionView:
    """The replicas to choose from: the leader first, then followers by broker id."""

    replicas: Sequence[ReplicaView]
    leader: ReplicaView
    fetch_offset: int


class ReplicaSelector(Protocol):
    """Chooses a replica; None leaves the consumer with the leader."""

    def select(
        self, topic_partition: TopicPartition, client: ClientMetadata, partition: PartitionView
    ) -> ReplicaView | None:
        """Select one of `partition.replicas`; None leaves the choice to the leader."""


class LeaderSelector:
    """Always chooses the leader, which is also the behaviour without a selector."""

    def select(
        self, topic_partition: TopicPartition, client: ClientMetadata, partition: PartitionView
    ) -> ReplicaView | None:
        """Return the leader of the partition."""
        return partition.leader


class RackAwareReplicaSelector:
    """Chooses a replica in the consumer's rack: the leader if it is there, else that with the largest log end."""

    def select(
        self, topic_partition: TopicPartition, client: ClientMetadata, partition: PartitionView
    ) -> ReplicaView | None:
        """Return the most complete replica in the consumer's rack; the leader if the rack has none."""
        return _most_complete(_in_rack(client, partition), partition)


class LocalAwareRackReplicaSelector:
    """Chooses a replica in the consumer's rack that has the fetch offset in its local log, if there is one.

    Among several it chooses as RackAwareReplicaSelector does.

    If no replica in the rack has it locally, one that reads it from the remote tier is preferred to one in another rack
    that has it on disk. The consumer reads old records, and usually many: the leader's rack would send it
    every byte, which is the traffic that racks are configured to avoid, while an object store is as near to
    one rack as to another, and its latency is paid once for each chunk that is read ahead. An unknown local
    log start counts as "has it", so that without reports this is RackAwareReplicaSelector.

    Not in Kafka: its RackAwareReplicaSelector may choose a follower that began after the tiered records
    (KIP-1023), although another replica in the rack has them on disk.
    """

    uses_local_logs: Final = True

    def select(
        self, topic_partition: TopicPartition, client: ClientMetadata, partition: PartitionView
    ) -> ReplicaView | None:
        """Return the most complete replica in the rack that has the fetch offset locally; else any in the rack.

        Returns the leader if the rack has none.
        """
        near = _in_rack(client, partition)
        local = [replica for replica in near if replica.has_locally(partition.fetch_offset)]
        return _most_complete(local or near, partition)


def _in_rack(client: ClientMetadata, partition: PartitionView) -> list[ReplicaView]:
    return [replica for replica in partition.replicas if client.rack and replica.rack == client.rack]


def _most_complete(replicas: Sequence[ReplicaView], partition: PartitionView) -> ReplicaView:
    """The leader if it is one of them, or there are none; else the one with the largest log end offset.

    Then the most recently caught up; then the largest id, as in Kafka's comparator.
    """
    if not replicas or partition.leader in replicas:
        return partition.leader
    return max(
        replicas, key=lambda replica: (replica.log_end_offset, -replica.ms_since_caught_up, replica.broker_id)
    )


_ENTRY_POINTS: Final = "ottla.replica_selectors"
_BY_NAME: Final[Mapping[str, type[ReplicaSelector]]] = {
    "org.apache.kafka.common.replica.LeaderSelector": LeaderSelector,
    "org.apache.kafka.common.replica.RackAwareReplicaSelector": RackAwareReplicaSelector,
    "LocalAwareRackReplicaSelector": LocalAwareRackReplicaSelector,
}


class UnknownSelector(ValueError):
    """replica.selector.class does not name a usable class."""


def load_selector(name: str | None, configs: Mapping[str, object]) -> ReplicaSelector | None:
    """The selector that `replica.selector.class` names; None if it is not set. Raises UnknownSelector.

    The name comes from the node's own properties file, never from a client or a dynamic configuration.
    """
    if not name:
        return None
    kind = _BY_NAME.get(name)
    if kind is None:
        kind = _imported(name)
    selector = kind()
    configure = getattr(selector, "configure", None)
    if configure is not None:
        configure(configs)
    return selector


def _imported(name: str) -> type[ReplicaSelector]:
    from importlib.metadata import entry_points  # imported here: 10 ms, also of zip files and mails

    module, _, attribute = name.rpartition(".")
    try:
        offers = entry_points(group=_ENTRY_POINTS, name=name)
        found = next(iter(offers)).load() if offers else getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownSelector(
            f"replica.selector.class={name} cannot be imported ({error}). Name a Python class as "
            f"package.module.Class, an entry point of the group {_ENTRY_POINTS}, or one of {', '.join(_BY_NAME)}."
        ) from error
    if not callable(getattr(found, "select", None)):
        raise UnknownSelector(f"replica.selector.class={name} has no method `select`.")
    kind: type[ReplicaSelector] = found
    return kind
