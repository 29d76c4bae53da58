"""What this broker knows of the cluster: the metadata log's image, and the look-ups that handlers need.

The image is replayed from committed records only (`node.py` feeds it), so an answer may be older than
the controller's state but never ahead of it.
"""

from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from protocol.metadata.image import (
    BrokerImage,
    Endpoint,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from protocol.metadata.records import MetadataRecord
from protocol.types import TopicPartition


class MetadataCache:
    """Read-only look-ups in the image of this broker."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        #: The last offset of the metadata log that the image holds; -1 before the first one.
        self.last_applied_offset = -1
        self._on_change: Callable[[MetadataDelta, MetadataImage], None] | None = None

    def on_change(self, listener: Callable[[MetadataDelta, MetadataImage], None]) -> None:
        """Have `listener` called after each change of the image from now on."""
        assert self._on_change is None
        self._on_change = listener

    def apply(self, records: Sequence[MetadataRecord], end_offset: int) -> None:
        """Replay committed records; `end_offset` is the offset after the last of them."""
        delta = self.image.replay_all(records)
        self.last_applied_offset = end_offset - 1
        if self._on_change is not None:
            self._on_change(delta, self.image)

    def topic(self, name: str) -> TopicImage | None:
        """The topic of this name, or None."""
        return self.image.topics_by_name.get(name)

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        """The topic of this id, or None (KIP-516)."""
        return self.image.topics_by_id.get(topic_id)

    def partition(self, topic_partition: TopicPartition) -> PartitionImage | None:
        """A partition's registration, or None."""
        topic = self.topic(topic_partition.topic)
        return topic.partitions.get(topic_partition.partition) if topic else None

    def broker(self, broker_id: int | None) -> BrokerImage | None:
        """The registration of a broker, fenced or not."""
        return None if broker_id is None else self.image.brokers.get(broker_id)

    def alive_brokers(self, listener_name: str) -> list[tuple[BrokerImage, Endpoint]]:
        """Unfenced brokers that can be reached over this listener, by id."""
        return [
            (broker, broker.endpoints[listener_name])
            for _, broker in sorted(self.image.brokers.items())
            if not broker.is_fenced and listener_name in broker.endpoints
        ]

    def endpoint(self, broker_id: int | None, listener_name: str) -> Endpoint | None:
        """Where a broker listens under this listener's name."""
        broker = self.broker(broker_id)
        return broker.endpoints.get(listener_name) if broker else None

    def is_available(self, broker_id: int, listener_name: str) -> bool:
        """Unfenced and reachable over this listener."""
        broker = self.broker(broker_id)
        return broker is not None and not broker.is_fenced and listener_name in broker.endpoints

    def offline_replicas(self, replicas: Sequence[int], listener_name: str) -> list[int]:
        """The replicas whose broker is gone, fenced or not on this listener."""
        return [replica for replica in replicas if not self.is_available(replica, listener_name)]

    def available_replicas(self, replicas: Iterable[int], listener_name: str) -> list[int]:
        """The replicas whose broker is there."""
        return [replica for replica in replicas if self.is_available(replica, listener_name)]
