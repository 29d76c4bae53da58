"""The common part of the programs that compare Kafka and Ottla: command line, sections, runs, results.

free memory is used once; for each choice of settings, for each place of the logs, a section:
    measures that need no running subject:  Kafka, Ottla; in the next run Ottla, Kafka; ...
    start both, warm up both, fill what is read later
    rehearsal of the loads at a quarter of their volume (not counted), then run 1 .. N, alternating
    measures that restart nodes, run 1 .. N
    Ottla alone, in nodes of its own: watched and profiled (untimed_rounds.py)

A program may have a floor: a third subject, which takes its turn where a measure has one.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Generic

from ottla.bench import environment, report
from ottla.bench.figures import FLOOR, Sample, Table, in_words
from ottla.bench.free_memory import touch, touch_free_memory
from ottla.bench.harness import Harness, Measure, Program, T, scratch
from ottla.bench.report import Report, Section
from ottla.bench.targets.memory import PeakMemory, memory_table
from ottla.bench.targets.servers import end_on_signals
from ottla.bench.targets.settings import (
    DISK,
    PLACES,
    SETTINGS,
    TMPFS,
    WrongPlace,
    check_place,
    file_system_of,
)
from ottla.bench.turns import turns_table
from ottla.bench.untimed_rounds import REHEARSAL_SCALE, Observation
from ottla.bench.warm_up import MOST_ROUNDS

_QUICK_SECONDS: Final = 0.2
_QUICK_WARM_UPS: Final = 1
_RUNS: Final = 3

#: The factor of memory that is used once before a load: sockets and clients need some, too.
_SPARE: Final = 1.5


def main(arguments: Sequence[str] | None, program: Program[T]) -> None:
    """Run a benchmark's command line; results go to bench/results/<date>-<name>.{json,md}."""
    options = parse(arguments, program)
    end_on_signals()
    try:
        where = environment.current(allow_dirty=options.allow_dirty)
        folders = {place: getattr(options, place) for place in options.places}
        file_systems = {place: file_system_of(folder) for place, folder in folders.items()}
        for place, folder in folders.items():
            check_place(place, folder, file_systems[place])
    except (environment.DirtyTree, WrongPlace) as error:
        sys.exit(str(error))
    began = time.monotonic()
    if not options.quick:
        touched = touch_free_memory(options.disk, say=lambda text: print(text, file=sys.stderr, flush=True))
        where = replace(where, touched_bytes=touched)
    result = Report(
        program=program.name,
        environment=where,
        runs=options.runs,
        seconds=options.seconds,
        duration_s=0.0,
        headlines=list(program.headlines),
        sections=(),
    )
    for settings in options.settings:
        for place in options.places:
            with scratch(folders[place], program.name) as folder:
                run = SectionRun(program, options, folder, settings=settings, place=place)
                section = run.run(file_systems[place])
            result = replace(
                result, sections=[*result.sections, section], duration_s=time.monotonic() - began
            )
            # After each section: if a later one fails, its hour is not lost.
            paths = report.save(result) if options.is_saved else []
    print(report.as_markdown(result))
    for path in paths:
        print(f"written: {path}")


def parse(arguments: Sequence[str] | None, program: Program[T]) -> argparse.Namespace:
    """Parse the command line; the process ends with a sentence if the options make no figures."""
    parser = argparse.ArgumentParser(
        prog=f"python -m ottla.bench.{program.name}", description=program.description
    )
    _add_dimensions(parser, program)
    _add_parts(parser, program)
    options = parser.parse_args(arguments)
    if options.quick:
        options.runs, options.seconds, options.warm_up_rounds = 1, _QUICK_SECONDS, _QUICK_WARM_UPS
    # README shows the latest result: it is one with all rows.
    options.is_saved = not (options.no_save or options.quick or options.only or options.server)
    if options.observe is None:
        options.observe = options.is_saved
    options.measures = [
        measure
        for measure in program.measures
        if not options.only or any(text in measure.name for text in options.only)
    ]
    if not options.measures:
        parser.error(f"--only: there are {', '.join(measure.name for measure in program.measures)}")
    return options


