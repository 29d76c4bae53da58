"""Invariants of a broker's roles: ValidBrokerState, ValidReplicaState, ValidFetcherState of KIP-966's specification."""

from cluster_machine import Machine
from cluster_violated import Violated

from ottla.broker.replicas.partition import Partition
from ottla.broker.services import BrokerServices


def look_at_roles(machine: Machine, broker: BrokerServices) -> None:
    """Raises Violated. Not in the middle of an operation that a fault has interrupted."""
    if machine.is_serving and broker.lifecycle.broker_epoch < 0:
        raise Violated(f"ValidBrokerState: {machine} serves, and has never registered")
    followed = _followed(machine, broker)
    for partition in broker.replicas.partitions():
        _look_at_replica(machine, partition)
        leader = followed.get(partition)
        if partition.is_leader and leader is not None:
            raise Violated(f"ValidFetcherState: {partition} on {machine} leads, and follows {leader}")
        if not partition.log.is_writable or broker.replicas._followers._is_stopped:
            continue  # its disk has failed, or the broker is about to end: it fetches no more
        if not partition.is_leader and leader != partition.leader_id:
            raise Violated(
                f"ValidFetcherState: {partition} on {machine} follows {leader}, not {partition.leader_id}"
            )


def _followed(machine: Machine, broker: BrokerServices) -> dict[Partition, int]:
    """partition -> the broker that a fetcher asks for it."""
    followed: dict[Partition, int] = {}
    for (leader_id, _), fetcher in broker.replicas._followers._fetchers.items():
        for fetch_state in fetcher._states:
            if fetch_state.partition in followed:
                raise Violated(
                    f"ValidFetcherState: {fetch_state.partition} on {machine} is with two fetchers"
                )
            followed[fetch_state.partition] = leader_id
    return followed


def _look_at_replica(machine: Machine, partition: Partition) -> None:
    log, leader = partition.log, partition.leader
    is_right = (
        partition.leader_id == machine.node_id
        and leader is not None
        and leader.state.epoch == partition.leader_epoch
        if partition.is_leader
        else leader is None
    )
    if not is_right:
        raise Violated(f"ValidReplicaState: {partition} on {machine}: {partition.leader_id} {leader}")
    if not log.log_start_offset <= log.high_watermark <= log.log_end_offset:
        raise Violated(
            f"ValidReplicaState: {partition} on {machine}: "
            f"{log.log_start_offset} {log.high_watermark} {log.log_end_offset}"
        )
