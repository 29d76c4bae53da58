"""Planted bugs: stages on which one rule is replaced, with the stories that show what follows from that."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ottla.stories.partition.older_rules import AsksOnce, TruncatesToHighWatermark
from ottla.stories.partition.replica_stage import ReplicaStage
from ottla.stories.recording import record
from ottla.stories.script import StoryError
from ottla.stories.stage import Stage
from ottla.stories.trace import Planted, Step


class Bug(NamedTuple):
    """A rule that is replaced: its name in URLs, a title, the stage, and the outcome of each story that shows it."""

    name: str
    title: str
    stage: Callable[[], Stage]
    #: By story: a line that its last block prints with the bug, and does not print without it.
    outcomes: Mapping[str, str]


BUGS: Final = (
    Bug(
        "truncates_to_high_watermark",
        "The rule that KIP-101 replaced: a follower truncates to its high watermark when the leader changes",
        lambda: ReplicaStage(TruncatesToHighWatermark),
        {
            "lineage/scenario_1": "lost: m2",
            "lineage/scenario_2": "divergent at 1",
            "lineage/scenario_2_batches": "A asks nothing any more",
            "lineage/appendix": "divergent at 0",
        },
    ),
    Bug(
        "asks_once",
        "KIP-101 without KIP-279: a follower ignores the epoch in the leader's response",
        lambda: ReplicaStage(AsksOnce),
        {"lineage/appendix": "divergent at 0", "lineage/fast_leader_changes": "divergent at 2"},
    ),
)


def bugs_of(story: str) -> list[Bug]:
    """Return the bugs that a story shows."""
    return [bug for bug in BUGS if story in bug.outcomes]


def planted(story: str, text: str, bug: Bug) -> Planted:
    """Play a story with a bug; a run that ends early, by an assertion, has the steps up to there."""
    steps: list[Step] = []
    outcome = bug.outcomes[story]
    try:
        record(text, bug.stage(), on_step=lambda found: steps.__setitem__(slice(None), found))
    except StoryError as error:
        outcome = error.message
    return Planted(name=bug.name, title=bug.title, outcome=outcome, steps=steps)
