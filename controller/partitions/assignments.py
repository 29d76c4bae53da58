"""Replica assignments: manual ones are checked, automatic ones are placed; both become partition records."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple
from uuid import UUID

from ottla.controller.partitions.placement import Candidate, place_replicas
from ottla.controller.state import ClusterState
from ottla.metadata.records import PartitionRecord
from ottla.protocol.errors import InvalidReplicaAssignment, InvalidReplicationFactor


def check_manual(state: ClusterState, replicas: Sequence[int], *, replication_factor: int | None) -> None:
    """Check a list of replicas. `replication_factor` is that of the topic's other partitions; None: not checked.

    Raises InvalidReplicaAssignment.
    """
    if not replicas:
        raise InvalidReplicaAssignment("The manual partition assignment includes an empty replica list.")
    for broker_id in sorted(replicas):
        if broker_id not in state.image.brokers:
            raise InvalidReplicaAssignment(
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
            )
        if replicas.count(broker_id) > 1:
            raise InvalidReplicaAssignment(
                f"The manual partition assignment includes the broker {broker_id} more than once."
            )
    if replication_factor is not None and len(replicas) != replication_factor:
        raise InvalidReplicaAssignment(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is "
            f"not consistent with previous partitions, which have {replication_factor} replica(s)."
        )


def manual_record(
    state: ClusterState, topic_id: UUID, index: int, replicas: Sequence[int]
) -> PartitionRecord:
    """The record of a new partition on brokers that `check_manual` has accepted. Raises InvalidReplicaAssignment."""
    assigned = _assigned(list(replicas), _new_replicas(state, replicas))
    if not assigned.isr:
        raise InvalidReplicaAssignment(
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            "controlled shutdown."
        )
    return _partition_record(topic_id, index, assigned)


def place(state: ClusterState, *, count: int, replication_factor: int) -> list[list[int]]:
    """Choose the replicas for `count` new partitions. Raises InvalidReplicationFactor.

    Brokers in controlled shutdown take none, nor do those whose directories are all cordoned (KIP-1066).
    """
    candidates = [
        Candidate(broker.broker_id, broker.rack, broker.is_fenced)
        for broker in state.brokers()
        if state.sessions.of(broker.broker_id).shutdown_offset is None
        and (not broker.cordoned_log_dirs or set(broker.log_dirs) - set(broker.cordoned_log_dirs))
    ]
    return place_replicas(
        candidates, partition_count=count, replication_factor=replication_factor, random=state.random
    )


def placed_records(
    state: ClusterState, topic_id: UUID, *, first: int, placed: Sequence[list[int]]
) -> list[PartitionRecord]:
    """The records of new partitions from `first` on, on the replicas that `place` has chosen.

    Raises InvalidReplicationFactor.
    The records of partitions with the same replicas share their lists.
    """
    records = []
    known = _new_replicas(state, chain.from_iterable(placed))
    # A topic may have thousands of partitions in a few orders of a few brokers.
    assigned: dict[tuple[int, ...], _Assigned] = {}
    for index, replicas in enumerate(placed, start=first):
        key = tuple(replicas)
        if (found := assigned.get(key)) is None:
            found = assigned[key] = _assigned(replicas, known)
        if not found.isr:
            raise InvalidReplicationFactor(
                f"Unable to replicate the partition {len(replicas)} time(s): All brokers are currently fenced or "
                "in controlled shutdown."
            )
        records.append(_partition_record(topic_id, index, found))
    return records


class _NewReplica(NamedTuple):
    """The common properties of a broker's new replicas: whether they join the ISR, and their directory."""

    is_active: bool
    directory: UUID


def _new_replicas(state: ClusterState, broker_ids: Iterable[int]) -> dict[int, _NewReplica]:
    """The properties of new replicas on these brokers: a topic may have thousands of partitions on a few brokers."""
    return {
        each: _NewReplica(state.is_active(each), state.default_directory(each)) for each in set(broker_ids)
    }


class _Assigned(NamedTuple):
    """The replicas of a new partition, its ISR and directories; without an active replica the ISR is empty."""

    replicas: list[int]
    isr: list[int]
    directories: list[UUID]


def _assigned(replicas: list[int], known: Mapping[int, _NewReplica]) -> _Assigned:
    return _Assigned(
        replicas,
        isr=[replica for replica in replicas if known[replica].is_active],
        directories=[known[replica].directory for replica in replicas],
    )


def _partition_record(topic_id: UUID, index: int, assigned: _Assigned) -> PartitionRecord:
    """A new partition: the ISR is its active replicas, the leader the first of them."""
    replicas, isr, directories = assigned
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=replicas,
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=directories,
    )
