"""Turns of the event loop that take too long, from the reports in the logs of Ottla's nodes (`runtime/stalls.py`).

Pure: bytes in, figures and words out. `bench/targets/turn_logs.py` has the nodes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ottla.bench.figures import COUNT, FLOOR, MILLISECONDS, OTTLA, Figure, Goal, Sample, Table

BOUND_MS: Final = 5
TURNS_TABLE: Final = "turns"
TURNS_FIGURES: Final = (
    Figure(
        metric="turns",
        title=f"turns above {BOUND_MS} ms",
        unit=COUNT,
        goal=Goal(at_most=0, is_absolute=True),
        is_fault=True,
    ),
    Figure(metric="longest_turn_s", title="the longest turn", unit=MILLISECONDS),
)
#: The figures under the loads that the floor takes, too. Turns that both have are the machine's: the floor's
#: loop does nothing in between.
_FLOOR_FIGURES: Final = (
    Figure(metric="floors_turns", title=f"turns above {BOUND_MS} ms under the floor's loads", unit=COUNT),
    Figure(metric="floors_longest_turn_s", title="the longest of them", unit=MILLISECONDS),
)

_READY: Final = re.compile(r"^READY ", re.MULTILINE)
#: A report's stack follows on the same line, with escaped ends of lines, or on lines that are indented.
_REPORT: Final = re.compile(
    r"One turn of the event loop has (?:taken|not ended after) (\d+) ms "
    r"\((\d+) ms running, (\d+) ms waiting for a processor.*"
    r"(?:\n  .*)*"
)
_FRAME: Final = re.compile(r'File \\?"([^"\\]+)\\?", line (\d+), in ([\w<>]+)')
_FRAMES: Final = 3
#: The number of turns of a load that are shown.
_LONGEST: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn of the event loop above the bound."""

    #: The duration without waits for a processor.
    own_s: float
    #: The part of it that the thread ran; the rest it was blocked, or waited for the interpreter's lock.
    running_s: float
    #: The innermost functions, as far as the watch could see.
    where: str

    def words(self) -> str:
        """Return the turn in words, for a list."""
        return f"{self.own_s * 1000:.0f} ms ({self.running_s * 1000:.0f} running) in {self.where}"


def turns_in(log: bytes, starts: Sequence[int], *, since: int = 0) -> list[Turn]:
    """Return the turns that a log reports from `since` on, without those of each process before it was ready.

    Nothing is under load before.

    `starts` are the log's sizes at which a process was started.
    """
    found = []
    for begin, end in zip(starts, [*starts[1:], len(log)], strict=True):
        ready = _READY.search(log[begin:end].decode(errors="replace"))
        if ready is not None:
            text = log[max(since, begin) : end].decode(errors="replace")
            if begin >= since:
                text = text[ready.start() :]
            found += [_turn(match) for match in _REPORT.finditer(text)]
    return found


def _turn(report: re.Match[str]) -> Turn:
    took_ms, running_ms, queued_ms = map(int, report.groups())
    frames = [f"{_short(file)}:{line} {name}" for file, line, name in _FRAME.findall(report[0])]
    return Turn(
        own_s=(took_ms - queued_ms) / 1000,
        # The thread may have run on until the watch woke.
        running_s=min(running_ms, took_ms - queued_ms) / 1000,
        where=" < ".join(reversed(frames[-_FRAMES:])) or "unknown code",
    )


def _short(file: str) -> str:
    return "/".join(Path(file).parts[-2:])


def all_turns(turns: Mapping[str, Sequence[Turn]]) -> list[Turn]:
    """Return the turns of all loads together."""
    return [turn for found in turns.values() for turn in found]


def turns_sample(turns: Sequence[Turn]) -> Sample:
    """Return the turns as metrics of `TURNS_FIGURES`."""
    longest = {"longest_turn_s": max(turn.own_s for turn in turns)} if turns else {}
    return {"turns": float(len(turns)), **longest}


def _of_floors_loads(turns: Mapping[str, Sequence[Turn]]) -> Sample:
    return {f"floors_{metric}": value for metric, value in turns_sample(all_turns(turns)).items()}


def turns_table(turns: Mapping[str, Sequence[Turn]], floor_turns: Mapping[str, Sequence[Turn]]) -> Table:
    """Return the table of a program, of all loads together, and of those that the floor takes."""
    samples: dict[str, list[Sample]] = {OTTLA: [turns_sample(all_turns(turns))]}
    if floor_turns:
        same = {load: turns[load] for load in floor_turns}
        samples[OTTLA][0] |= _of_floors_loads(same)
        samples[FLOOR] = [_of_floors_loads(floor_turns)]
    return Table(
        name=TURNS_TABLE,
        title="Event loops of all nodes under all loads",
        note=f"Turns that took more than {BOUND_MS} ms without the time for which the thread waited for a "
        "processor, in a round of its own with other nodes: the watch would cost the timed runs some "
        "percent. Kafka has no such loop.",
        figures=(*TURNS_FIGURES, *_FLOOR_FIGURES) if floor_turns else TURNS_FIGURES,
        samples=samples,
    )


def words_of(turns: Mapping[str, Sequence[Turn]]) -> list[str]:
    """Yield a line for each load that had some: how many, and the longest ones."""
    return [
        f"{load}: {len(found)}: "
        + "; ".join(turn.words() for turn in sorted(found, key=lambda turn: -turn.own_s)[:_LONGEST])
        for load, found in turns.items()
        if found
    ]
