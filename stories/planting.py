"""Planted bugs: one rule is replaced while a story is played, and the story shows what follows from that.

The simulation plants most of them, too, and others that no short story shows (docs/SIMULATION.md).
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from ottla.stories.elections import election_bugs
from ottla.stories.partition import replica_bugs, tier_bugs
from ottla.stories.partition.older_rules import AsksOnce, TruncatesToHighWatermark
from ottla.stories.partition.replica_stage import ReplicaStage
from ottla.stories.quorum import quorum_bugs
from ottla.stories.recording import record
from ottla.stories.script import StoryError
from ottla.stories.stage import Stage
from ottla.stories.trace import Planted, Step


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A rule that is replaced: its name in URLs, a title, and what each story that shows it comes to."""

    name: str
    title: str
    #: By story: a line that a step prints with the bug, and does not print without it; or, if an assertion of the code
    #: ends the run, a part of the sentence that says so.
    outcomes: Mapping[str, str]
    #: The stage, where it is another one than that of the story's room.
    stage: Callable[[], Stage] | None = None
    #: Replaces the rule.
    plant: Callable[[], AbstractContextManager[None]] = field(default=nullcontext)


#: The row of an unclean election, as `ElectionStage` prints it.
_LOST: Final = "3      4     3       -     -          recovering"

BUGS: Final = (
    Bug(
        name="truncates_to_high_watermark",
        title="The rule that KIP-101 replaced: a follower truncates to its high watermark when the leader changes",
        stage=lambda: ReplicaStage(TruncatesToHighWatermark),
        outcomes={
            "lineage/scenario_1": "lost: m2",
            "lineage/scenario_2": "divergent at 1",
            "lineage/scenario_2_batches": "A asks nothing any more",
            "lineage/appendix": "divergent at 0",
        },
    ),
    Bug(
        name="asks_once",
        title="KIP-101 without KIP-279: a follower ignores the epoch in the leader's response",
        stage=lambda: ReplicaStage(AsksOnce),
        outcomes={"lineage/appendix": "divergent at 0", "lineage/fast_leader_changes": "divergent at 2"},
    ),
    Bug(
        name="no_epoch_without_records",
        title="A leader without records leaves no entry in its leader-epoch-checkpoint (KIP-101 asks for one)",
        plant=replica_bugs.no_epoch_without_records,
        outcomes={
            "lineage/fencing": "A HW=3 m1:e0 m2:e1 m3:e1 | e0@0 e1@1",
            "lineage/high_watermark": "C HW=4 m1:e0 m2:e0 m3:e1 m4:e1 | e0@0 e1@2",
            "follower_fetch/questions": "e-1 ends at -1",
        },
    ),
    Bug(
        name="expansion_before_the_epoch_start",
        title="A replica joins the ISR below the start of the leader epoch, whatever an older leader has committed",
        plant=replica_bugs.expansion_before_the_epoch_start,
        outcomes={"lineage/high_watermark": "an assertion of the played code"},
    ),
    Bug(
        name="followers_serve_all",
        title="A follower takes the end of its log for the high watermark (KIP-392 limits it to what the leader says)",
        plant=replica_bugs.followers_serve_all_that_they_have,
        outcomes={"follower_fetch/cases": "m1 m2 m3 m4 m5, HW 5"},
    ),
    Bug(
        name="unfinished_copies_are_forgotten",
        title="Copies that a leader began and did not finish stay in the store (KIP-405 deletes them)",
        plant=tier_bugs.unfinished_copies_are_forgotten,
        outcomes={
            "tiering/hanging_store": "copy 1 of 0-0 e0@0 is COPY_SEGMENT_STARTED",
            "tiering/restart_during_upload": "copy 1 of 0-1 e0@0 is COPY_SEGMENT_STARTED",
            "tiering/follower_to_leader": "copy 3 of 3-4 e0@3 is COPY_SEGMENT_STARTED",
            "tiering/truncation_during_upload": "copy 2 of 2-3 e1@2 is COPY_SEGMENT_STARTED",
        },
    ),
    Bug(
        name="objects_before_the_metadata",
        title="The objects of a copy are deleted before the metadata say DELETE_SEGMENT_STARTED",
        plant=tier_bugs.objects_before_the_metadata,
        outcomes={"tiering/deletion_half_done": "copy 1 of 0-1 e0@0 is COPY_SEGMENT_FINISHED"},
    ),
    Bug(
        name="local_retention_does_not_wait",
        title="Local retention removes segments that are not copied yet",
        plant=tier_bugs.local_retention_does_not_wait_for_copies,
        outcomes={
            "tiering/store_is_down": "an assertion of the played code",
            "tiering/restart_during_upload": "an assertion of the played code",
        },
    ),
    Bug(
        name="no_eligible_leader_replicas",
        title="Before KIP-966: a replica that leaves the ISR is not eligible, and the last one may lose records",
        plant=election_bugs.no_eligible_leader_replicas,
        outcomes={
            "elections/last_replica_standing": f"{'3 is unfenced':<48} {_LOST}",
            "elections/elr": f"{'1 is fenced':<48} 2      1     2 3     -     -",
        },
    ),
    Bug(
        name="vote_for_a_shorter_log",
        title="Every candidate gets the vote, whatever log it has (KIP-595 compares the logs)",
        plant=quorum_bugs.vote_for_a_shorter_log,
        outcomes={"quorum/votes": "1 <- 2 granted"},
    ),
    Bug(
        name="commits_records_of_older_epochs",
        title="A majority is enough to commit, also a record of a former leader (figure 8 of the Raft paper)",
        plant=quorum_bugs.commits_records_of_older_epochs,
        outcomes={"quorum/high_watermark": "1: HW 2"},
    ),
    Bug(
        name="pre_vote_although_a_leader_lives",
        title="A follower that fetches from its leader grants pre-votes (KIP-996 refuses them)",
        plant=quorum_bugs.pre_vote_although_a_leader_lives,
        outcomes={"quorum/resignation": "3 <- 2 granted"},
    ),
    Bug(
        name="changes_voters_before_the_commit",
        title="A second change of the voters begins before the first one is committed (KIP-853: one at a time)",
        plant=quorum_bugs.changes_voters_before_the_last_change_is_committed,
        outcomes={"quorum/one_change": "1: voters 1 2"},
    ),
)


def bugs_of(story: str) -> list[Bug]:
    """Return the bugs that a story shows."""
    return [bug for bug in BUGS if story in bug.outcomes]


def planted(story: str, text: str, bug: Bug, new_stage: Callable[[], Stage]) -> Planted:
    """Play a story with a bug; a run that an assertion ends has the steps up to there.

    `new_stage` makes the stage of the story's room.
    """
    steps: list[Step] = []
    outcome = bug.outcomes[story]
    try:
        with bug.plant():
            record(
                text, (bug.stage or new_stage)(), on_step=lambda found: steps.__setitem__(slice(None), found)
            )
    except StoryError as error:
        outcome = error.message
    return Planted(name=bug.name, title=bug.title, outcome=outcome, steps=steps)