def _add_dimensions(parser: argparse.ArgumentParser, program: Program[T]) -> None:
    """Add the options of settings, places, and volume."""
    for name, known, chosen in (
        ("settings", list(SETTINGS), program.settings),
        ("places", list(PLACES), program.places),
    ):
        words = f"of {', '.join(known)} (default: {','.join(chosen)})"
        parser.add_argument(
            f"--{name}", type=_names(known), default=list(chosen), metavar="NAME,...", help=words
        )
    temporary = Path(tempfile.gettempdir())
    for place, folder in ((DISK, temporary), (TMPFS, Path("/dev/shm"))):
        words = f"a folder on a {place} (default: {folder})"
        parser.add_argument(f"--{place}", type=Path, default=folder, metavar="DIR", help=words)
    words = f"interleaved runs; medians are shown (default and least: {_RUNS})"
    parser.add_argument("--runs", type=_at_least_three, default=_RUNS, metavar="N", help=words)
    words = f"about how long each load takes (default: {program.seconds:g})"
    parser.add_argument("--seconds", type=float, default=program.seconds, metavar="S", help=words)
    words = f"at most; fewer if the CPU falls no more before (default: {MOST_ROUNDS})"
    parser.add_argument("--warm-up-rounds", type=int, default=MOST_ROUNDS, metavar="N", help=words)
    words = "measure even if the tree differs from its commit; the report notes it"
    parser.add_argument("--allow-dirty", action="store_true", help=words)


def _add_parts(parser: argparse.ArgumentParser, program: Program[T]) -> None:
    """Add the options of runs that are only printed."""
    parser.add_argument("--no-save", action="store_true", help="print the result without saving it")
    words = "one short run after one round of warm-up, not saved: a check that the program works"
    parser.add_argument("--quick", action="store_true", help=words)
    words = "run only measures whose name contains this text, and do not save them; may be repeated"
    parser.add_argument("--only", action="append", metavar="TEXT", help=words)
    words = (
        "rounds of Ottla alone for turns of its event loop and profiles of its CPU (default: if it is saved)"
    )
    parser.add_argument("--observe", action=argparse.BooleanOptionalAction, default=None, help=words)
    names = sorted(_subjects(program))
    parser.add_argument(
        "--server",
        action="append",
        choices=names,
        help="measure only this server, and do not save the result",
    )


def _subjects(program: Program[T]) -> dict[str, Callable[[Path, Mapping[str, str]], T]]:
    """Return all subjects that can be measured, the floor last."""
    return {**program.subjects, **({FLOOR: program.floor} if program.floor is not None else {})}


