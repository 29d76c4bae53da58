"""One phase on one target: its clients or jobs, its events, and the samples of the target from outside."""

import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from ottla.bench.figures import LoadFailed
from ottla.bench.generators.phase import RunningPhase
from ottla.bench.generators.rows import Kind, Row
from ottla.bench.jobs.run import cancel_jobs, run_job
from ottla.bench.runs.events import Events, Happened
from ottla.bench.runs.interrupts import Interrupts
from ottla.bench.runs.progress import PhaseProgress
from ottla.bench.targets.sampling import Sampler, SampleRow
from ottla.bench.targets.target import Target
from ottla.bench.workloads.model import Phase

_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseResult:
    """The rows, samples and events of a phase; after a failure, or when it was stopped, those until then."""

    rows: Sequence[Row]
    samples: Sequence[SampleRow]
    events: Sequence[Happened]
    failure: LoadFailed | None


@dataclass(slots=True, kw_only=True)
class PhaseRun:
    """Runs one phase on one target, with its events and samples."""

    spark: SparkSession
    slots: int
    interrupts: Interrupts
    target: Target
    #: Name in the workload -> in the cluster.
    topics: Mapping[str, str]
    phase: Phase
    #: The prefix of the names of streams: no other phase has it.
    stream_prefix: str
    progress: PhaseProgress

    def run(self) -> PhaseResult:
        """Run until the end of all clients, jobs and events; earlier after a failure, or when it is interrupted."""
        events = Events(self.phase.events, self.target, self.topics, self.interrupts)
        rows: Sequence[Row] = ()
        failure: LoadFailed | None = None
        with Sampler(self.target) as sampler:
            if self.phase.jobs:
                rows, failure = self._run_jobs(events)
            elif self.phase.producers or self.phase.consumers or self.phase.connections:
                rows, failure = self._run_clients(events)
            else:
                events.start(time.time())
            while failure is None and not (events.are_over or self.interrupts.wait(_POLL_S)):
                self.progress.tick()
        # What an event has failed at is the cause, if clients have failed too.
        failure = events.failure or failure
        samples = sampler.rows(events.phase_began_at_s, _ended_at_s(rows, events))
        return PhaseResult(rows=rows, samples=samples, events=events.happened, failure=failure)

    def _run_clients(self, events: Events) -> tuple[Sequence[Row], LoadFailed | None]:
        try:
            running = RunningPhase.start(
                self.spark,
                self.phase,
                self.target.bootstrap,
                self.topics,
                stream_prefix=self.stream_prefix,
                slots=self.slots,
            )
        except LoadFailed as error:
            return (), error
        self.progress.restart()
        events.start(running.started_at_s, at_end=running.note_events_over)
        while not running.is_over:
            self._show(running)
            if self.interrupts.wait(_POLL_S) or events.failure:
                running.stop()
                break
        try:
            running.wait()
        except LoadFailed as error:
            return running.rows, error
        finally:
            self._show(running)
        return running.rows, None

    def _show(self, running: RunningPhase) -> None:
        done = running.progress()
        self.progress.update(records=done.records, payload_bytes=done.payload_bytes, errors=done.errors)

    def _run_jobs(self, events: Events) -> tuple[Sequence[Row], LoadFailed | None]:
        rows: list[Row] = []
        began_at_s = time.time()
        events.start(began_at_s)
        with ThreadPoolExecutor(1) as threads:
            for job in self.phase.jobs:
                running: Future[list[Row]] = threads.submit(
                    run_job,
                    self.spark,
                    job,
                    self.target,
                    self.topics,
                    self.phase,
                    started_at_s=began_at_s,
                )
                while not running.done():
                    self.progress.tick()
                    if self.interrupts.wait(_POLL_S):
                        # Until it has ended: between two of a job's queries there is nothing to cancel.
                        cancel_jobs(self.spark)
                        wait([running], _POLL_S)
                try:
                    rows += running.result()
                except LoadFailed as error:
                    return rows, None if self.interrupts.is_asked else error
        return rows, None


def _ended_at_s(rows: Sequence[Row], events: Events) -> float:
    """Return the end of the last client or event, in seconds since the epoch."""
    of_clients = [row.end_s for row in rows if row.kind is Kind.CLIENT and row.end_s is not None]
    of_events = [events.phase_began_at_s + each.at_s + (each.took_s or 0.0) for each in events.happened]
    return max([*of_clients, *of_events], default=math.inf)
