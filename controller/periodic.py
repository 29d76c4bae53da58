"""Periodic tasks of the active controller.

| task | every | what |
|---|---|---|
| writeNoOpRecord | metadata.max.idle.interval.ms | an empty record advances the high watermark (KIP-835) |
| maybeFenceStaleBroker | an eighth of broker.session.timeout.ms | fences the broker whose session expired first |
| electPreferred | leader.imbalance.check.interval.seconds | elects preferred leaders (auto.leader.rebalance.enable) |
| electUnclean | unclean.leader.election.interval.ms | elects leaders where unclean elections are enabled |

A task is a decision like any request's, and waits for those before it. It returns whether there is more to do: then it
runs again at once, after the requests that have waited meanwhile.
Source: PeriodicTaskControlManager and QuorumController of Kafka 4.3.1.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from ottla.controller.membership import brokers
from ottla.controller.partitions.elect_leaders import balance_leaders, elect_unclean
from ottla.controller.result import Result
from ottla.controller.settings import ControllerSettings
from ottla.controller.state import ClusterState
from ottla.controller.steps import Steps
from ottla.metadata.records import NoOpRecord
from ottla.protocol.errors import NotController
from ottla.runtime import Runtime

logger: Final = logging.getLogger(__name__)

#: Delay after a run that has left something to do.
IMMEDIATE_DELAY_MS: Final = 10
#: Delay after a run that has failed: long, so that a permanent failure is not repeated all the time.
AFTER_FAILURE_MS: Final = 300_000
#: Checks of all sessions in one timeout: a broker is fenced after 112.5 % of it at the latest.
_CHECKS_PER_SESSION: Final = 8


class PeriodicTask(NamedTuple):
    """One row of the table: (state, now_ms of the sessions' clock) -> steps. The response is whether there is more."""

    name: str
    #: None: never.
    interval_ms: Callable[[ControllerSettings], int | None]
    decide: Callable[[ClusterState, int], Steps[bool]]


def _write_no_op(state: ClusterState, now_ms: int) -> Steps[bool]:
    yield from ()  # one step
    # A single voter has no other voters to show that it runs, and its disk may stay idle.
    if len(state.kraft.voter_ids) < 2:
        return Result(response=False)
    return Result(response=False, records=[NoOpRecord()])


def _fence_stale_broker(state: ClusterState, now_ms: int) -> Steps[bool]:
    result = yield from brokers.expire_sessions.steps(state, now_ms=now_ms)

    def log(_end_offset: int) -> None:
        for broker_id in result.response:
            logger.warning("fencing broker %d: its session has expired", broker_id)

    return Result(
        response=bool(result.response),
        records=result.records,
        is_atomic=result.is_atomic,
        on_appended=log,  # not before: a decision of several turns may be made again
    )


def expiring(broker_id: int) -> PeriodicTask:
    """Return the task that fences this broker as if its session had expired; a broker that is fenced stays so."""

    def decide(state: ClusterState, now_ms: int) -> Steps[bool]:
        state.sessions.expire(broker_id, now_ms=now_ms)
        return (yield from _fence_stale_broker(state, now_ms))

    return PeriodicTask("expireSession", lambda _: None, decide)


PERIODIC_TASKS: Final = (
    PeriodicTask("writeNoOpRecord", lambda settings: settings.max_idle_interval_ms, _write_no_op),
    PeriodicTask(
        "maybeFenceStaleBroker",
        lambda settings: max(1, settings.broker_session_timeout_ms // _CHECKS_PER_SESSION),
        _fence_stale_broker,
    ),
    PeriodicTask(
        "electPreferred",
        lambda settings: (
            settings.leader_imbalance_check_interval_seconds * 1000
            if settings.auto_leader_rebalance_enable
            else None
        ),
        balance_leaders.steps,
    ),
    PeriodicTask(
        "electUnclean",
        lambda settings: settings.unclean_leader_election_interval_ms,
        elect_unclean.steps,
    ),
)


class PeriodicTasks:
    """The timers of the tasks, while a controller is active. `run` carries out a task and returns its response."""

    def __init__(
        self,
        settings: ControllerSettings,
        *,
        run: Callable[[PeriodicTask], Awaitable[bool]],
        runtime: Runtime,
    ) -> None:
        self._settings = settings
        self._run = run
        self._runtime = runtime
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def start(self) -> None:
        """Start the timers; each task runs for the first time after one interval."""
        for task in PERIODIC_TASKS:
            if (interval_ms := task.interval_ms(self._settings)) is not None:
                self._set(task, interval_ms)

    def stop(self) -> None:
        """Cancel the timers of all tasks."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _set(self, task: PeriodicTask, delay_ms: int) -> None:
        self._timers[task.name] = self._runtime.call_later(delay_ms / 1000, self._begin, task)

    def _begin(self, task: PeriodicTask) -> None:
        self._runtime.create_task(self._run_task(task, self._timers.get(task.name)), name=task.name)

    async def _run_task(self, task: PeriodicTask, timer: asyncio.TimerHandle | None) -> None:
        try:
            has_more = await self._run(task)
            next_ms = IMMEDIATE_DELAY_MS if has_more else task.interval_ms(self._settings)
        except NotController:
            next_ms = None  # the leadership is lost, and this controller is about to be notified
        except Exception:
            logger.exception("the periodic task %s has failed", task.name)
            next_ms = AFTER_FAILURE_MS
        # Its controller may be standby by now, or active again, with other timers.
        is_current = timer is not None and self._timers.get(task.name) is timer
        if is_current and next_ms is not None:
            self._set(task, next_ms)
