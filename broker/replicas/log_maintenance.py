"""LogMaintenance: runs the LogManager's scheduled tasks, and the log cleaner, in threads.

`storage/manager/scheduled_tasks.py` decides which jobs are due, and which log is cleaned next. The cleaner's thread is
kept below `log.cleaner.io.max.bytes.per.second` by a throttler.

Source: LogManager.startupWithConfigOverrides, LogCleaner and org.apache.kafka.storage.internals.utils.Throttler of
Kafka 4.3.1; unlike that one, this throttler waits before a burst, not after.
"""

import asyncio
import logging
from collections.abc import Callable

from ottla.config.broker_config import BrokerConfig
from ottla.runtime import Pool, Runtime
from ottla.storage.background import BackgroundJob
from ottla.storage.cleaner import CleaningStopped
from ottla.storage.manager.log_manager import LogManager

logger = logging.getLogger(__name__)

#: How often the log manager is asked for jobs that are due; it keeps the interval of each kind of job itself.
_STEP_S = 1.0


#: Shorter waits are skipped: a thread wakes up late anyway.
_TOLERANCE_S = 0.01
#: The window of the rate: after an idle time of more than this, unused rate is not made up for.
_PERIOD_S = 1.0
#: The longest wait between two calls of `check`.
_LONGEST_PAUSE_S = 0.1


class Throttler:
    """Called with the number of bytes read or written; waits while the rate is exceeded."""

    def __init__(
        self,
        bytes_per_second: Callable[[], float],
        *,
        monotonic: Callable[[], float],
        pause: Callable[[float], None],
        check: Callable[[], None],
    ) -> None:
        """`check` raises when the work has to end; it is called at the start of each call and after each wait."""
        self._bytes_per_second = bytes_per_second
        self._monotonic = monotonic
        self._pause = pause
        self._check = check
        #: The start of the period that `_used_s` measures.
        self._began_s = monotonic()
        #: The work done since `_began_s`, as the time that it takes at the permitted rate.
        self._used_s = 0.0

    def __call__(self, size_bytes: int) -> None:
        """Account for `size_bytes`, and wait if the rate is exceeded. [any thread, one at a time]"""
        self._check()
        now_s = self._monotonic()
        idle_s = now_s - self._began_s - self._used_s
        if idle_s > _PERIOD_S:
            self._began_s, self._used_s = now_s, 0.0
        self._used_s += size_bytes / self._bytes_per_second()
        while (early_s := self._began_s + self._used_s - self._monotonic()) > _TOLERANCE_S:
            self._pause(min(early_s, _LONGEST_PAUSE_S))
            self._check()


class LogMaintenance:
    """Runs the jobs of the log manager's scheduled tasks, and those of the log cleaner, each one job at a time."""

    def __init__(
        self,
        runtime: Runtime,
        logs: LogManager,
        config: Callable[[], BrokerConfig],
        *,
        after_retention: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._logs = logs
        self._config = config
        self._after_retention = after_retention
        self._is_stopping = False
        self._throttle = Throttler(
            lambda: self._config().log_cleaner_io_max_bytes_per_second,
            monotonic=runtime.monotonic,
            pause=runtime.pause_thread,
            check=self._check_cleaning,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._maintaining = asyncio.Lock()
        self._cleaner_backoff_ms = config().log_cleaner_backoff_ms
        #: When the cleaner has chosen a log last, on the monotonic clock, and how long the last compaction took.
        self.chose_to_clean_at_s = runtime.monotonic()
        self.last_clean_s = 0.0
        #: Set when log.cleaner.backoff.ms has changed.
        self._backoff_changed = asyncio.Event()

    def on_config_changed(self) -> None:
        """Notify a running pause of a changed configuration; all other code reads the configuration when it
        needs it.
        """
        if self._cleaner_backoff_ms != self._config().log_cleaner_backoff_ms:
            self._cleaner_backoff_ms = self._config().log_cleaner_backoff_ms
            self._backoff_changed.set()

    def start(self) -> None:
        """Start the tasks; maintenance begins after `log.initial.task.delay.ms`, compaction after its back-off."""
        self._tasks = [
            self._runtime.supervise(self._maintain, name="log-maintenance"),
            self._runtime.supervise(self._clean, name="log-cleaner"),
        ]

    async def stop(self) -> None:
        """Start no further job, and wait for the running one."""
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _maintain(self) -> None:
        await asyncio.sleep(self._config().log_initial_task_delay_ms / 1000)
        while True:
            await self.run_due()
            await asyncio.sleep(_STEP_S)

    async def run_due(self) -> None:
        """Run the jobs of the log manager that are due; tests that have moved the clock call it, too."""
        async with self._maintaining:
            if jobs := self._maintenance_jobs():
                for job in jobs:
                    await self._run(job)
                self._after_retention()

    def _maintenance_jobs(self) -> list[BackgroundJob]:
        try:
            jobs = self._logs.maintain(self._runtime.now_ms())
            self._after_retention()
        except Exception:  # of any kind: the next step is independent of this one
            logger.exception("log maintenance failed")
            return []
        return jobs

    async def _clean(self) -> None:
        while True:
            await self._back_off()
            while self._config().log_cleaner_enable and (job := self._cleaning_job()) is not None:
                began_s = self._runtime.monotonic()
                is_cleaned = await self._run(job)
                self.last_clean_s = self._runtime.monotonic() - began_s
                if not is_cleaned:
                    break  # the same log would be chosen again at once

    async def _back_off(self) -> None:
        """The cleaner's pause; it starts again when its length is altered, as Kafka restarts its cleaners."""
        while True:
            self._backoff_changed.clear()
            try:
                await asyncio.wait_for(self._backoff_changed.wait(), self._cleaner_backoff_ms / 1000)
            except TimeoutError:
                return

    def _cleaning_job(self) -> BackgroundJob | None:
        self.chose_to_clean_at_s = self._runtime.monotonic()
        try:
            return self._logs.clean_one(self._runtime.now_ms(), throttle=self._throttle)
        except Exception:
            logger.exception("choosing a log to clean failed")
            return None

    def _check_cleaning(self) -> None:
        """Raise if the node stops: slow cleaning must not delay it. [in the cleaner's thread]"""
        if self._is_stopping:
            raise CleaningStopped

    async def _run(self, job: BackgroundJob) -> bool:
        """Run all parts of the job; False if one failed. A failure is logged and ends this job only."""
        part: BackgroundJob | None = job
        is_good = True
        while part is not None and is_good:
            is_run = await self._run_in_thread(part)
            is_finished, part = _finish(part)
            is_good = is_run and is_finished
        return is_good

    async def _run_in_thread(self, job: BackgroundJob) -> bool:
        """Run the thread's half of a part; if this is cancelled, finish the part as well."""
        # Shielded: a thread cannot be interrupted, and `stop` must return after its end.
        running = asyncio.ensure_future(self._runtime.run_blocking(job.run, pool=Pool.UPKEEP))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            _finish(job)
            raise
        except Exception:
            logger.exception("%s failed", job.name)
            return False
        return True


def _finish(job: BackgroundJob) -> tuple[bool, BackgroundJob | None]:
    """The loop's half of a part: whether it succeeded, and the next part."""
    try:
        return True, job.finish()
    except Exception:
        logger.exception("the end of %s failed", job.name)
        return False, None
