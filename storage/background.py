"""Background jobs: slow work that storage returns to its caller, as storage has no threads of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


def _nothing() -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundJob:
    """Work that may wait for the disk.

    `run` is called in a thread, then `finish` on the event loop's thread, even if `run` has failed: `finish`
    checks the result itself. It returns the next part of the work, if there is one. Neither raises for a failing
    disk: the log directory goes offline instead, or, where only unneeded files stay behind, the error is logged.
    """

    name: str
    run: Callable[[], None]
    finish: Callable[[], "BackgroundJob | None"] = _nothing

    def complete(self) -> None:
        """Run both halves of all parts in the caller's thread: at start-up, at shutdown, in tests."""
        part: BackgroundJob | None = self
        while part is not None:
            part.run()
            part = part.finish()


def run_one_by_one(groups: Sequence[Sequence[Callable[[], None]]], *, threads_per_group: int) -> None:
    """A sequential `log_loading.RunParallel`: all jobs in the caller's thread."""
    for group in groups:
        for job in group:
            job()
