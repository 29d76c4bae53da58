"""Profiles of Ottla's processor time in a load: samples of each node, divided into parts that add up to the figure.

Pure, but for the lines of this tree's code, by which a system call is known.
"""

import linecache
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import ottla
from ottla.bench.figures import Unit, aligned

_WAITING: Final = "waiting for events, and between callbacks (loop)"
_RECEIVING: Final = "receiving (socket)"
#: Part -> the lines of code that make its calls.
_CALLS: Final = {
    "sending (socket)": re.compile(r"_transport\.(write|writelines)\("),
    "writing files": re.compile(r"\bos\.(pwritev?|writev?|f(data)?sync|ftruncate|posix_fallocate)\("),
    "reading files": re.compile(r"\bos\.(preadv?|readv?|posix_fadvise)\(|\bmmap\.mmap\(|\.madvise\("),
    "checksum": re.compile(r"\bcrc32c\("),
}
#: Part -> the folders of its code.
_CODE: Final = {
    "Python: network": ("broker/network",),
    "Python: api": ("broker/api",),
    "Python: reads": ("broker/replicas/reading",),
    "Python: purgatory": ("broker/replicas/waiting",),
    "Python: replicas, replication": ("broker/replicas", "replication"),
    "Python: storage": ("storage",),
    "Python: protocol": ("protocol",),
    "Python: runtime": ("runtime",),
}
_OTHER: Final = "Python: other"
_OTHER_THREADS: Final = "other threads"
PARTS: Final = (_WAITING, _RECEIVING, *_CALLS, *_CODE, _OTHER, _OTHER_THREADS)

_FUNCTIONS: Final = 10
_PACKAGE: Final = Path(ottla.__file__).parent
_RUNNER: Final = "asyncio/runners.py"
_PRODUCE: Final = "broker/api/k00_produce.py"
BROKER: Final = "broker"
LEADER: Final = "leader"
FOLLOWERS: Final = "both followers"
ALL: Final = "all brokers"


class Frame(NamedTuple):
    """A function that runs, with its file and line."""

    file: str
    function: str
    first_line: int
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSamples:
    """The samples of one node while its sampler was on, in seconds of processor time."""

    #: Stack of the main thread, innermost frame first -> time.
    stacks: Sequence[tuple[float, Sequence[Frame]]]
    #: The processor time of all other threads.
    others_s: float

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read the data that `ottla.bench.internals.profiled_broker` writes."""
        stacks = [(seconds, [Frame(*frame) for frame in stack]) for seconds, stack in data["stacks"]]
        return cls(stacks=stacks, others_s=data["others_s"])

    @property
    def total_s(self) -> float:
        """The processor time of the whole process."""
        return sum(seconds for seconds, _ in self.stacks) + self.others_s

    @property
    def is_leader(self) -> bool:
        """Whether the node has got records from producers."""
        return any(_in_tree(frame.file) == _PRODUCE for _, stack in self.stacks for frame in stack)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The profile of one load. Values are in the base unit of the figure, for each request or gigabyte."""

    #: The measure's name, and the metric of its figure.
    load: str
    metric: str
    #: The figure while it was profiled: the sum of all parts.
    cpu: float
    #: Column (broker, or leader and followers) -> part -> value.
    parts: Mapping[str, Mapping[str, float]]
    #: The functions that take the most themselves, without calls of the parts before "Python", over all
    #: nodes: name -> value.
    functions: Mapping[str, float]


def profile_of(load: str, metric: str, rounds: Iterable[tuple[float, Sequence[NodeSamples]]]) -> Profile:
    """Make the profile of a load; `rounds` has the figure of each round, and the samples of each node meanwhile."""
    rounds = list(rounds)
    parts: dict[str, dict[str, float]] = {}
    functions: dict[str, float] = defaultdict(float)
    for cpu, nodes in rounds:
        # Of a second that was sampled, for the mean of all rounds.
        weight = cpu / sum(node.total_s for node in nodes) / len(rounds)
        for column, node in zip(_columns(nodes), nodes, strict=True):
            its = parts.setdefault(column, dict.fromkeys(PARTS, 0.0))
            its[_OTHER_THREADS] += node.others_s * weight
            for seconds, stack in node.stacks:
                part = part_of(stack)
                its[part] += seconds * weight
                if part.startswith("Python"):
                    functions[_name(stack[0])] += seconds * weight
    most = sorted(functions.items(), key=lambda each: -each[1])[:_FUNCTIONS]
    return Profile(
        load=load,
        metric=metric,
        cpu=statistics.fmean(cpu for cpu, _ in rounds),
        parts={column: parts[column] for column in (BROKER, LEADER, FOLLOWERS, ALL) if column in parts},
        functions=dict(most),
    )


def _columns(nodes: Sequence[NodeSamples]) -> list[str]:
    if len(nodes) == 1:
        return [BROKER]
    leads = [node.is_leader for node in nodes]
    return [ALL] * len(nodes) if all(leads) else [LEADER if is_leader else FOLLOWERS for is_leader in leads]


def part_of(stack: Sequence[Frame]) -> str:
    """Return the part of PARTS to which the time of a sample belongs; `stack` has the innermost frame first."""
    leaf = stack[0]
    if leaf.file.endswith(_RUNNER):
        return _WAITING
    # The handler runs at the first line of the callback that follows what the loop has done in C.
    if leaf.line == leaf.first_line and len(stack) > 1 and stack[1].file.endswith(_RUNNER):
        return _RECEIVING if leaf.function.endswith(".buffer_updated") else _WAITING
    text = linecache.getline(leaf.file, leaf.line)
    for part, call in _CALLS.items():
        if call.search(text):
            return part
    # What the standard library does is its caller's.
    for frame in stack:
        if (path := _in_tree(frame.file)) is not None:
            return next((part for part, folders in _CODE.items() if _is_in(path, folders)), _OTHER)
    return _OTHER


def _in_tree(file: str) -> str | None:
    """Return the path in the package `ottla`; None for code of others."""
    path = Path(file)
    return str(path.relative_to(_PACKAGE)) if path.is_relative_to(_PACKAGE) else None


def _is_in(path: str, folders: Sequence[str]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)


def _name(frame: Frame) -> str:
    return f"{_in_tree(frame.file) or Path(frame.file).name}: {frame.function}"


def profile_lines(profile: Profile, unit: Unit, *, timed: float | None, floor: float | None) -> Iterator[str]:
    """Yield two tables: parts, and functions."""
    columns = list(profile.parts)
    sums = [sum(profile.parts[column].values()) for column in columns]
    yield (
        f"CPU of Ottla, {unit.name}: {unit.shown(profile.cpu)} while it was profiled, {unit.shown(timed)} "
        f"in the timed runs, floor {unit.shown(floor)}."
    )
    yield ""
    rows = [["part", *columns]]
    for part in PARTS:
        values = [profile.parts[column].get(part, 0.0) for column in columns]
        if any(values):
            rows.append([part, *map(unit.shown, values)])
    rows.append(["all", *map(unit.shown, sums)])
    yield from aligned(rows)
    yield ""
    yield from aligned(
        [
            ["function, its own Python", unit.name],
            *([name, unit.shown(value)] for name, value in profile.functions.items()),
        ]
    )
