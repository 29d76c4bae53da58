"""Background jobs: slow work that storage returns to its caller, as storage has no threads of its own."""

from collections.abc import Callable, Sequence


def _nothing() -> None:
    return


class BackgroundJob:
    """Work that may wait for the disk.

    `run` is called in a thread, then `finish` on the event loop's thread, even if `run` has failed: `finish`
    checks the result itself. It returns the next part of the work, if there is one. Neither raises for a failing
    disk: the log directory goes offline instead, or, where only unneeded files stay behind, the error is logged.

    Each is called once: what a job does was decided for the state in which it was made.
    """

    __slots__ = ("_finish", "_is_finished", "_is_run", "_run", "name")

    def __init__(
        self, *, name: str, run: Callable[[], None], finish: "Callable[[], BackgroundJob | None]" = _nothing
    ) -> None:
        self.name = name
        self._run = run
        self._finish = finish
        self._is_run = self._is_finished = False

    def run(self) -> None:
        """Do the half of the job that may wait for the disk. [any thread]"""
        assert not self._is_run, self.name
        assert not self._is_finished, self.name
        self._is_run = True
        self._run()

    def finish(self) -> "BackgroundJob | None":
        """Do the half of the job that takes effect, on the event loop; returns the next part of the job."""
        assert not self._is_finished, self.name
        self._is_finished = True
        return self._finish()

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
