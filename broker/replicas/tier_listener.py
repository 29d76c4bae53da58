"""Tier listener: what copies logs to a remote tier is notified of each replica's role (KIP-405).

Source: the calls of RemoteLogManager.onLeadershipChange and stopPartitions in ReplicaManager of Kafka 4.3.1.
"""

from typing import Protocol

from ottla.broker.replicas.partition import Partition


class TierListener(Protocol):
    """Notified of every replica on this broker, of any topic. Must not raise, nor wait."""

    def on_role(self, partition: Partition) -> None:
        """The partition leads or follows in its present leader epoch, or the configuration of its topic has changed."""

    def on_stopped(self, partition: Partition, *, is_topic_deleted: bool) -> None:
        """The replica is not on this broker any more, or is offline."""


class NoTier:
    """The tier listener of a broker without a remote tier (`remote.log.storage.system.enable=false`)."""

    def on_role(self, partition: Partition) -> None:
        """Ignore the role: there is no remote tier."""

    def on_stopped(self, partition: Partition, *, is_topic_deleted: bool) -> None:
        """Ignore the removal: there is no remote tier."""
