"""Metadata cache: the image of the metadata log on this broker, and the look-ups that handlers need.

The image is replayed from committed records only, in the order of the log: a look-up may return older state than
the controller's but never newer. If records were removed before this node has read them, a snapshot replaces the
image, and listeners are notified of all differences.
Source: KRaftMetadataCache and MetadataLoader of Kafka 4.3.1.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

from ottla.metadata.features import KRAFT_VERSION
from ottla.metadata.image import (
    DIRECTORY_LOST,
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    BrokerImage,
    Endpoint,
    InvalidMetadata,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from ottla.metadata.image_delta import difference
from ottla.metadata.records import MetadataRecord
from ottla.protocol.types import TopicPartition


class MetadataCache:
    """Read-only look-ups in the image of this node; a listener of the quorum."""

    def __init__(self, image: MetadataImage, *, kraft_version: Callable[[], int] = lambda: 0) -> None:
        """`kraft_version` returns the quorum's kraft.version, which only control records contain."""
        self.image = image
        #: The last offset of the metadata log that the image holds; -1 before the first one.
        self.last_applied_offset = -1
        self._kraft_version = kraft_version
        self._listeners: list[Callable[[MetadataDelta, MetadataImage], None]] = []

    def on_change(self, listener: Callable[[MetadataDelta, MetadataImage], None]) -> None:
        """Call `listener` after each further change of the image, after the listeners that were added before."""
        self._listeners.append(listener)

    def on_commit(self, records: Sequence[MetadataRecord], base_offset: int, end_offset: int) -> None:
        """Replay committed records; `end_offset` is the offset after the last of them. Raises InvalidMetadata."""
        try:
            delta = self.image.replay_all(records)
        except Exception as error:
            # Any exception: this image differs from the log's state, and the node's controller would decide on it.
            raise InvalidMetadata(f"in the metadata log's batch at offset {base_offset}: {error}") from error
        self.last_applied_offset = end_offset - 1
        self._notify(delta)

    def on_snapshot(self, batches: Iterable[list[MetadataRecord]], snapshot: tuple[int, int]) -> None:
        """Replace the image by the snapshot's state, as of before its offset; `snapshot` is (offset, epoch)."""
        image = MetadataImage()
        for records in batches:
            image.replay_all(records)
        delta = difference(self.image, image)
        self.image = image
        self.last_applied_offset = snapshot[0] - 1
        self._notify(delta)

    def on_leader(self, leader: object) -> None:
        """Ignore a change of the quorum's leader, which the image does not contain."""

    def _notify(self, delta: MetadataDelta) -> None:
        for listener in self._listeners:
            listener(delta, self.image)

    @property
    def finalized_features(self) -> Mapping[str, int]:
        """Levels above 0, including kraft.version, which only the log's control records contain."""
        level = self._kraft_version()
        return {**self.image.features, KRAFT_VERSION: level} if level else self.image.features

    def topic(self, name: str) -> TopicImage | None:
        """The topic of this name, or None."""
        return self.image.topics_by_name.get(name)

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        """The topic of this id, or None (KIP-516)."""
        return self.image.topics_by_id.get(topic_id)

    def partition(self, topic_partition: TopicPartition) -> PartitionImage | None:
        """Return a partition's registration, or None."""
        topic = self.topic(topic_partition.topic)
        return topic.partitions.get(topic_partition.partition) if topic else None

    def broker(self, broker_id: int | None) -> BrokerImage | None:
        """The registration of a broker, fenced or not."""
        return None if broker_id is None else self.image.brokers.get(broker_id)

    def endpoint(self, broker_id: int | None, listener_name: str) -> Endpoint | None:
        """The broker's endpoint of this listener, or None."""
        return _endpoint(self.broker(broker_id), listener_name)

    def is_available(self, broker_id: int, listener_name: str) -> bool:
        """Whether the broker is unfenced and reachable over this listener."""
        return _is_available(self.broker(broker_id), listener_name)

    def is_online(self, broker_id: int, directory: UUID) -> bool:
        """Whether a registered broker has this directory, as far as it is known (KIP-858)."""
        return _is_online(self.image.brokers[broker_id], directory)

    def brokers_for(self, listener_name: str) -> "ListenerBrokers":
        """The brokers of this moment, for clients of one listener."""
        return ListenerBrokers(self.image.brokers.copy(), listener_name)


class ListenerBrokers:
    """The brokers of one moment, as clients of one listener see them; later changes of the image do not show in it.

    Thousands of partitions have a few different lists of replicas, each of which is looked up once. They are known by
    identity, since the image has equal ones once: hashing the ids of directories takes as long as the look-up. What is
    known keeps them, so that no other one can have their identity.
    """

    def __init__(self, brokers: Mapping[int, BrokerImage], listener_name: str) -> None:
        self._brokers = brokers
        self._listener_name = listener_name
        self._offline: dict[tuple[int, int], tuple[object, object, list[int]]] = {}

    def registered(self) -> list[tuple[BrokerImage, Endpoint]]:
        """Return the brokers, fenced or not, with an endpoint of this listener, by id."""
        return [
            (broker, broker.endpoints[self._listener_name])
            for _, broker in sorted(self._brokers.items())
            if self._listener_name in broker.endpoints
        ]

    def alive(self) -> list[tuple[BrokerImage, Endpoint]]:
        """Return the unfenced brokers that can be reached over this listener, by id."""
        return [row for row in self.registered() if not row[0].is_fenced]

    def is_registered(self, broker_id: int | None) -> bool:
        """Whether a broker of this id is registered, fenced or not, on any listener."""
        return broker_id in self._brokers

    def has_endpoint(self, broker_id: int | None) -> bool:
        """Whether the broker, fenced or not, has an endpoint of this listener."""
        broker = None if broker_id is None else self._brokers.get(broker_id)
        return _endpoint(broker, self._listener_name) is not None

    def available(self, broker_ids: Iterable[int]) -> list[int]:
        """Return the brokers that are unfenced and can be reached over this listener."""
        return [broker_id for broker_id in broker_ids if self._is_available(broker_id)]

    def offline_replicas(self, partition: PartitionImage) -> list[int]:
        """The replicas whose broker is unregistered, fenced or not on this listener, or has lost their directory.

        The list is shared: read only.
        """
        replicas, directories = partition.replicas, partition.directories
        at = id(replicas), id(directories)
        known = self._offline.get(at)
        if known is None:
            offline = [
                replica
                for replica, directory in zip(replicas, directories, strict=True)
                if not self._is_available(replica) or not _is_online(self._brokers[replica], directory)
            ]
            self._offline[at] = known = (replicas, directories, offline)
        return known[2]

    def _is_available(self, broker_id: int) -> bool:
        return _is_available(self._brokers.get(broker_id), self._listener_name)


def _endpoint(broker: BrokerImage | None, listener_name: str) -> Endpoint | None:
    return None if broker is None else broker.endpoints.get(listener_name)


def _is_available(broker: BrokerImage | None, listener_name: str) -> bool:
    return broker is not None and not broker.is_fenced and listener_name in broker.endpoints


def _is_online(broker: BrokerImage, directory: UUID) -> bool:
    online = broker.log_dirs
    # The frequent case first: each comparison of ids costs 0.2 us.
    if directory in online or directory in (DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING):
        return True
    # An empty list: registered before directories had ids. A broker without any directory would not run.
    return not online and directory != DIRECTORY_LOST
