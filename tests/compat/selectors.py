"""A replica selector as an operator of Ottla may write one: brokers import it by its dotted path."""

from ottla.protocol.types import TopicPartition
from ottla.replication.replica_selector import (
    ClientMetadata,
    PartitionView,
    RackAwareReplicaSelector,
    ReplicaView,
)

#: The names of clients that are treated in a way of their own.
INDIFFERENT, CURSED = "indifferent", "cursed"


class Nearest(RackAwareReplicaSelector):
    """The replica in the client's rack, unless the client's name asks for trouble."""

    def select(
        self, topic_partition: TopicPartition, client: ClientMetadata, partition: PartitionView
    ) -> ReplicaView | None:
        if client.client_id == CURSED:
            raise RuntimeError("this selector has a bug")
        return None if client.client_id == INDIFFERENT else super().select(topic_partition, client, partition)
