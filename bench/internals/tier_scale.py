"""A broker with many tiered partitions and many copies of each: its start, its metadata, its tasks, its memory.

    python -m bench.internals.tier_scale [--quick] [--runs N] [--data-dir FOLDER]

1,000 partitions with 1,000 copies each; with --quick 100 with 100. Prints a table and writes it, with every sample, to
bench/results/<date>-tier_scale.{md,json}.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.environment import REPOSITORY
from bench.internals import command
from bench.internals.storage_report import Column, Goal, Section
from bench.internals.storage_support import scratch
from bench.internals.tier_scale_phases import COUNT, Figures

_PARTITIONS: Final = 1000
_COPIES: Final = 1000
_READERS: Final = 50
_MEMORY_GOAL_BYTES: Final = 300e6
_TURN_GOAL_S: Final = 0.010


def phases_of(folder: Path, *, partitions: int, copies: int, readers: int) -> dict[str, Figures]:
    """What each phase took, in a new folder: first those of the metadata alone, then those of a broker."""
    made = _in_a_process("folder", folder, partitions, copies, readers)
    return made | _in_a_process("broker", folder, partitions, readers)


def _in_a_process(module: str, folder: Path, *arguments: int) -> dict[str, Figures]:
    done = subprocess.run(
        [sys.executable, "-m", f"bench.internals.tier_scale_{module}", str(folder), *map(str, arguments)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Figures] = json.loads(done.stdout)
    return found


def tier_scale(folder: Path, *, runs: int, scale: float) -> Section:
    """Each phase is a row."""
    partitions, copies = round(_PARTITIONS * scale), round(_COPIES * scale)
    readers = max(1, round(_READERS * scale))
    rows: dict[str, dict[str, list[float]]] = {}
    for _ in range(runs):
        with scratch(folder / "tiered") as at:
            found = phases_of(at, partitions=partitions, copies=copies, readers=readers)
        for phase, figures in found.items():
            for metric, value in figures.items():
                rows.setdefault(phase, {}).setdefault(metric, []).append(value)
    return Section(
        title=f"{partitions:,} tiered partitions with {copies:,} copies each",
        note=(
            "Snapshots of the metadata: alone, in a process without a broker. The others are phases of one broker, which is a "
            f"whole cluster: the count is that of partitions it leads, copies it knows or has checked, or bytes that "
            f"{readers} consumers have read from the store at the same time. The longest turn of the event "
            "loop is in processor time, which other work on the machine does not lengthen, and as it was. Memory: private, at "
            "the end of the phase; of the readers: the most during it."
        ),
        columns=(
            Column(metric=COUNT, head="count"),
            Column(metric="s", head="s", decimals=2),
            Column(metric="cpu_s", head="CPU s", decimals=2),
            Column(metric="turn_cpu_s", head="longest turn, CPU ms", factor=1e3, decimals=1),
            Column(metric="turn_s", head="longest turn, ms", factor=1e3, decimals=1),
            Column(metric="private_bytes", head="memory MB", factor=1e-6, decimals=1),
        ),
        rows=rows,
        goals=[
            Goal(
                case="readers",
                metric="private_bytes",
                at_most=_MEMORY_GOAL_BYTES,
                words=f"memory with {readers} readers < 300 MB",
            ),
            *(
                Goal(
                    case=phase,
                    metric="turn_cpu_s",
                    at_most=_TURN_GOAL_S,
                    words=f"{phase}: no turn above 10 ms",
                )
                for phase in rows
            ),
        ],
    )


def main() -> None:
    """The command line."""
    command.run("tier_scale", {"tier_scale": tier_scale}, description=__doc__)


if __name__ == "__main__":
    main()
