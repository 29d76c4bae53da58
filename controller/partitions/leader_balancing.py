"""Periodic elections of the active controller: preferred leaders, and unclean elections.

    every leader.imbalance.check.interval.seconds, with auto.leader.rebalance.enable:
        preferred replicas that can lead become leaders; in a topic that prefers local data (draft KIP-1303) only those
        that have enough of it, and a leader that lacks it is replaced by a replica that has it
    every unclean.leader.election.interval.ms:
        partitions without a leader get one, where unclean.leader.election.enable is true: the broker that could be
        elected cleanly may never return, and no other event would start an election

Both stop after `MAX_ELECTIONS` elections and are called again, so that requests are served in between.
leader.imbalance.per.broker.percentage is not used: Kafka 4.3.1's KRaft controller has no such threshold either.
Source: ReplicationControlManager.maybeBalancePartitionLeaders and maybeElectUncleanLeaders.
"""

from contextlib import suppress

from ottla.controller.partitions.draft import Draft
from ottla.controller.partitions.elect_leaders import (
    ElectionType,
    elect_leader,
    election_changes,
    has_preferred_leader,
)
from ottla.controller.result import Result
from ottla.controller.state import ClusterState
from ottla.controller.steps import Steps, in_steps, scanned
from ottla.protocol.errors import EligibleLeadersNotAvailable

#: Elections of one call; QuorumController's MAX_ELECTIONS_PER_IMBALANCE.
MAX_ELECTIONS = 1_000


@in_steps
def balance_leaders(state: ClusterState, now_ms: int) -> Steps[bool]:
    """Elect preferred leaders where another one leads. True: there may be more, call again at once."""
    draft = Draft(state)
    changes = election_changes(draft, ElectionType.PREFERRED)
    for is_next_step, some in scanned(state.partitions()):
        if is_next_step:
            yield
        for topic, index, partition in some:
            if len(draft.records) >= MAX_ELECTIONS:
                return _elected(draft)
            if not has_preferred_leader(draft, topic, partition):
                changes.change(topic, index, partition)
    return _elected(draft)


@in_steps
def elect_unclean(state: ClusterState, now_ms: int) -> Steps[bool]:
    """Elect leaders for partitions without one, uncleanly where that is enabled. True: call again at once."""
    draft = Draft(state)
    changes = election_changes(draft, ElectionType.UNCLEAN)
    for is_next_step, some in scanned(state.partitions()):
        if is_next_step:
            yield
        for topic, index, partition in some:
            if len(draft.records) >= MAX_ELECTIONS:
                return _elected(draft)
            if partition.leader is None and state.is_unclean_election_enabled(topic):
                with suppress(EligibleLeadersNotAvailable):
                    elect_leader(changes, topic.name, index, ElectionType.UNCLEAN)
    return _elected(draft)


def _elected(draft: Draft) -> Result[bool]:
    return Result(response=len(draft.records) >= MAX_ELECTIONS, records=draft.records, is_atomic=False)
