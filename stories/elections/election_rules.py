"""The rules of elections, by what has changed in a partition; and a partition's state for a trace."""

from collections.abc import Iterator
from typing import Final

from ottla.controller.partitions import leader_election, partition_change
from ottla.controller.partitions.alter_partition import alter_partition
from ottla.metadata.image import LeaderRecoveryState
from ottla.stories.elections.machine import Machine
from ottla.stories.rules import Rule, event, place_of
from ottla.stories.trace import Event, Partition

CLEAN: Final = Rule(
    "KIP-966",
    "The leader is a member of the ISR, the first unfenced one in the assignment; where the ISR is empty, of the ELR; "
    "where both are empty, the last known leader.",
)
UNCLEAN: Final = Rule(
    "KIP-966",
    "An unclean election restarts the ISR with its leader, which may lack committed records and first has to recover.",
)
NONE: Final = Rule("KIP-966", "No replica is eligible: the partition waits, and loses nothing.")
PREFERENCE: Final = Rule(
    "KIP-1303",
    "Elections of a tiered topic prefer, among the members of the ISR, replicas with an early local log start offset.",
)
ELR: Final = Rule(
    "KIP-966",
    "A replica that leaves an ISR below min.insync.replicas has all committed records, as nothing is committed without "
    "it: it enters the ELR, and may be elected.",
)
ISR: Final = Rule(
    "KIP-497",
    "The leader proposes the ISR by AlterPartition; the controller decides by leader epoch, partition epoch and the "
    "brokers' own epochs, and removes fenced brokers itself.",
)
LAST_KNOWN: Final = Rule(
    "KIP-966",
    "The last known leader is recorded when a partition loses its leader, and cleared by the next election.",
)


def partition_of(machine: Machine, topic: str) -> Partition:
    """Return the partition as the controller has it."""
    now = machine.partition(topic)
    return Partition(
        leader=now.leader,
        leader_epoch=now.leader_epoch,
        partition_epoch=now.partition_epoch,
        replicas=list(now.replicas),
        isr=list(now.isr),
        elr=list(now.elr),
        last_known=list(now.last_known_elr),
        recovery=now.leader_recovery_state.name.lower(),
        local_logs={str(replica): log.start_offset for replica, log in now.local_logs},
        active=[broker.broker_id for broker in machine.state.brokers() if broker.is_active],
    )


def changes(before: Partition | None, now: Partition) -> Iterator[Event]:
    """Yield what the controller has decided, with the rule of each decision."""
    if before is None:
        return
    if now.leader != before.leader:
        yield _election(before, now)
    if now.isr != before.isr and now.leader == before.leader:
        line = f"the ISR is {_ids(now.isr)}"
        yield event("controller", line, ISR, place_of(alter_partition))
    if now.elr != before.elr:
        yield event(
            "controller", f"the ELR is {_ids(now.elr)}", ELR, place_of(partition_change.partition_change)
        )
    if now.last_known != before.last_known:
        line = f"the last known leader is {_ids(now.last_known)}"
        yield event("controller", line, LAST_KNOWN, place_of(partition_change.partition_change))


def _election(before: Partition, now: Partition) -> Event:
    place = place_of(leader_election.elect)
    if now.leader is None:
        return event("controller", "no leader", NONE, place)
    line = f"{now.leader} leads e{now.leader_epoch}"
    if now.recovery == LeaderRecoveryState.RECOVERING.name.lower():
        return event("controller", f"{line}, uncleanly", UNCLEAN, place)
    return event("controller", line, PREFERENCE if before.local_logs else CLEAN, place)


def _ids(ids: list[int]) -> str:
    return " ".join(map(str, ids)) or "empty"
