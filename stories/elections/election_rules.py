"""The rules of elections, by what has changed in a partition; and a partition's state for a trace."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from ottla.controller.partitions import leader_election, partition_change
from ottla.controller.partitions.alter_partition import alter_partition
from ottla.controller.partitions.leader_election import Elected
from ottla.metadata.leader_preference import NO_PREFERENCE, LeaderPreference
from ottla.stories.elections.machine import Machine
from ottla.stories.rules import Rule, event, place_of
from ottla.stories.trace import Event, LocalLog, Partition

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
EARLY: Final = Rule(
    "KIP-1303",
    "First form of the draft: among the replicas that may lead, those with an early local log start offset are "
    "preferred; less than the threshold makes no difference.",
)
ELIGIBLE: Final = Rule(
    "KIP-1303",
    "Form of May 2026: among the replicas that may lead, eligible ones are preferred. The local log of an eligible "
    "replica is old enough or large enough, or no other candidate has an earlier one.",
)
ELR: Final = Rule(
    "KIP-966",
    "A replica that leaves an ISR below min.insync.replicas has all committed records, as nothing is committed without "
    "it: it enters the ELR, and may be elected.",
)
LEFT_ELR: Final = Rule(
    "KIP-966",
    "A replica leaves the ELR when it joins the ISR, when an unclean shutdown may have lost its records, and when the "
    "ISR has min.insync.replicas members, which may commit records that it lacks.",
)
PROPOSED_ISR: Final = Rule(
    "KIP-497",
    "The leader proposes the ISR by AlterPartition; the controller decides by leader epoch, partition epoch and the "
    "brokers' own epochs.",
)
_FENCED: Final = Rule(
    "KIP-841", "The controller removes a fenced broker from every ISR, and lets it join none."
)
_STOPS: Final = Rule(
    "KIP-841",
    "The controller removes a broker that shuts down from every ISR, before it lets the broker stop.",
)
_UNCLEAN_SHUTDOWN: Final = Rule(
    "KIP-966",
    "The controller removes a broker that registers after an unclean shutdown from every ISR and ELR: unflushed "
    "records may be lost.",
)
_OFFLINE: Final = Rule(
    "KIP-858", "The controller removes a replica whose log directory is offline from its ISR."
)
_REASSIGNED: Final = Rule(
    "KIP-455",
    "A reassignment that is completed removes the replaced replicas from the assignment and the ISR.",
)
_OTHER_ISR: Final = Rule(
    "KIP-966", "The ISR follows from the change: the controller computes it together with ELR and leader."
)
#: Changes of an ISR that no leader has proposed, by the end of the command that leads to them.
_ISR: Final = (
    ("is fenced", _FENCED),
    ("shut down", _STOPS),
    ("shuts down", _STOPS),
    ("unregisters", _FENCED),
    ("unclean shutdown", _UNCLEAN_SHUTDOWN),
    ("clean shutdown", _FENCED),
    ("loses its directory", _OFFLINE),
)
LAST_KNOWN: Final = Rule(
    "KIP-966",
    "The last known leader is recorded when a partition loses its leader, and cleared by the next election.",
)


class Held(NamedTuple):
    """An election that the controller has held: the arguments of `elect`, and the outcome."""

    asked: Mapping[str, Any]
    elected: Elected

    @property
    def preference(self) -> Rule | None:
        """The rule of KIP-1303 that has decided it; None: the clean rule chooses the same leader."""
        leader = self.elected.leader
        if self._leader_by(NO_PREFERENCE) == leader:
            return None
        eligible = self.asked["preference"]._replace(prefers_early_start=False)
        return ELIGIBLE if self._leader_by(eligible) == leader else EARLY

    def _leader_by(self, preference: LeaderPreference) -> int | None:
        return leader_election.elect(**{**self.asked, "preference": preference}).leader


@contextmanager
def elections() -> Iterator[list[Held]]:
    """Note the elections that the controller holds."""
    held: list[Held] = []

    def elect(**asked: Any) -> Elected:
        elected = leader_election.elect(**asked)
        held.append(Held(asked, elected))
        return elected

    with patch.object(partition_change, "elect", elect):
        yield held


def partition_of(machine: Machine, topic: str) -> Partition:
    """Return the partition as the controller has it."""
    now = machine.partition(topic)
    now_ms = machine.state.wall_clock_ms
    return Partition(
        leader=now.leader,
        leader_epoch=now.leader_epoch,
        partition_epoch=now.partition_epoch,
        replicas=list(now.replicas),
        isr=list(now.isr),
        elr=list(now.elr),
        last_known=list(now.last_known_elr),
        recovery=now.leader_recovery_state.name.lower(),
        local_logs={
            str(replica): LocalLog(
                start_offset=log.start_offset,
                oldest_age_ms=None if log.oldest_timestamp_ms is None else now_ms - log.oldest_timestamp_ms,
                size_bytes=log.size_bytes,
            )
            for replica, log in now.local_logs
        },
        active=[broker.broker_id for broker in machine.state.brokers() if broker.is_active],
    )


def changes(
    before: Partition | None, now: Partition, *, command: str, election: Held | None
) -> Iterator[Event]:
    """Yield what the controller has decided, with the rule of each decision.

    `election`: the last one that the command has led to; None: it has led to none. `before` is None in a new cluster.
    """
    if before is None:
        return
    place = place_of(partition_change.partition_change)
    if now.leader != before.leader:
        yield _election(now, election)
    elif election is not None and election.elected.leader == now.leader and election.preference is not None:
        line = f"{now.leader} stays the leader"
        yield event("controller", line, election.preference, place_of(leader_election.elect))
    if now.isr != before.isr and now.leader == before.leader:
        line = f"the ISR is {_ids(now.isr)}"
        if " asks for isr " in command:
            yield event("controller", line, PROPOSED_ISR, place_of(alter_partition))
        else:
            is_reassigned = now.replicas != before.replicas
            yield event("controller", line, _REASSIGNED if is_reassigned else _isr_rule(command), place)
    line = f"the ELR is {_ids(now.elr)}"
    if set(now.elr) - set(before.elr):
        yield event("controller", line, ELR, place)
    if set(before.elr) - set(now.elr):
        yield event("controller", line, LEFT_ELR, place)
    if now.last_known != before.last_known:
        line = f"the last known leader is {_ids(now.last_known)}"
        yield event("controller", line, LAST_KNOWN, place)


def _isr_rule(command: str) -> Rule:
    return next((rule for end, rule in _ISR if command.endswith(end)), _OTHER_ISR)


def _election(now: Partition, election: Held | None) -> Event:
    place = place_of(leader_election.elect)
    assert election is not None, "the leader has changed, and no election was held"
    if now.leader is None:
        return event("controller", "no leader", NONE, place)
    line = f"{now.leader} leads e{now.leader_epoch}"
    if election.elected.is_unclean:
        return event("controller", f"{line}, uncleanly", UNCLEAN, place)
    return event("controller", line, election.preference or CLEAN, place)


def _ids(ids: list[int]) -> str:
    return " ".join(map(str, ids)) or "empty"