class _names:  # noqa: N801 - a type of argparse, shown in its messages
    """An argument of known names with commas between them."""

    def __init__(self, known: Sequence[str]) -> None:
        self._known = known

    def __call__(self, text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        if unknown := [name for name in names if name not in self._known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is not one of {', '.join(self._known)}")
        return names


def _at_least_three(text: str) -> int:
    if (runs := int(text)) < _RUNS:
        raise argparse.ArgumentTypeError(f"medians need {_RUNS} runs at least")
    return runs


class SectionRun(Generic[T]):
    """All measures with one choice of settings, in one place."""

    def __init__(
        self, program: Program[T], options: argparse.Namespace, folder: Path, *, settings: str, place: str
    ) -> None:
        self._program = program
        self._measures: list[Measure[T]] = options.measures
        self._runs: int = options.runs
        self._scale: float = options.seconds
        self._most_warm_ups: int = options.warm_up_rounds
        self._is_observed: bool = options.observe
        #: A folder on a disk for the use of memory; None: memory is not used before a load.
        self._touch_in: Path | None = None if options.quick else options.disk
        self._folder = folder
        self._settings = settings
        self._place = place
        self._began = time.monotonic()
        self._properties = {**SETTINGS[settings], **program.properties}
        has_floor = any(measure.has_floor for measure in self._measures)
        subjects = [
            make(folder / name, self._properties)
            for name, make in _subjects(program).items()
            if (name != FLOOR or has_floor) and (not options.server or name in options.server)
        ]
        self._has_floor = any(subject.name == FLOOR for subject in subjects)
        #: The subjects that are compared: all but the floor.
        self._compared = [subject for subject in subjects if subject.name != FLOOR]
        self._harness = Harness(subjects, say=self._say)
        self._tables: dict[str, Table] = {measure.name: measure.table() for measure in self._measures}
        self._memory: dict[str, list[Sample]] = {}

    def run(self, file_system: str) -> Section:
        """Measure everything; nothing runs afterwards."""
        alone = [measure for measure in self._measures if not measure.needs_subject]
        loads = [
            measure for measure in self._measures if measure.needs_subject and not measure.restarts_nodes
        ]
        restarts = [measure for measure in self._measures if measure.restarts_nodes]
        with self._harness:
            self._run_all(alone)
            if loads or restarts:
                self._harness.start()
                self._harness.warm_up(
                    lambda subject: self._program.warm_up_round(subject, self._scale),
                    most_rounds=self._most_warm_ups,
                    subjects=self._compared,
                )
            self._run_loads(loads)
            self._prepare(restarts)
            self._run_all(restarts)
        observed = [*loads, *restarts] if self._is_observed else []
        rounds = Observation(
            program=self._program,
            measures=observed,
            folder=self._folder,
            properties=self._properties,
            scale=self._scale,
            touch=self._touch,
            say=self._say,
        )
        turns = rounds.watch() if observed else {}
        floor_turns = rounds.watch_floor() if self._has_floor else {}
        return Section(
            settings=self._settings,
            place=self._place,
            file_system=file_system,
            properties=self._properties,
            tables=[
                *self._tables.values(),
                *([memory_table(self._memory, goal_bytes=self._program.memory_goal_bytes)] if loads else []),
                *([turns_table(turns, floor_turns)] if turns else []),
            ],
            warm_ups=self._harness.warm_ups,
            turns=turns,
            floor_turns=floor_turns,
            profiles=rounds.profile(),
        )

    def _prepare(self, measures: Sequence[Measure[T]]) -> None:
        for measure in measures:
            for subject in self._subjects_of(measure):
                if measure.prepare is not None:
                    measure.prepare(subject, self._scale)

    def _run_loads(self, loads: Sequence[Measure[T]]) -> None:
        self._prepare(loads)
        for measure in loads:
            for subject in self._subjects_of(measure):
                measure.run(subject, self._scale * REHEARSAL_SCALE)
        for run in self._numbered_runs():
            peaks: dict[str, list[Sample]] = {}
            for measure in loads:
                for subject in self._in_turn(measure, run):
                    with PeakMemory(subject.broker_pids()) as peak:
                        self._measure(measure, subject, run)
                    if subject in self._compared:
                        peaks.setdefault(subject.name, []).append(peak.sample())
            for name, samples in peaks.items():
                most = {metric: max(sample[metric] for sample in samples) for metric in samples[0]}
                self._memory.setdefault(name, []).append(most)

    def _run_all(self, measures: Sequence[Measure[T]]) -> None:
        for run in self._numbered_runs():
            for measure in measures:
                for subject in self._in_turn(measure, run):
                    self._measure(measure, subject, run)

    def _subjects_of(self, measure: Measure[T]) -> Sequence[T]:
        return self._harness.subjects if measure.has_floor else self._compared

    def _in_turn(self, measure: Measure[T], run: int) -> Iterator[T]:
        return self._harness.in_turn(run, times=measure.times, subjects=self._subjects_of(measure))

    def _numbered_runs(self) -> Iterator[int]:
        for run in range(self._runs):
            if self._place == DISK:
                # What has been left to be written is written now, not during a load.
                os.sync()
            yield run

    def _measure(self, measure: Measure[T], subject: T, run: int) -> None:
        self._touch(measure.written_bytes)
        sample = measure.run(subject, self._scale)
        self._tables[measure.name].samples.setdefault(subject.name, []).append(sample)
        self._say(f"run {run + 1}  {subject.name}  {measure.name}  {in_words(measure.figures, sample)}")

    def _touch(self, size_bytes: float) -> None:
        if size_bytes and self._touch_in is not None:
            touch(self._touch_in, size_bytes * self._scale * _SPARE)

    def _say(self, text: str) -> None:
        elapsed_s = time.monotonic() - self._began
        print(f"{self._settings}, {self._place}, {elapsed_s:.0f} s  {text}", file=sys.stderr, flush=True)
