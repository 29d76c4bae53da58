"""The slow life of a node: retention, flushes, checkpoints and compaction, step by step beside the requests."""

import asyncio
import logging
from collections.abc import Callable

from broker.config import BrokerConfig
from broker.runtime import Runtime
from storage.background import BackgroundJob
from storage.log_manager import LogManager

logger = logging.getLogger(__name__)

#: How often the log manager is asked what is due; it knows the intervals of each kind of work itself.
_STEP_S = 1.0


class Maintenance:
    """Runs the log manager's background jobs: decided on the loop, carried out in threads."""

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
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin; the first steps come after `log.initial.task.delay.ms`."""
        self._tasks = [
            self._runtime.create_task(self._maintain(), name="log-maintenance"),
            self._runtime.create_task(self._clean(), name="log-cleaner"),
        ]

    async def stop(self) -> None:
        """Begin nothing more, and wait for the job that is running."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _maintain(self) -> None:
        await asyncio.sleep(self._config().log_initial_task_delay_ms / 1000)
        while True:
            for job in self._logs.maintain(self._runtime.now_ms()):
                await self._run(job)
            self._after_retention()
            await asyncio.sleep(_STEP_S)

    async def _clean(self) -> None:
        while True:
            await asyncio.sleep(self._config().log_cleaner_backoff_ms / 1000)
            while self._config().log_cleaner_enable:
                job = self._logs.clean_one(self._runtime.now_ms())
                if job is None:
                    break
                await self._run(job)

    async def _run(self, job: BackgroundJob) -> None:
        # Shielded: a thread cannot be stopped half way, and whoever stops us must know that it has ended.
        running = asyncio.ensure_future(self._runtime.run_blocking(job.run))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            job.finish()
            raise
        except OSError as error:
            logger.error("%s failed: %s", job.name, error)
        job.finish()
