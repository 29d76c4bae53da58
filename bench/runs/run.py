"""A workload on all targets, run by run, and its result.

    checks              workload, commit, targets that run, Spark
    start, warm-up      of the targets that the bench starts, after free memory was used once
    run 1 .. N          each target in turn; in the next run in the reverse order
        topics          created
        phases          one after the other; each is in the result's folder once it has ended
    watched run         of an Ottla of its own, if one was started: turns of its event loops (bench/turns.py)
    result              aggregated by Spark; the page

Ctrl-C ends the phase that runs, and the result is made of what there is.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from ottla.bench import environment
from ottla.bench.aggregation.summary import Circumstances, summarise
from ottla.bench.environment import Environment
from ottla.bench.figures import OTTLA, LoadFailed
from ottla.bench.free_memory import touch_free_memory
from ottla.bench.generators.rows import Kind
from ottla.bench.harness import Harness, scratch
from ottla.bench.page.files import write_page
from ottla.bench.report import Report
from ottla.bench.runs.checks import check_clients
from ottla.bench.runs.folder import ResultFolder
from ottla.bench.runs.interrupts import Interrupts
from ottla.bench.runs.options import Options, check_out, targets_of, workload_of
from ottla.bench.runs.phase_run import PhaseResult, PhaseRun
from ottla.bench.runs.progress import RunProgress
from ottla.bench.runs.topics import check_topics, topics_of_run
from ottla.bench.spark.session import slots, spark_session
from ottla.bench.targets.fit import slows_store
from ottla.bench.targets.sampling import used_by
from ottla.bench.targets.settings import SETTINGS, file_system_of, place_of
from ottla.bench.targets.started import started
from ottla.bench.targets.target import Target, TargetError
from ottla.bench.targets.turn_logs import READER, watched
from ottla.bench.turns import Turn
from ottla.bench.workloads.model import ClusterNeeds, Phase, Workload
from ottla.bench.workloads.scaling import warm_up_of

_SETTINGS: Final = "default"
#: The longest warm-up of each target: not longer than its runs take. If its CPU still falls then, the report
#: notes it.
_WARM_UP_S: Final = 35.0
#: Brokers that are started here delete the files of a topic half a second after it (`log.segment.delete.delay.ms`).
_DELETION_S: Final = 1.5
#: The step in which the system counts processor time.
_LEAST_CPU_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a run: its result, and the reason of its end."""

    folder: Path
    report: Report
    page: Path
    #: The failure that ended it before its last phase; None also after a signal.
    failure: LoadFailed | None
    was_interrupted: bool


def run(options: Options) -> Outcome:
    """Check, run, and write the result. Raises the errors of each part that cannot be done."""
    workload = workload_of(options)
    check_clients(workload)
    check_out(options.out)
    where = environment.current(allow_dirty=options.is_dirty_allowed)
    interrupts = Interrupts()
    with interrupts.handled(), scratch(options.disk, "bench") as folder:
        targets = targets_of(options, workload, folder)
        for target in targets:
            if target.nodes is None:
                check_topics(target, workload, options.runs)
        has_jobs = any(phase.jobs for phase in workload.phases)
        with spark_session(options.master, name=f"ottla bench {workload.name}", with_kafka=has_jobs) as spark:
            made = WorkloadRun(
                spark=spark,
                options=options,
                workload=workload,
                targets=targets,
                environment=where,
                interrupts=interrupts,
                folder=folder,
            )
            return made.run()


