"""What becomes of partitions when a broker comes, goes or loses a directory: leaders and ISRs.

Each function looks through all partitions and returns the records that take the broker out, or make use
of it; the record that changes the broker itself is written by `brokers` beside them.
Source: ReplicationControlManager.generateLeaderAndIsrUpdates and its callers, Kafka 4.3.1.
"""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from uuid import UUID

from controller.election import Election
from controller.partition_change import ElectionRules, partition_change
from controller.record_versions import ISR_SHRINK_KEEPS_EPOCH_3_6_IV0
from controller.state import ClusterState
from protocol.metadata.image import (
    DIRECTORY_LOST,
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    PartitionImage,
    TopicImage,
)
from protocol.metadata.records import MetadataRecord, PartitionChangeRecord

_Where = Callable[[PartitionImage], bool]


def without_broker(state: ClusterState, broker_id: int) -> list[MetadataRecord]:
    """The broker is fenced or leaves: out of all ISRs; the ELR may keep it, it has lost nothing."""
    return list(_changes(state, where=lambda p: broker_id in p.isr, removed=broker_id))


def without_unregistered(state: ClusterState, broker_id: int) -> list[MetadataRecord]:
    """The broker is forgotten. Kafka looks through ISRs, then ELRs; a partition is in one of both."""
    return list(_changes(state, where=lambda p: broker_id in p.isr or broker_id in p.elr, removed=broker_id))


def without_unclean(state: ClusterState, broker_id: int) -> list[MetadataRecord]:
    """The broker stopped without warning: what it had in memory is lost, so that the ELR cannot keep it."""
    return list(
        _changes(
            state,
            where=lambda p: broker_id in p.isr or broker_id in p.elr,
            removed=broker_id,
            lost=(broker_id,),
        )
    )


def with_broker(state: ClusterState, broker_id: int) -> list[MetadataRecord]:
    """The broker is unfenced: partitions without a leader may have one again."""
    return list(_changes(state, where=lambda p: p.leader is None, added=broker_id))


def without_directories(
    state: ClusterState, broker_id: int, directories: Collection[UUID]
) -> list[MetadataRecord]:
    """Directories of the broker are offline: out of the ISRs of the partitions in them (KIP-858)."""

    def is_there(partition: PartitionImage) -> bool:
        return broker_id in partition.isr and _directory_of(partition, broker_id) in directories

    return list(_changes(state, where=is_there, removed=broker_id))


def leads_any(state: ClusterState, broker_id: int) -> bool:
    """Whether the broker leads a partition."""
    return any(partition.leader == broker_id for _, _, partition in state.partitions())


def _changes(
    state: ClusterState,
    *,
    where: _Where,
    removed: int | None = None,
    added: int | None = None,
    lost: Collection[int] = (),
) -> Iterator[PartitionChangeRecord]:
    """The state still shows the broker as it was: `removed` cannot lead any more, `added` already can."""
    rules: dict[UUID, Callable[[PartitionImage], ElectionRules]] = {}
    for topic, index, partition in state.partitions():
        if not where(partition):
            continue
        if topic.topic_id not in rules:
            rules[topic.topic_id] = _rules(state, topic, removed=removed, added=added)
        record = partition_change(
            partition,
            topic_id=topic.topic_id,
            index=index,
            isr=[replica for replica in partition.isr if replica != removed],
            rules=rules[topic.topic_id](partition),
            lost=lost,
        )
        if record is not None:
            yield record


def _rules(
    state: ClusterState, topic: TopicImage, *, removed: int | None, added: int | None
) -> Callable[[PartitionImage], ElectionRules]:
    """The topic's rules, looked up once; which replicas are acceptable differs by partition."""

    def is_acceptable(partition: PartitionImage, replica: int) -> bool:
        is_alive = replica != removed and (replica == added or state.is_active(replica))
        return is_alive and _is_online(state, partition, replica)

    make = partial(
        ElectionRules,
        min_insync_replicas=state.min_insync_replicas(topic),
        is_elr_enabled=state.is_elr_enabled,
        election=Election.UNCLEAN if state.is_unclean_election_enabled(topic) else Election.ONLINE,
        is_epoch_bumped_on_shrink=state.metadata_version < ISR_SHRINK_KEEPS_EPOCH_3_6_IV0,
    )
    return lambda partition: make(is_acceptable=partial(is_acceptable, partition))


def _is_online(state: ClusterState, partition: PartitionImage, replica: int) -> bool:
    """Whether the directory of a registered broker that holds the replica is online, as far as is known."""
    broker = state.image.brokers[replica]
    directory = _directory_of(partition, replica)
    if directory in (DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED):
        return True
    return directory != DIRECTORY_LOST and (not broker.log_dirs or directory in broker.log_dirs)


def _directory_of(partition: PartitionImage, replica: int) -> UUID:
    return dict(zip(partition.replicas, partition.directories, strict=False)).get(
        replica, DIRECTORY_MIGRATING
    )
