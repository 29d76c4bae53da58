"""Leader and ISR updates when a broker is fenced, is unfenced or loses a directory.

Each function scans all partitions and drafts the changes that remove the broker, or make use of it. The broker's own
new state is set in the draft first (`Draft.set_broker`); `brokers` writes its record. All of them work in steps
(`ottla.controller.steps`): nothing else is decided until all of them are made, so that the decision is of one moment.
Source: ReplicationControlManager.generateLeaderAndIsrUpdates and its callers, Kafka 4.3.1.
"""

from collections.abc import Callable, Collection, Generator
from uuid import UUID

from ottla.controller.partitions.draft import AlikeChanges, Draft
from ottla.controller.partitions.partition_change import directory_of
from ottla.controller.state import ClusterState
from ottla.controller.steps import scanned
from ottla.metadata.image import (
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    PartitionImage,
    TopicImage,
)


def remove_from_isrs(draft: Draft, broker_id: int) -> Generator[None, None, None]:
    """The broker is fenced or leaves: out of all ISRs; it may stay in the ELR, since it has lost no records."""
    changes = AlikeChanges(draft, lambda partition: without(partition, broker_id))
    return _change_each(changes, lambda partition: broker_id in partition.isr)


def remove_from_isrs_and_elrs(draft: Draft, broker_id: int) -> Generator[None, None, None]:
    """After an unclean shutdown: out of all ISRs and ELRs, since unflushed records may be lost (KIP-966)."""
    return _change_each(
        _unclean_changes(draft, broker_id),
        lambda partition: broker_id in partition.isr or broker_id in partition.elr,
    )


def elect_missing_leaders(draft: Draft) -> Generator[None, None, None]:
    """A broker is unfenced: elect leaders for partitions that have none."""
    return _change_each(AlikeChanges(draft), lambda partition: partition.leader is None)


def remove_offline_replicas(
    draft: Draft, broker_id: int, directories: Collection[UUID]
) -> Generator[None, None, None]:
    """Directories of the broker are offline: out of the ISRs of the partitions in them (KIP-858)."""
    changes = AlikeChanges(draft, lambda partition: without(partition, broker_id))
    return _change_each(
        changes,
        lambda partition: broker_id in partition.isr and directory_of(partition, broker_id) in directories,
    )


def _change_each(
    changes: AlikeChanges, is_concerned: Callable[[PartitionImage], bool]
) -> Generator[None, None, None]:
    for is_next_step, some in scanned(changes.draft.partitions()):
        if is_next_step:
            yield
        for topic, index, partition in some:
            if is_concerned(partition):
                changes.change(topic, index, partition)


def _unclean_changes(draft: Draft, broker_id: int) -> AlikeChanges:
    return AlikeChanges(
        draft, lambda partition: without(partition, broker_id), unclean_shutdown_replicas=(broker_id,)
    )


def remove_replicas_without_directory(
    draft: Draft, broker_id: int, directories: Collection[UUID]
) -> Generator[None, None, list[tuple[TopicImage, int, PartitionImage]]]:
    """Remove a broker from the ISRs and ELRs of partitions whose directory is not among those that it registers.

    The log of such a replica is not there, and one that is created in its place is empty, however clean the
    shutdown was. The directories that the broker had registered before do not matter: one that has failed is
    not among those. A replica in no known directory (DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING) stays.

    Returns the partitions that no other replica can lead without losing records.
    Kafka has no such rule: its controller elects the replica with the empty log, and the others truncate theirs.
    """
    known = {*directories, DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING}
    changes = _unclean_changes(draft, broker_id)
    stranded = []
    for is_next_step, some in scanned(draft.partitions()):
        if is_next_step:
            yield
        for topic, index, partition in some:
            if broker_id not in partition.replicas or directory_of(partition, broker_id) in known:
                continue
            if broker_id in partition.isr or broker_id in partition.elr:
                changes.change(topic, index, partition)
            now = draft.partition(topic, index)
            assert now is not None, (topic.name, index)
            if now.leader is None and not {*now.isr, *now.elr} - {broker_id}:
                stranded.append((topic, index, now))
    return stranded


def has_leaderships(state: ClusterState, broker_id: int) -> Generator[None, None, bool]:
    """Whether a registered broker leads a partition.

    A broker in controlled shutdown sends a heartbeat every 10 ms until the others have replayed the changes. So the
    partition that was found last is checked first, and a search that found none is not repeated until the log grows.
    """
    session = state.sessions.of(broker_id)
    if session.led_partition is not None:
        partition = state.image.partition(*session.led_partition)
        if partition is not None and partition.leader == broker_id:
            return True
    if session.leads_none_at_offset == state.next_offset:
        return False
    session.led_partition = yield from _led_partition(state, broker_id)
    session.leads_none_at_offset = state.next_offset if session.led_partition is None else None
    return session.led_partition is not None


def _led_partition(state: ClusterState, broker_id: int) -> Generator[None, None, tuple[UUID, int] | None]:
    """The first partition (topic id, index) that the broker leads."""
    for is_next_step, some in scanned(state.partitions()):
        if is_next_step:
            yield
        for topic, index, partition in some:
            if partition.leader == broker_id:
                return topic.topic_id, index
    return None


def without(partition: PartitionImage, broker_id: int) -> PartitionImage:
    """Return the partition without the broker in its ISR."""
    return partition._replace(isr=tuple(replica for replica in partition.isr if replica != broker_id))
