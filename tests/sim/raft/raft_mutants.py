"""Bugs planted on purpose: a simulation that does not find them is no test. Each is a patch of one rule.

Which story finds it, within how many seeds, and by which sign, is in MUTANTS; `test_raft_simulation` holds the
simulation to it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

from raft_node import Node

from ottla.controller.metadata_log import quorum_state
from ottla.controller.metadata_log.log import MetadataLog
from ottla.controller.metadata_log.snapshot_store import RawSnapshotWriter
from ottla.controller.raft import high_watermark
from ottla.controller.raft.core import Core
from ottla.controller.raft.effects import Flush
from ottla.controller.raft.log import Valid
from ottla.controller.raft.types import ElectionState
from ottla.stories.quorum.quorum_bugs import (
    changes_voters_before_the_last_change_is_committed,
    commits_records_of_older_epochs,
    pre_vote_although_a_leader_lives,
    vote_for_a_shorter_log,
)

Patch = Callable[[], Any]


@contextmanager
def vote_not_persisted() -> Iterator[None]:
    """The epoch is made durable, the vote in it is not: after a crash a node votes again."""
    write = quorum_state.write

    def forgetful(directory: Any, state: ElectionState, files: Any) -> None:
        write(directory, replace(state, voted_id=None), files)

    with patch.object(quorum_state, "write", forgetful):
        yield


@contextmanager
def leader_counts_what_it_has_not_flushed() -> Iterator[None]:
    """The leader's own vote for an offset is given when it has appended."""
    appended = high_watermark.appended

    def hasty(core: Core) -> None:
        high_watermark.flushed(core, core.log.end.offset)
        appended(core)

    with patch.object(high_watermark, "appended", hasty):
        yield


@contextmanager
def follower_asks_for_more_before_it_has_flushed() -> Iterator[None]:
    """Count records as stored that a follower has in memory only."""
    make_durable = Node._make_durable

    def lazy(node: Node, effect: Any) -> None:
        if not isinstance(effect, Flush) or node.is_leader:
            make_durable(node, effect)

    with patch.object(Node, "_make_durable", lazy):
        yield


@contextmanager
def believes_any_log() -> Iterator[None]:
    """A leader never returns a diverging epoch."""
    with patch.object(MetadataLog, "validate", lambda log, offset, epoch: Valid()):
        yield


@contextmanager
def snapshot_not_flushed() -> Iterator[None]:
    """A snapshot counts before it is on the disk."""
    freeze = RawSnapshotWriter.freeze

    def hasty(part: RawSnapshotWriter) -> None:
        with patch.object(part._files, "fsync", lambda fd: None):
            freeze(part)

    with patch.object(RawSnapshotWriter, "freeze", hasty):
        yield


class Mutant(NamedTuple):
    """A bug, the story that finds it, the seeds of which one does, and how it shows."""

    plant: Patch
    story: str
    seeds: range
    #: What "name of the error: its text" has in it, a regular expression: mostly the property of `raft_judge` that
    #: breaks. Whatever else breaks is no find: so a patch shows that no longer fits what it patches.
    sign: str


MUTANTS = [
    Mutant(vote_not_persisted, "votes_are_kept", range(20), "Broken: OneVotePerEpoch:"),
    Mutant(vote_for_a_shorter_log, "leaders_die_young", range(1, 20), "Broken: LeaderCompleteness:"),
    Mutant(
        leader_counts_what_it_has_not_flushed,
        "can_elect_initial_leader",
        range(15, 40),
        "Broken: MajorityReachedHighWatermark:",
    ),
    # A leader that begins below what others know as committed shows long before a batch is lost by it.
    Mutant(
        commits_records_of_older_epochs,
        "leaders_die_young",
        range(70, 100),
        "Broken: MonotonicHighWatermark:",
    ),
    Mutant(
        follower_asks_for_more_before_it_has_flushed,
        "can_elect_initial_leader",
        range(5),
        "Broken: MajorityReachedHighWatermark:",
    ),
    Mutant(
        pre_vote_although_a_leader_lives,
        "isolated_voter_does_not_disturb",
        range(5),
        "AssertionError: the leader was disturbed",
    ),
    Mutant(
        changes_voters_before_the_last_change_is_committed,
        "cut_off_leader_cannot_shrink_the_quorum",
        range(5),
        "Broken: LeaderCompleteness:",
    ),
    # Where the follower asks from behind the leader's end the leader stumbles (OffsetOutOfRange), which proves less.
    Mutant(believes_any_log, "survives_anything", range(8, 20), "Broken: ConsistentCommittedData:"),
    # The node says it itself: it starts with a snapshot that counted, and that the power cut has not left whole.
    Mutant(
        snapshot_not_flushed,
        "survives_anything",
        range(10),
        r"InvalidMetadata: .*\.checkpoint is damaged:",
    ),
]
