"""A broker with many tiered partitions and many copies of each: its start, its metadata, its tasks, its memory.

    python -m ottla.bench.internals.tier_scale [--quick] [--runs N] [--data-dir FOLDER]

1,000 partitions with 1,000 copies each; with --quick 100 with 100. Prints a table and writes it, with every sample, to
bench/results/<date>-tier_scale.{md,json}.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from ottla.bench.environment import REPOSITORY
from ottla.bench.figures import COUNT as NUMBER
from ottla.bench.figures import MEGABYTES, MILLISECONDS, OTTLA, SECONDS, Figure, Goal, Sample
from ottla.bench.internals import command
from ottla.bench.internals.command import Cases
from ottla.bench.internals.storage_support import scratch
from ottla.bench.internals.tier_scale_phases import COUNT, Figures

_PARTITIONS: Final = 1000
_COPIES: Final = 1000
_READERS: Final = 50
_MEMORY_GOAL_BYTES: Final = 300e6
_TURN_GOAL_S: Final = 0.010


def phases_of(folder: Path, *, partitions: int, copies: int, readers: int) -> dict[str, Figures]:
    """Return the figures of each phase in a new folder: first those of the metadata alone, then those of a broker."""
    made = _in_a_process("folder", folder, partitions, copies, readers)
    return made | _in_a_process("broker", folder, partitions, readers)


def _in_a_process(module: str, folder: Path, *arguments: int) -> dict[str, Figures]:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            f"ottla.bench.internals.tier_scale_{module}",
            str(folder),
            *map(str, arguments),
        ],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Figures] = json.loads(done.stdout)
    return found


def tier_scale(folder: Path, *, runs: int, scale: float) -> Cases:
    """Measure; each phase is a case."""
    partitions, copies = round(_PARTITIONS * scale), round(_COPIES * scale)
    readers = max(1, round(_READERS * scale))
    samples: dict[str, dict[str, list[Sample]]] = {}
    for _ in range(runs):
        with scratch(folder / "tiered") as at:
            found = phases_of(at, partitions=partitions, copies=copies, readers=readers)
        for phase, figures in found.items():
            samples.setdefault(phase, {OTTLA: []})[OTTLA].append(figures)
    return Cases(
        name="tier-scale",
        title=f"{partitions:,} tiered partitions with {copies:,} copies each",
        note=(
            "Snapshots of the metadata: alone, in a process without a broker. The others are phases of one "
            "broker, which is a whole cluster: the count is that of partitions it leads, copies it knows "
            f"or has checked, or bytes that {readers} consumers have read from the store at the same time. "
            "The longest turn of the event loop is in processor time, which other work on the machine does "
            "not lengthen, and as it was. Memory: private, at the end of the phase; of the readers: the "
            "most during it."
        ),
        figures=(
            Figure(metric=COUNT, title="count", unit=NUMBER),
            Figure(metric="s", title="time", unit=SECONDS),
            Figure(metric="cpu_s", title="CPU", unit=SECONDS),
            Figure(metric="turn_cpu_s", title="longest turn: CPU", unit=MILLISECONDS),
            Figure(metric="turn_s", title="longest turn", unit=MILLISECONDS),
            Figure(metric="private_bytes", title="memory", unit=MEGABYTES),
        ),
        samples=samples,
        goals={
            ("readers", "private_bytes"): Goal(at_most=_MEMORY_GOAL_BYTES, is_absolute=True),
            **{(phase, "turn_cpu_s"): Goal(at_most=_TURN_GOAL_S, is_absolute=True) for phase in samples},
        },
    )


def main() -> None:
    """Run the measure with the options of the command line."""
    command.run("tier_scale", {"tier_scale": tier_scale}, description=__doc__)


if __name__ == "__main__":
    main()
