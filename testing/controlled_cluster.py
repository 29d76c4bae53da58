"""A cluster that a test starts and stops, of one node or of several: its folder, its clock, and its use in a `with`."""

import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ottla.runtime.production import wall_clock_ms
from ottla.testing.awaitables import AwaitableOf, in_a_thread
from ottla.testing.cluster_methods import Awaitables, ClusterMethods
from ottla.testing.in_process import NodeLife
from ottla.testing.network import Clock

#: Sessions of brokers in tests, so that `advance` fences none: twenty days.
LIVENESS_MS: Final = 20 * 24 * 3600 * 1000
#: The configuration of a tier in tests: closed segments are copied soon, and few partitions hold their metadata.
TIER_DEFAULTS: Final[Mapping[str, str]] = {
    "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
    "remote.log.manager.task.interval.ms": "100",
}
#: The longest step of the clock: within it no session ends.
STEP_S: Final = LIVENESS_MS / 2000


class ControlledCluster(ClusterMethods):
    """A cluster that a test starts and stops, and whose clock it moves."""

    def __init__(
        self, *, data_dir: Path | str | None, tier: bool | Path | str, keep: bool, strict: bool
    ) -> None:
        """`data_dir` None is a temporary folder, which `stop` deletes unless `keep` is true."""
        super().__init__()
        self._given_dir = None if data_dir is None else Path(data_dir)
        self._folder: Path | None = None
        self._given_tier = tier
        self._keep = keep
        self._strict = strict
        #: How far `advance` has moved the clock; a restart of a node keeps it.
        self.clock = Clock()

    @abstractmethod
    def start(self) -> Self:
        """Start all nodes that do not run."""

    @abstractmethod
    def stop(self) -> None:
        """Stop all nodes, cleanly if their data stay, or delete the temporary folder."""

    def reset(self) -> None:
        """End all faults, and delete all topics and groups; a clock that was moved shows the present again.

        The last needs a restart. A node that was killed is started, one that is paused or isolated goes on. Raises
        FaultNeverStruck for a fault that was never met.
        """
        try:
            self._reset_faults()
        finally:
            self._run_again()
            super().reset()
            if self.clock.ahead_s:
                self.clock.ahead_s = 0.0
                self._begin_again()

    @abstractmethod
    def _begin_again(self) -> None:
        """Restart all nodes: their clocks have to go back."""

    @abstractmethod
    def _run_again(self) -> None:
        """Let all nodes run that were killed, paused or isolated."""

    @abstractmethod
    def _reset_faults(self) -> None:
        """End all faults. Raises FaultNeverStruck."""

    def _record_time_ms(self) -> int:
        """Return the time of records that the test itself produces: that of the clock that it has moved."""
        return wall_clock_ms() + round(self.clock.ahead_s * 1000)

    @abstractmethod
    def _lives(self) -> Sequence[NodeLife]:
        """Return the nodes that run, controllers first. Raises RuntimeError if none does."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._strict = False  # the test has failed: a fault that it did not reach is no further finding
        self.stop()

    async def __aenter__(self) -> Self:
        return await in_a_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await in_a_thread(lambda: self.__exit__(kind, error, trace))

    @property
    def data_dir(self) -> Path:
        """The folder of all data, but for that of the remote tier."""
        if self._given_dir is not None:
            return self._given_dir
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="ottla-"))
        return self._folder / "data"

    @property
    def tier_dir(self) -> Path | None:
        """The folder of the remote tier; None: it has none, or one that is not a folder."""
        if self._given_tier is True:
            return self.data_dir.with_name(f"{self.data_dir.name}-tier")
        return self._given_tier if isinstance(self._given_tier, Path) else None

    def advance(
        self, *, days: float = 0.0, hours: float = 0.0, minutes: float = 0.0, seconds: float = 0.0
    ) -> None:
        """Move the clock of all nodes forward: sessions and time-outs end, retention deletes, delayed answers are sent.

        Returns when retention has been applied to all logs; a paused node does the same when it goes on. The clocks of
        clients do not move.
        """
        lead_s = duration_s(days=days, hours=hours, minutes=minutes, seconds=seconds)
        for number, step_s in enumerate(_steps(lead_s)):
            if number:
                self._settle()
            lives = self._lives()
            self.clock.ahead_s += step_s
            # One after the other, controllers first: heartbeats of brokers that have moved count as young.
            for life in lives:
                advanced = life.advance(step_s)
                if not life.is_paused:
                    advanced.result()

    def _settle(self) -> None:
        """Wait, between two steps of the clock, until no session is about to end."""
        return

    @property
    def _tier_text(self) -> Path | str | None:
        """The remote tier as `load_config` takes it."""
        if self._given_tier is True:
            return self.tier_dir
        return self._given_tier or None

    @property
    def _leaves_nothing(self) -> bool:
        """Whether all data will be deleted at the stop: then it need not be closed cleanly, which takes time."""
        return self._given_dir is None and not self._keep and isinstance(self._given_tier, bool)

    def _delete_folder(self) -> None:
        if self._folder is not None and not self._keep:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


class ControlledAwaitables(Awaitables):
    """The methods of a cluster that a test controls as awaitables."""

    start = AwaitableOf(ControlledCluster.start)
    stop = AwaitableOf(ControlledCluster.stop)
    advance = AwaitableOf(ControlledCluster.advance)


def duration_s(*, days: float, hours: float, minutes: float, seconds: float) -> float:
    """Return how far a clock is to be moved, in seconds. Raises ValueError if that would be back."""
    lead_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if lead_s < 0:
        raise ValueError("The clock cannot be moved back: give a positive time.")
    return lead_s


def _steps(lead_s: float) -> Iterator[float]:
    while lead_s > 0:
        step_s = min(lead_s, STEP_S)
        yield step_s
        lead_s -= step_s
