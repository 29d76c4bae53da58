"""The memory of processes while a load runs."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ottla.bench.figures import MEGABYTES, MEMORY_TABLE, Figure, Goal, Sample, Table

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
#: One sample of a process takes some 20 us: paced loads are not affected.
_INTERVAL_S: Final = 0.25
#: The goal for a broker's memory under load, unless a program has another one.
LOADED_GOAL_BYTES: Final = 80e6


def memory_of(pid: int) -> tuple[int, int]:
    """Return (resident bytes, those of them that are not shared with files).

    Raises OSError if the process has ended.
    """
    _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_bytes().split()
    return int(resident) * _PAGE_BYTES, (int(resident) - int(shared)) * _PAGE_BYTES


class PeakMemory:
    """Watches some processes while the block runs, and keeps the largest memory that any one of them has held."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.resident_bytes = self.private_bytes = 0
        self._pids = pids
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            # Once more at the end: what is left is still resident.
            is_over = self._is_over.wait(_INTERVAL_S)
            for pid in self._pids:
                try:
                    resident, private = memory_of(pid)
                except OSError:
                    return
                self.resident_bytes = max(self.resident_bytes, resident)
                self.private_bytes = max(self.private_bytes, private)
            if is_over:
                return

    def sample(self) -> Sample:
        """Return the peak as metrics of `memory_table`."""
        return {"private_bytes": float(self.private_bytes), "resident_bytes": float(self.resident_bytes)}


def memory_table(samples: dict[str, list[Sample]], *, goal_bytes: float = LOADED_GOAL_BYTES) -> Table:
    """Make the table of these samples, one for each run."""
    return Table(
        name=MEMORY_TABLE,
        title="Memory of the largest broker under load",
        note="The most that one broker holds during any load. Mapped segments are page cache; on tmpfs all of them "
        "count as resident.",
        figures=(
            Figure(
                metric="private_bytes",
                title="resident, page cache aside",
                unit=MEGABYTES,
                goal=Goal(at_most=goal_bytes, is_absolute=True),
            ),
            Figure(metric="resident_bytes", title="resident, page cache included", unit=MEGABYTES),
        ),
        samples=samples,
    )
