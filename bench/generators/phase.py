"""A phase's clients while they run: the driver's side of its Spark tasks.

start   all clients connect; then they get one time at which all begin
load    until the producers have answers for all of their records, and the events have happened
drain   consumers read up to the end offsets that then hold
over    idle connections are asked once more; the tasks yield their rows

A client that fails, and `stop`, end the phase at once; the rows of what was done up to then are kept.
"""

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ottla.bench.figures import LoadFailed
from ottla.bench.generators.assignment import (
    Plan,
    ProducerPlan,
    TaskPlan,
    connections_plans,
    plans_of,
    spread,
)
from ottla.bench.generators.cluster import ClusterDoesNotAnswer, ClusterReader
from ottla.bench.generators.control import Control
from ottla.bench.generators.rows import Role, Row
from ottla.bench.generators.running import now_us
from ottla.bench.generators.shipping import ship_bench
from ottla.bench.generators.task import run_task
from ottla.bench.targets.wire import API_VERSIONS_REQUEST, request_frame
from ottla.bench.workloads.model import Phase, Start
from ottla.protocol.api_keys import ApiKey

_READY_TIMEOUT_S: Final = 90.0
#: The time from the order to start until the start: it has to reach all tasks.
_LEAD_US: Final = 300_000
#: The time that clients may take to end after `stop`.
_STOP_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The answers that producers have up to now, or the records that consumers have read if there are no producers."""

    records: int
    payload_bytes: int
    errors: int


class RunningPhase:
    """The clients of one phase on one target; `start` it, and `wait` for its rows."""

    def __init__(
        self,
        spark: SparkSession,
        phase: Phase,
        bootstrap: str,
        topics: Mapping[str, str],
        *,
        stream_prefix: str,
        slots: int,
    ) -> None:
        self._spark, self._phase = spark, phase
        self._reader = ClusterReader(bootstrap)
        #: The rows that the tasks have yielded; all of them after `wait`, also if that raises.
        self.rows: list[Row] = []
        #: The start of the phase, in seconds since the epoch.
        self.started_at_s = 0.0
        self._events_over = not phase.events
        self._is_stopped = False
        self._failures: list[str] = []
        self._job_error: Exception | None = None
        read = {topics[each.topic] for each in phase.consumers}
        written = {topics[each.topic] for each in phase.producers}
        self._read = read
        self._cluster = self._reader.read(read | written, with_ends_of=read)
        plans: list[Plan] = [
            *plans_of(phase, cluster=self._cluster, topics=topics, stream_prefix=stream_prefix)
        ]
        if phase.connections is not None:
            plans += connections_plans(
                phase.connections.count,
                addresses=self._reader.brokers(),
                request=request_frame(ApiKey.API_VERSIONS, API_VERSIONS_REQUEST),
                tasks=slots,
            )
        self._plans = spread(plans, slots=slots)

    @classmethod
    def start(
        cls,
        spark: SparkSession,
        phase: Phase,
        bootstrap: str,
        topics: Mapping[str, str],
        *,
        stream_prefix: str,
        slots: int,
    ) -> Self:
        """Start the tasks; all clients are connected and have their start time when this returns.

        `topics`: name in the workload -> in the cluster. `stream_prefix` is unique among all loads that ever
        write to these topics. Raises LoadFailed if the cluster does not answer, or a client cannot start.
        """
        try:
            running = cls(spark, phase, bootstrap, topics, stream_prefix=stream_prefix, slots=slots)
        except ClusterDoesNotAnswer as error:
            raise LoadFailed(str(error)) from error
        running._begin()
        return running

    @property
    def is_over(self) -> bool:
        """Whether `wait` returns at once."""
        return not self._conductor.is_alive() and not self._job.is_alive()

    def progress(self) -> Progress:
        """Return the progress of all clients, up to a second old."""
        with self._control.changed:
            counts = dict(self._control.progress)
        role = Role.PRODUCER if self._phase.producers else Role.CONSUMER
        chosen = [row for client, row in counts.items() if client.startswith(role)]
        records, payload_bytes, errors = (sum(row[at] for row in chosen) for at in range(3))
        return Progress(records=records, payload_bytes=payload_bytes, errors=errors)

    def note_events_over(self) -> None:
        """Note that all events have happened, with what they wait for: from now on the phase may end."""
        with self._control.changed:
            self._events_over = True
            self._control.changed.notify_all()

    def stop(self) -> None:
        """End the phase now; does nothing if it is over."""
        with self._control.changed:
            self._is_stopped = True
            self._control.changed.notify_all()

    def wait(self) -> list[Row]:
        """Return the rows of all clients. Raises LoadFailed if one of them failed; the other rows are in `rows`."""
        self._conductor.join()
        self._job.join()
        if self._failures:
            raise LoadFailed(f"{self._phase.name}: {'; '.join(self._failures)}")
        if self._job_error is not None:
            raise LoadFailed(f"{self._phase.name}: Spark: {self._job_error}") from self._job_error
        return self.rows

    def _begin(self) -> None:
        context = self._spark.sparkContext
        ship_bench(context)
        self._control = Control(str(context.getConf().get("spark.driver.host")), tasks=len(self._plans))
        self._job_group = f"ottla-bench-{secrets.token_hex(8)}"
        self._job = threading.Thread(target=self._run_job, name="bench-job", daemon=True)
        self._conductor = threading.Thread(target=self._conduct, name="bench-conductor", daemon=True)
        self._started = threading.Event()
        self._job.start()
        self._conductor.start()
        self._started.wait()
        if self._failures and not self.started_at_s:
            self.wait()

    def _run_job(self) -> None:
        context = self._spark.sparkContext
        plans = [
            TaskPlan(
                index=plan.index,
                plans=plan.plans,
                control=self._control.address,
                token=self._control.token,
            )
            for plan in self._plans
        ]
        context.setJobGroup(self._job_group, f"ottla bench: {self._phase.name}")
        try:
            if plans:
                self.rows = context.parallelize(plans, len(plans)).mapPartitions(run_task).collect()
        except (PySparkException, Py4JError, OSError) as error:
            self._job_error = error
        finally:
            with self._control.changed:
                self._control.changed.notify_all()

    def _conduct(self) -> None:
        """Start the clients, run the load, let the consumers finish, and end the phase."""
        with self._control:
            try:
                if self._start_clients() and self._run_load() and self._drain():
                    self._control.broadcast("over")
                    self._await(lambda: self._control.done == self._tasks)
            except ClusterDoesNotAnswer as error:
                self._failures.append(str(error))
            finally:
                self._failures += self._control.failures
                if self._control.done != self._tasks:
                    self._control.broadcast("stop")
                self._started.set()
                # A task that does not end by itself would keep its slot from all that follow.
                self._job.join(_STOP_TIMEOUT_S)
                if self._job.is_alive():
                    self._failures.append(f"tasks have not ended {_STOP_TIMEOUT_S:.0f} s after they should")
                    self._spark.sparkContext.cancelJobGroup(self._job_group)

    def _start_clients(self) -> bool:
        if not self._await(lambda: self._control.ready == self._tasks, timeout_s=_READY_TIMEOUT_S):
            if not self._is_interrupted:
                self._failures.append(
                    f"{len(self._control.ready)} of {len(self._tasks)} tasks have their clients connected after "
                    f"{_READY_TIMEOUT_S:.0f} s: do all of them have a slot?"
                )
            return False
        at_us = now_us() + _LEAD_US
        self._control.broadcast("start", at_us=at_us)
        self.started_at_s = at_us / 1e6
        self._started.set()
        return True

    def _run_load(self) -> bool:
        """Wait until only consumers are left."""
        phase = self._phase
        if not phase.producers and not self._lasts:
            self._control.broadcast("ends", ends=self._cluster.ends)
        if self._lasts and phase.seconds is not None:
            over_s = self.started_at_s + phase.seconds
            self._await(lambda: time.time() >= over_s, timeout_s=over_s - time.time())
        return not self._is_interrupted and self._await(
            lambda: self._events_over and self._control.produced == self._tasks
        )

    @property
    def _lasts(self) -> bool:
        """Whether nothing but the time ends the phase."""
        at_end = [each for each in self._phase.consumers if each.start is Start.END]
        return not self._phase.producers and len(at_end) == len(self._phase.consumers)

    def _drain(self) -> bool:
        if self._read and (self._phase.producers or self._lasts):
            partitions = {topic: self._cluster.partitions[topic] for topic in self._read}
            ends = self._reader.ends_with(
                partitions, self._acknowledged_ends(), is_cancelled=lambda: self._is_interrupted
            )
            self._control.broadcast("ends", ends=ends)
        consumers = {
            plan.index
            for plan in self._plans
            if all(each.role is not Role.CONNECTIONS for each in plan.plans)
        }
        return self._await(lambda: self._control.done >= consumers)

    def _acknowledged_ends(self) -> dict[str, int]:
        """Return topic -> the least sum of its end offsets that includes all acknowledged records."""
        ends = {topic: sum(of_topic.values()) for topic, of_topic in self._cluster.ends.items()}
        with self._control.changed:
            progress = dict(self._control.progress)
        for task in self._plans:
            for plan in task.plans:
                if isinstance(plan, ProducerPlan) and plan.topic in ends and plan.name in progress:
                    ends[plan.topic] += progress[plan.name][0]
        return ends

    @property
    def _tasks(self) -> set[int]:
        return {plan.index for plan in self._plans}

    @property
    def _is_interrupted(self) -> bool:
        return bool(
            self._is_stopped
            or self._control.failures
            or self._job_error is not None
            or (self._tasks and not self._job.is_alive())
        )

    def _await(self, condition: Callable[[], bool], *, timeout_s: float | None = None) -> bool:
        """Whether the condition came to hold; False after the timeout, a failure or `stop`."""
        with self._control.changed:
            self._control.changed.wait_for(lambda: condition() or self._is_interrupted, timeout_s)
            return condition()