@dataclass(slots=True, kw_only=True)
class WorkloadRun:
    """A run of a workload on all its targets, with everything that it needs."""

    spark: SparkSession
    options: Options
    workload: Workload
    targets: list[Target]
    environment: Environment
    interrupts: Interrupts
    #: The folder of the files that targets write.
    folder: Path
    _began: float = field(default_factory=time.monotonic)
    _failure: LoadFailed | None = None
    #: Phases that have not come to their end, as (target, run, phase).
    _stopped: list[tuple[str, int, str]] = field(default_factory=list)

    def run(self) -> Outcome:
        """Start, warm up, measure and aggregate; return the outcome."""
        phases = self.options.runs * len(self.targets) * len(self.workload.phases)
        progress = RunProgress(phases)
        with progress.shown():
            with Harness(self.targets, say=progress.say) as harness:
                # One run alone is a trial: it need not wait for that.
                if self._is_any_started and self.options.runs > 1:
                    touched = touch_free_memory(self.options.disk, say=progress.say)
                    self.environment = replace(self.environment, touched_bytes=touched)
                harness.start()
                harness.warm_up(
                    lambda target: self._warm_up_round(target, progress),
                    most_rounds=self.options.warm_up_rounds,
                    most_s=_WARM_UP_S,
                )
                folder = ResultFolder(self.options.out, self.workload.name)
                with self.interrupts.deferred():
                    self._measure(harness, folder, progress)
                    circumstances = self._circumstances(harness)
            if self.options.is_observed and not circumstances.is_partial:
                circumstances = replace(circumstances, turns=self._watched(progress))
            progress.say("aggregation")
            # A signal that comes now changes nothing, unless it is the second one.
            with self.interrupts.deferred():
                report = summarise(
                    self.spark, folder.path, workload=self.workload, circumstances=circumstances
                )
                page = write_page(folder.path)
        return Outcome(
            folder=folder.path,
            report=report,
            page=page,
            failure=self._failure,
            was_interrupted=circumstances.is_partial and self._failure is None,
        )

    def _warm_up_round(self, target: Target, progress: RunProgress) -> Mapping[str, float]:
        """Run one round of the warm-up; return the brokers' CPU for each record, by phase.

        Phases without records count only if there are no others: the CPU of waiting is an accident.
        """
        workload = warm_up_of(self.workload)
        costs: dict[str, float] = {}
        waits: dict[str, float] = {}
        with topics_of_run(target, workload, None) as topics:
            for phase in workload.phases:
                before = _cpu_s(target)
                prefix = f"warm-up-{target.name}-{time.time_ns()}-{phase.name}"
                result = self._run_phase(
                    phase,
                    target,
                    topics,
                    prefix,
                    progress,
                    title=f"warm-up  {target.name}  {phase.name}",
                    is_counted=False,
                )
                if result.failure is not None:
                    raise result.failure
                used = max(_cpu_s(target) - before, _LEAST_CPU_S)
                records = sum(row.records or 0 for row in result.rows if row.kind is Kind.SECOND)
                if records:
                    costs[phase.name] = used / records
                else:
                    waits[phase.name] = used
        return costs or waits

    def _measure(self, harness: Harness[Target], folder: ResultFolder, progress: RunProgress) -> None:
        """Measure all runs; returns early after a failure or an interrupt."""
        try:
            for number in range(self.options.runs):
                for target in harness.in_turn(number):
                    # What the one before has left to be deleted and written is gone before this one is measured.
                    self.interrupts.wait(_DELETION_S)
                    os.sync()
                    self._measure_target(target, number, folder, progress)
                    if self._failure is not None or self.interrupts.is_asked:
                        return
        except TargetError as error:
            self._failure = LoadFailed(str(error))

    def _measure_target(
        self, target: Target, number: int, folder: ResultFolder, progress: RunProgress
    ) -> None:
        with topics_of_run(target, self.workload, number) as topics:
            for phase in self.workload.phases:
                if self.interrupts.is_asked:
                    return
                title = f"run {number + 1}/{self.options.runs}  {target.name}  {phase.name}"
                prefix = f"{folder.name}-{target.name}-{number}-{phase.name}"
                result = self._run_phase(
                    phase, target, topics, prefix, progress, title=title, is_counted=True
                )
                folder.add(result, target=target.name, run=number, phase=phase.name)
                for event in result.events:
                    progress.say(f"    {event.words()}")
                if result.failure is not None or self.interrupts.is_asked:
                    self._stopped.append((target.name, number, phase.name))
                if result.failure is not None:
                    self._failure = result.failure
                    return
            # Before topics are deleted, which needs the brokers.
            target.restore()

    def _watched(self, progress: RunProgress) -> dict[str, list[Turn]]:
        """Return phase -> the turns of the event loops of an Ottla of its own; none without one that is started."""
        turns: dict[str, list[Turn]] = {}
        if OTTLA not in self.options.start:
            return turns
        needs, can_be_slow = self.workload.cluster, slows_store(self.workload)
        target: Target = started(OTTLA, needs, self.folder / "watched", can_be_slow=can_be_slow)
        try:
            with watched(), Harness([target], say=progress.say) as harness, self.interrupts.deferred():
                harness.start()
                with topics_of_run(target, self.workload, None) as topics:
                    self._watch_phases(target, topics, progress, turns)
                    target.restore()
        except (TargetError, LoadFailed) as error:
            progress.say(f"not watched from here on: {error}")
        return turns

    def _watch_phases(
        self,
        target: Target,
        topics: Mapping[str, str],
        progress: RunProgress,
        turns: dict[str, list[Turn]],
    ) -> None:
        for phase in self.workload.phases:
            READER.new()  # what was before the phase
            title, prefix = f"watched  {target.name}  {phase.name}", f"watched-{time.time_ns()}-{phase.name}"
            result = self._run_phase(phase, target, topics, prefix, progress, title=title, is_counted=False)
            if result.failure is not None:
                raise result.failure
            if self.interrupts.is_asked:
                return
            turns[phase.name] = READER.new()

    def _run_phase(
        self,
        phase: Phase,
        target: Target,
        topics: Mapping[str, str],
        stream_prefix: str,
        progress: RunProgress,
        *,
        title: str,
        is_counted: bool,
    ) -> PhaseResult:
        with progress.phase(title, phase, is_counted=is_counted) as shown:
            return PhaseRun(
                spark=self.spark,
                slots=slots(self.spark),
                interrupts=self.interrupts,
                target=target,
                topics=topics,
                phase=phase,
                stream_prefix=stream_prefix,
                progress=shown,
            ).run()

    @property
    def _is_any_started(self) -> bool:
        """Whether brokers run on this machine, as processes of the bench."""
        return any(target.nodes is not None for target in self.targets)

    def _circumstances(self, harness: Harness[Target]) -> Circumstances:
        is_any_started = self._is_any_started
        file_system = file_system_of(self.options.disk) if is_any_started else ""
        return Circumstances(
            environment=self.environment,
            targets={target.name: target.version for target in self.targets},
            command=self.options.command,
            runs=self.options.runs,
            duration_s=time.monotonic() - self._began,
            is_partial=self._failure is not None or self.interrupts.is_asked,
            settings=_SETTINGS if is_any_started else "",
            place=place_of(file_system) if is_any_started else "",
            file_system=file_system,
            properties=_properties(self.workload.cluster) if is_any_started else {},
            warm_ups=harness.warm_ups,
            racks={
                target.name: {each.broker_id: each.rack for each in target.brokers if each.rack}
                for target in self.targets
            },
            stopped=self._stopped,
        )


def _properties(needs: ClusterNeeds) -> dict[str, str]:
    """Return the properties that started nodes get on top of those that are always set."""
    of_brokers = {
        f"{key} (broker {broker})": value
        for broker, own in needs.broker_properties.items()
        for key, value in own.items()
    }
    return {**SETTINGS[_SETTINGS], **needs.properties, **of_brokers}


def _cpu_s(target: Target) -> float:
    """Return the processor time that all nodes have used so far."""
    return sum(used.cpu_s for _, used in used_by(target.node_pids()).values())
