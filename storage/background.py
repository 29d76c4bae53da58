"""Slow work that storage hands to its caller: storage has no threads of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


def _nothing() -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundJob:
    """Work that may wait for the disk.

    `run` is called in a thread, then `finish` on the event loop's thread, whatever became of `run`: it
    looks for itself. `finish` returns the next part of the work, if that was not all. Neither raises for a
    failing disk: the log directory goes offline instead, or it is told, where only files stay that nobody needs.
    """

    name: str
    run: Callable[[], None]
    finish: Callable[[], "BackgroundJob | None"] = _nothing

    def complete(self) -> None:
        """Both halves, of all parts, here and now: start-up, shutdown, tests."""
        part: BackgroundJob | None = self
        while part is not None:
            part.run()
            part = part.finish()


def run_one_by_one(groups: Sequence[Sequence[Callable[[], None]]], *, threads_per_group: int) -> None:
    """The simplest way to run jobs that might run side by side (`log_loading.RunParallel`)."""
    for group in groups:
        for job in group:
            job()
