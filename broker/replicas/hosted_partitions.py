"""Hosted partitions of this broker, by topic name and by topic id (ReplicaManager.allPartitions).

    none --the log is created--> online --its log directory fails--> offline
    online, offline --the topic is deleted, or the replica moves away--> none

A request for a partition that is not online gets the error that its client needs: another broker, a retry, or none.

Source: Kafka's HostedPartition, and ReplicaManager.getPartitionOrException.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.replicas.partition import Partition
from ottla.metadata.image import TopicImage
from ottla.protocol.errors import (
    InconsistentTopicId,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from ottla.protocol.kafka_uuid import to_text
from ottla.protocol.types import TopicPartition

#: The key of a partition in requests: (topic name or topic id, partition index).
PartitionKey = tuple[str | UUID, int]


class HostedPartitions:
    """The table of partitions that this broker hosts, online or offline, by topic name and by topic id.

    Invariant: a partition is online or offline under both of its keys, or under none.
    """

    __slots__ = ("_is_being_created", "_metadata", "_node_id", "_offline", "by_key", "get")

    def __init__(
        self, *, node_id: int, metadata: MetadataCache, is_being_created: Callable[[TopicPartition], bool]
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._is_being_created = is_being_created
        #: Each online partition twice: by (topic name, index) and by (topic id, index).
        self.by_key: dict[PartitionKey, Partition] = {}
        #: The online partition of a key; None if it is not online.
        self.get = self.by_key.get
        #: Partitions that have no log because of a failing disk; the log directory if the log was open.
        self._offline: dict[PartitionKey, Path | None] = {}

    def __iter__(self) -> Iterator[Partition]:
        """Iterate over the online partitions, each once."""
        return (partition for key, partition in self.by_key.items() if isinstance(key[0], str))

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """The partition, if it is online (getPartitionOrException). Raises `missing_partition_error`."""
        found = self.get(topic_partition)
        if found is None:
            raise self.missing_partition_error(topic_partition)
        return found

    def missing_partition_error(self, key: PartitionKey, *, known_name: str | None = None) -> KafkaError:
        """The error of a partition that is not online.

        `known_name` is the last known name of a topic id that does not exist any more: then the error is that of the
        name, and INCONSISTENT_TOPIC_ID if another topic has that name.
        """
        topic, index = key
        if isinstance(topic, str):
            image = self._metadata.topic(topic)
        else:
            image = self._metadata.topic_by_id(topic)
            if image is None:
                return self._deleted_topic_error(topic, known_name, index)
        if image is None or index not in image.partitions:
            return UnknownTopicOrPartition(f"There is no partition {topic}-{index}")
        if key in self._offline:
            return KafkaStorageError(f"{topic}-{index} is in an offline log directory")
        if self._is_being_created(TopicPartition(image.name, index)):
            return NotLeaderOrFollower(f"The log of {image.name}-{index} is being created")
        return NotLeaderOrFollower(f"{topic}-{index} has no replica on broker {self._node_id}")

    def _deleted_topic_error(self, topic_id: UUID, name: str | None, index: int) -> KafkaError:
        if name is None:
            return UnknownTopicId(f"No topic has the id {to_text(topic_id)}")
        if (name, index) in self.by_key:
            return InconsistentTopicId(f"{name} has another id than {to_text(topic_id)}")
        return self.missing_partition_error((name, index))

    def add(self, partition: Partition) -> None:
        """Add a partition, which is online since its log is open."""
        # The log of a deleted topic is not that of a new one with its name.
        assert partition.log.topic_id in (None, partition.topic_id), (str(partition), partition.log.topic_id)
        for key in _keys(partition.topic_partition, partition.topic_id):
            assert key not in self.by_key, key
            self._offline.pop(key, None)
            self.by_key[key] = partition

    def remove(self, topic: TopicImage, index: int) -> Partition | None:
        """Remove a partition that this broker no longer hosts; returns it if it was online."""
        by_name, by_id = _keys(TopicPartition(topic.name, index), topic.topic_id)
        self._offline.pop(by_name, None)
        self._offline.pop(by_id, None)
        partition = self.by_key.pop(by_id, None)
        if partition is not None:
            removed = self.by_key.pop(by_name)
            assert removed is partition, by_name
        return partition

    def take_offline(self, partition: Partition, log_dir: Path) -> None:
        """The log directory of an online partition has failed."""
        for key in _keys(partition.topic_partition, partition.topic_id):
            removed = self.by_key.pop(key)
            assert removed is partition, key
            self._offline[key] = log_dir

    def add_offline(self, topic: TopicImage, index: int) -> bool:
        """The partition's log could not be created or opened; whether it was not known to be offline."""
        is_new = (topic.name, index) not in self._offline
        for key in _keys(TopicPartition(topic.name, index), topic.topic_id):
            assert key not in self.by_key, key
            self._offline.setdefault(key)
        return is_new

    @property
    def offline_count(self) -> int:
        """The number of offline partitions."""
        assert len(self._offline) % 2 == 0, "a partition is offline under both of its keys"
        return len(self._offline) // 2

    def offline_places(self) -> list[tuple[UUID, int]]:
        """(topic id, index) of each offline partition."""
        return [(topic, index) for topic, index in self._offline if isinstance(topic, UUID)]

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition has no log because of a failing disk."""
        return topic_partition in self._offline

    def offline_directory(self, topic_partition: TopicPartition) -> Path | None:
        """The failed log directory of an offline partition whose log was open; else None."""
        return self._offline.get(topic_partition)


def _keys(topic_partition: TopicPartition, topic_id: UUID) -> tuple[PartitionKey, PartitionKey]:
    return topic_partition, (topic_id, topic_partition.partition)
