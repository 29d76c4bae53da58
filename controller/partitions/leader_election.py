"""Leader election of a partition: one pure function, so that all of its rules are in one place.

    PREFERRED  the preferred replica (first of the assignment) if it is a first choice; else the current leader if it
               is one; else the first one in the assignment
    ONLINE     the current leader if it may lead; else the first in the assignment that is a first choice
    (last)     with ISR and ELR empty: the last known leader; records may be lost, but it had the most of them
    UNCLEAN    if all that fails: the first acceptable replica, even if it lacks committed records

A replica *may lead* if it is acceptable (the caller decides: broker active, directory online) and in the ISR or, where
the ISR is empty, in the ELR (KIP-966). All replicas that may lead are *first choices*, unless the topic's
`LeaderPreference` is on: then only those of its first group are (draft KIP-1303). It never excludes the last
replica that may lead, and ONLINE does not move a leader for the sake of local data: only PREFERRED does.

The last two rules ignore the preference. What the controller knows of the local log of a replica outside ISR and ELR is
out of date, and to lose fewer records matters more.

Invariant: a leader that is not elected uncleanly is in the ISR or, where that is empty, in the ELR: it has all
committed records. Source: PartitionChangeBuilder.electLeader of Kafka 4.3.1.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import NamedTuple

from ottla.metadata.leader_preference import NO_PREFERENCE, LeaderPreference, preference_order
from ottla.protocol.local_log import LocalLogs


class Election(Enum):
    """The kind of an election, which determines the replicas that it may choose."""

    PREFERRED = auto()
    ONLINE = auto()
    UNCLEAN = auto()


class Elected(NamedTuple):
    """The outcome; `leader` None: no replica can lead."""

    leader: int | None
    #: The leader may lack committed records: the ISR restarts with it alone.
    is_unclean: bool = False


def elect(
    *,
    replicas: Sequence[int],
    isr: Sequence[int],
    elr: Sequence[int],
    leader: int | None,
    last_known_leader: int | None,
    is_acceptable_leader: Callable[[int], bool],
    election: Election,
    local_logs: LocalLogs = (),
    preference: LeaderPreference = NO_PREFERENCE,
    now_ms: int = 0,
) -> Elected:
    """Choose a leader. `isr` and `elr` are those after the change, not before it.

    `last_known_leader` is None where it must not be elected (without KIP-966). `now_ms` is the wall clock.
    Cost: 1 us; where a preference compares local logs 7 us.

    >>> elect(replicas=(1, 2, 3), isr=(2, 3), elr=(), leader=1, last_known_leader=None,
    ...       is_acceptable_leader={2, 3}.__contains__, election=Election.ONLINE)
    Elected(leader=2, is_unclean=False)
    """
    clean_candidates = isr or elr

    def may_lead(replica: int) -> bool:
        return replica in clean_candidates and is_acceptable_leader(replica)

    is_first_choice: Callable[[int], bool] = may_lead
    if local_logs and preference.is_on:
        candidates = [replica for replica in replicas if may_lead(replica)]
        if groups := preference_order(candidates, dict(local_logs), preference, now_ms=now_ms):
            is_first_choice = groups[0].__contains__
    is_preferred = election is Election.PREFERRED
    if is_preferred and is_first_choice(replicas[0]):
        return Elected(replicas[0])
    if leader is not None and (is_first_choice if is_preferred else may_lead)(leader):
        return Elected(leader)  # an unneeded change would make clients refresh their metadata
    if (first := _first(replicas, is_first_choice)) is not None:
        return Elected(first)
    if not clean_candidates and last_known_leader is not None and is_acceptable_leader(last_known_leader):
        return Elected(last_known_leader, is_unclean=True)
    if election is Election.UNCLEAN and (any_ := _first(replicas, is_acceptable_leader)) is not None:
        return Elected(any_, is_unclean=True)
    return Elected(None)


def _first(replicas: Iterable[int], may_lead: Callable[[int], bool]) -> int | None:
    return next((replica for replica in replicas if may_lead(replica)), None)
