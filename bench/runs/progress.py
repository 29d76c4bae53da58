"""The display of a run while it runs, on the standard error: a bar on a terminal, a line for each phase elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ottla.bench.workloads.model import Phase

_MEGABYTE: Final = 1e6


def words_of(seconds: float, *, records: int, payload_bytes: int, errors: int) -> str:
    """Return a line about the work of a phase's clients in this time.

    >>> words_of(2.0, records=2000, payload_bytes=3_000_000, errors=1)
    '2,000 records, 1,000 a second, 1.5 MB/s, errors: 1'
    """
    rate = records / seconds if seconds > 0 else 0.0
    megabytes = payload_bytes / _MEGABYTE / seconds if seconds > 0 else 0.0
    failed = f", errors: {errors:,}" if errors else ""
    return f"{records:,} records, {rate:,.0f} a second, {megabytes:,.1f} MB/s{failed}"


class PhaseProgress:
    """The progress of one phase, shown at each `update`."""

    def __init__(self, shown: "RunProgress", title: str, phase: Phase) -> None:
        self._shown = shown
        self._title = title
        self._seconds = phase.seconds
        self._records = sum(each.records for each in phase.producers if each.records is not None)
        self._began = time.monotonic()
        self._done = (0, 0, 0)

    @property
    def seconds(self) -> float:
        """The seconds since the phase began."""
        return time.monotonic() - self._began

    def restart(self) -> None:
        """Begin the phase now; the time before was spent on preparations."""
        self._began = time.monotonic()

    def update(self, *, records: int, payload_bytes: int, errors: int) -> None:
        """Show the records of its clients up to now."""
        self._done = (records, payload_bytes, errors)
        self.tick()

    def tick(self) -> None:
        """Show the progress at this moment."""
        share = None
        if self._records:
            share = self._done[0] / self._records
        elif self._seconds is not None:
            share = self.seconds / self._seconds
        self._shown.show(self._title, self._words(), share)

    def line(self) -> str:
        """Return the line of the phase as it ended."""
        return f"{self._title}  {self.seconds:.1f} s  {self._words()}".rstrip()

    def _words(self) -> str:
        records, payload_bytes, errors = self._done
        if not (records or errors):
            return ""
        return words_of(self.seconds, records=records, payload_bytes=payload_bytes, errors=errors)


class RunProgress:
    """The progress of all phases of all runs, and of the one that runs."""

    def __init__(self, phases: int) -> None:
        """Create the display; `phases` is the number of phases of all runs on all targets."""
        self._console = Console(file=sys.stderr, highlight=False)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[words]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._began = time.monotonic()
        self._all: TaskID = self._bars.add_task("all phases", total=phases, words="")
        self._one: TaskID = self._bars.add_task("", total=None, words="", visible=False)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bars while the block runs."""
        with self._bars:
            yield

    @contextmanager
    def phase(self, title: str, phase: Phase, *, is_counted: bool) -> Iterator[PhaseProgress]:
        """Show one phase while the block runs, and a line at its end. Those of the warm-up are not counted."""
        progress = PhaseProgress(self, title, phase)
        self._bars.reset(self._one, visible=True)
        progress.tick()
        try:
            yield progress
        finally:
            self.say(progress.line())
            self._bars.update(self._one, visible=False)
            if is_counted:
                self._bars.advance(self._all)

    def show(self, title: str, words: str, share: float | None) -> None:
        """Show the bar of the phase that runs; `share` is None where its end is not known."""
        completed = min(1.0, share) if share is not None else 0.0
        total = 1.0 if share is not None else None
        self._bars.update(self._one, description=title, words=words, completed=completed, total=total)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(f"{time.monotonic() - self._began:5.0f} s  {text}", markup=False, soft_wrap=True)
