"""States of a classic group, and the transitions between them (Kafka's ClassicGroupState).

    Empty ---------------> PreparingRebalance     the first member joins
    PreparingRebalance --> CompletingRebalance    all have joined, or the rebalance timeout passed: a new generation
    PreparingRebalance --> Empty                  no member joined: a new generation without members
    CompletingRebalance -> Stable                 the leader's assignment is in the log
    CompletingRebalance -> PreparingRebalance     a member joined, left, changed, or did not sync in time
    Stable --------------> PreparingRebalance     the same, or the leader rejoined
    any -----------------> Dead                   deleted, or coordinated by another broker from now on

A generation begins with CompletingRebalance: every member that gets a JoinGroup response then has the same
generation id, protocol and leader. Only one generation exists at a time, and generation ids only increase.
"""

from enum import Enum
from typing import Final


class GroupState(Enum):
    """The states, with the names that responses use."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_S = GroupState

#: State -> the states from which it may be entered.
ALLOWED_FROM: Final[dict[GroupState, frozenset[GroupState]]] = {
    _S.EMPTY: frozenset({_S.PREPARING_REBALANCE}),
    _S.PREPARING_REBALANCE: frozenset({_S.EMPTY, _S.COMPLETING_REBALANCE, _S.STABLE}),
    _S.COMPLETING_REBALANCE: frozenset({_S.PREPARING_REBALANCE}),
    _S.STABLE: frozenset({_S.COMPLETING_REBALANCE}),
    _S.DEAD: frozenset(_S),
}
