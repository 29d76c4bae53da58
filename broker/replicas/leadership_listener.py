"""Leadership listener: coordinators, and what copies logs to a second tier, are notified of each partition.

Source: the listeners of BrokerMetadataPublisher.updateCoordinator: onElection and onResignation of Kafka's
GroupCoordinator, TransactionCoordinator and ShareCoordinator.
"""

from typing import Protocol

from ottla.protocol.types import TopicPartition


class LeadershipListener(Protocol):
    """Notified of every partition of this broker, of any topic, before anything else happens to its log."""

    def on_election(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """This broker leads the partition, in a new epoch; it may have led it in the one before, with the same log."""

    def on_resignation(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """This broker led the partition in this epoch, and does not any more: another one does, or it is deleted."""
