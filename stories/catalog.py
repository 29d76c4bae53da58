"""The stories that there are, by room, and the stage that each room's are played on.

The texts are those of the scenario tests, `tests/scenario/ROOM/NAME.txt`; `stories/texts` is a link to them.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from ottla.stories import script
from ottla.stories.elections.election_stage import ElectionStage
from ottla.stories.groups.group_stage import GroupStage
from ottla.stories.partition.remote_log_stage import RemoteLogStage
from ottla.stories.partition.replica_stage import ReplicaStage
from ottla.stories.partition.tiered_stage import TieredStage
from ottla.stories.quorum.quorum_stage import QuorumStage
from ottla.stories.stage import Stage

TEXTS: Final = Path(__file__).parent / "texts"


class Room(NamedTuple):
    """The stories of one subject."""

    title: str
    stage: Callable[[], Stage]


ROOMS: Final[Mapping[str, Room]] = MappingProxyType(
    {
        "lineage": Room("Leader epochs: what a follower truncates", ReplicaStage),
        "follower_fetch": Room("Consumers that read from followers", ReplicaStage),
        "tiering_followers": Room("Followers of a tiered partition", TieredStage),
        "tiering": Room("The remote log's tasks", RemoteLogStage),
        "elections": Room("Elections, and the in-sync replicas", ElectionStage),
        "quorum": Room("The metadata quorum", QuorumStage),
        "groups": Room("Consumer groups", GroupStage),
    }
)


class UnknownStory(ValueError):
    """There is no story of this name."""

    def __init__(self, name: str) -> None:
        near = get_close_matches(name, names(), n=3, cutoff=0.5)
        suggestion = f" Did you mean {', '.join(near)}?" if near else " `ottla play` lists them."
        super().__init__(f"There is no story {name!r}.{suggestion}")


class Story(NamedTuple):
    """One story: ROOM/NAME and its text."""

    name: str
    text: str

    @property
    def room(self) -> str:
        """The subject that it belongs to."""
        return self.name.partition("/")[0]

    @property
    def title(self) -> str:
        """The first line of the text."""
        return script.title(self.text)

    def new_stage(self) -> Stage:
        """Return a stage that plays it."""
        return ROOMS[self.room].stage()


@cache
def names() -> tuple[str, ...]:
    """Return the names of all stories, room by room."""
    return tuple(f"{room}/{file.stem}" for room in ROOMS for file in sorted((TEXTS / room).glob("*.txt")))


def story(name: str) -> Story:
    """Return a story by its name, with or without `.txt` and the path to it; UnknownStory if there is none."""
    short = "/".join(name.removesuffix(".txt").rstrip("/").split("/")[-2:])
    if short not in names():
        raise UnknownStory(name)
    return Story(short, (TEXTS / f"{short}.txt").read_text(encoding="utf-8"))
