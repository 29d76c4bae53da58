"""What the active controller does unasked, from time to time.

| task | every | what |
|---|---|---|
| writeNoOpRecord | metadata.max.idle.interval.ms | a record that says nothing: the high watermark moves, so all see that the quorum works (KIP-835) |
| maybeFenceStaleBroker | eighth part of broker.session.timeout.ms | fences the broker that has been silent for longest, beyond its session's timeout |
| electPreferred | leader.imbalance.check.interval.seconds | preferred leaders lead again, with auto.leader.rebalance.enable |
| electUnclean | unclean.leader.election.interval.ms | partitions that nobody leads get a leader, where records may be lost for it |

A task is a decision like any request's. It answers whether there is more to do: then it comes again at once, behind
the requests that have waited meanwhile.
Source: PeriodicTaskControlManager and QuorumController of Kafka 4.3.1.
"""

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from controller import brokers, rebalancing
from controller.result import Result
from controller.settings import ControllerSettings
from controller.state import ClusterState
from protocol.errors import NotController
from protocol.metadata.records import NoOpRecord

logger: Final = logging.getLogger(__name__)

#: After a run that has left something to do.
AT_ONCE_MS: Final = 10
#: After a run that has failed: long enough not to fail all the time, and it may have been something passing.
AFTER_FAILURE_MS: Final = 300_000
#: Sessions are looked through so many times in one timeout: a broker is fenced after 112.5 % of it at the latest.
_CHECKS_PER_SESSION: Final = 8


class PeriodicTask(NamedTuple):
    """One row of the table: (state, now_ms of the sessions' clock) -> Result; response: whether there is more."""

    name: str
    #: None: not at all.
    interval_ms: Callable[[ControllerSettings], int | None]
    decide: Callable[[ClusterState, int], Result[bool]]


def _write_no_op(state: ClusterState, now_ms: int) -> Result[bool]:
    # Nobody has to be shown that a single voter lives, and its disk may rest.
    if len(state.kraft.voter_ids) < 2:
        return Result(response=False)
    return Result(response=False, records=[NoOpRecord()])


def _fence_stale_broker(state: ClusterState, now_ms: int) -> Result[bool]:
    result = brokers.expire_sessions(state, now_ms=now_ms)
    for broker_id in result.response:
        logger.warning("fencing broker %d: its session has expired", broker_id)
    return Result(response=bool(result.response), records=result.records, is_atomic=result.is_atomic)


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
        rebalancing.balance_leaders,
    ),
    PeriodicTask(
        "electUnclean",
        lambda settings: settings.unclean_leader_election_interval_ms,
        rebalancing.elect_unclean,
    ),
)


class PeriodicTasks:
    """The timers of the tasks, while a controller is active. `run` carries a task out; its answer is the task's."""

    def __init__(
        self,
        settings: ControllerSettings,
        *,
        run: Callable[[PeriodicTask], bool],
        call_later: Callable[[float, Callable[[], object]], Any],
    ) -> None:
        self._settings = settings
        self._run = run
        self._call_later = call_later
        self._timers: dict[str, Any] = {}

    def start(self) -> None:
        """Each task's first run is one interval away."""
        for task in PERIODIC_TASKS:
            if (interval_ms := task.interval_ms(self._settings)) is not None:
                self._set(task, interval_ms)

    def stop(self) -> None:
        """No task runs any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _set(self, task: PeriodicTask, delay_ms: int) -> None:
        self._timers[task.name] = self._call_later(delay_ms / 1000, lambda: self._ring(task, delay_ms))

    def _ring(self, task: PeriodicTask, delay_ms: int) -> None:
        try:
            has_more = self._run(task)
            next_ms = AT_ONCE_MS if has_more else task.interval_ms(self._settings)
        except NotController:
            next_ms = None  # the leadership has gone, and this controller is about to hear of it
        except Exception:
            logger.exception("the periodic task %s has failed", task.name)
            next_ms = AFTER_FAILURE_MS
        if task.name in self._timers and next_ms is not None:  # it may have ended its controller's leadership
            self._set(task, next_ms)
