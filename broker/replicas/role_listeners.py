"""Listeners of replicas' roles: coordinators, and what copies logs to a remote tier (KIP-405), are notified of changes.

Source: the listeners of BrokerMetadataPublisher.updateCoordinator (onElection and onResignation of Kafka's
GroupCoordinator, TransactionCoordinator and ShareCoordinator); the calls of RemoteLogManager.onLeadershipChange and
stopPartitions in ReplicaManager of Kafka 4.3.1.
"""

from typing import Protocol

from ottla.broker.replicas.partition import Partition
from ottla.protocol.types import TopicPartition


class LeadershipListener(Protocol):
    """Notified of every partition of this broker, of any topic, before anything else happens to its log."""

    def on_election(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """This broker leads the partition, in a new epoch; it may have led it in the one before, with the same log."""

    def on_resignation(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """This broker led the partition in this epoch, and does not any more: another one does, or it is deleted."""


class TierListener(Protocol):
    """Notified of every replica on this broker, of any topic. Must not raise, nor wait."""

    def on_role(self, partition: Partition) -> None:
        """Notify that the partition leads or follows in its present leader epoch, or its topic's
        configuration has changed.
        """

    def on_stopped(self, partition: Partition, *, is_topic_deleted: bool) -> None:
        """Notify that the replica is not on this broker any more, or is offline."""


class NoTier:
    """The tier listener of a broker without a remote tier (`remote.log.storage.system.enable=false`)."""

    def on_role(self, partition: Partition) -> None:
        """Ignore the role: there is no remote tier."""

    def on_stopped(self, partition: Partition, *, is_topic_deleted: bool) -> None:
        """Ignore the removal: there is no remote tier."""
