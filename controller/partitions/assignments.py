"""Replica assignments: manual ones are checked, automatic ones are placed; both become partition records."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple
from uuid import UUID

from controller.partitions.placement import Candidate, place_replicas
from controller.state import ClusterState
from protocol.errors import InvalidReplicaAssignment, InvalidReplicationFactor
from protocol.metadata.records import PartitionRecord


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
    """A new partition on brokers that `check_manual` has accepted. Raises InvalidReplicaAssignment."""
    record = _partition_record(topic_id, index, list(replicas), _new_replicas(state, replicas))
    if record is None:
        raise InvalidReplicaAssignment(
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            "controlled shutdown."
        )
    return record


def place(state: ClusterState, *, count: int, replication_factor: int) -> list[list[int]]:
    """Replicas for `count` new partitions. Raises InvalidReplicationFactor.

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
    """New partitions from `first` on, where `place` has put them. Raises InvalidReplicationFactor."""
    records = []
    known = _new_replicas(state, chain.from_iterable(placed))
    for index, replicas in enumerate(placed, start=first):
        record = _partition_record(topic_id, index, replicas, known)
        if record is None:
            raise InvalidReplicationFactor(
                f"Unable to replicate the partition {len(replicas)} time(s): All brokers are currently fenced or "
                "in controlled shutdown."
            )
        records.append(record)
    return records


class _NewReplica(NamedTuple):
    """What a broker's new replicas have in common: whether they join the ISR, and their directory."""

    is_active: bool
    directory: UUID


def _new_replicas(state: ClusterState, broker_ids: Iterable[int]) -> dict[int, _NewReplica]:
    """Of these brokers. A topic may have thousands of partitions on a few."""
    return {
        each: _NewReplica(state.is_active(each), state.default_directory(each)) for each in set(broker_ids)
    }


def _partition_record(
    topic_id: UUID, index: int, replicas: list[int], known: Mapping[int, _NewReplica]
) -> PartitionRecord | None:
    """A new partition: the ISR is its active replicas, the leader the first of them. None if none is active.

    The record takes the list `replicas` as it is.
    """
    isr = [replica for replica in replicas if known[replica].is_active]
    if not isr:
        return None
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=replicas,
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=[known[replica].directory for replica in replicas],
    )
