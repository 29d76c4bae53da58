"""The command line refuses what makes no figures; Kafka and Ottla alternate; only whole runs are kept for README."""

import os
from dataclasses import replace

import pytest

from ottla.bench.compare import PROGRAM
from ottla.bench.figures import MEGABYTES, Figure, LoadFailed
from ottla.bench.harness import Harness, Measure, Program
from ottla.bench.program import SectionRun, parse
from ottla.bench.targets.settings import DISK, SETTINGS, TMPFS
from ottla.bench.targets.turn_logs import BOUND_VARIABLE


class Recorded:
    """A subject that writes down what is done with it; its broker is this process."""

    def __init__(self, name, events, settings):
        self.name = name
        self.settings = settings
        self._events = events

    def start(self):
        self.note("start")

    def kill(self):
        self.note("kill")

    def broker_pids(self):
        return [os.getpid()]

    def note(self, what):
        self._events.append(f"{self.name} {what}")


def measure(name, **more):
    def run(subject, scale):
        subject.note(f"{name} {scale:g}")
        return {"m": 1.0}

    figures = [Figure(metric="m", title="m", unit=MEGABYTES)]
    return Measure(name=name, title=name, figures=figures, run=run, **more)


def program_of(events, *measures):
    def round_(subject, scale):
        subject.note("warm-up")
        return {"load": 1.0}

    return Program(
        name="test",
        description="",
        subjects={
            name: lambda _, settings, name=name: Recorded(name, events, settings)
            for name in ("kafka", "ottla")
        },
        measures=measures,
        warm_up_round=round_,
        seconds=2.0,
        settings=("tuned",),
        places=(DISK,),
        properties={"extra": "1"},
        headlines=(),
    )


def run_section(program, tmp_path, *arguments):
    options = parse([*arguments, *([] if "--observe" in arguments else ["--no-observe"])], program)
    return SectionRun(program, options, tmp_path, settings="tuned", place=TMPFS).run("tmpfs")


def test_sides_alternate_after_a_warm_up_and_a_rehearsal(tmp_path):
    events = []
    restart = measure("kill", restarts_nodes=True)
    program = program_of(events, restart, measure("load"), measure("alone", needs_subject=False))
    section = run_section(program, tmp_path)
    both = ["kafka {}", "ottla {}"]
    alternating = [*both, *reversed(both), *both]
    assert events == [
        *(each.format("alone 2") for each in alternating),
        "kafka start",
        "ottla start",
        *["kafka warm-up"] * 3,
        *["ottla warm-up"] * 3,
        *(each.format("load 0.5") for each in both),
        *(each.format("load 2") for each in alternating),
        *(each.format("kill 2") for each in alternating),
        "kafka kill",
        "ottla kill",
    ]
    assert [table.name for table in section.tables] == ["kill", "load", "alone", "memory"]
    assert all(len(table.samples[side]) == 3 for table in section.tables for side in ("kafka", "ottla"))
    assert section.properties == {**SETTINGS["tuned"], "extra": "1"}


def test_a_floor_takes_its_turn_where_a_measure_has_one_and_is_neither_warmed_up_nor_compared(tmp_path):
    events = []
    program = program_of(events, measure("load"), measure("low", has_floor=True))
    program = replace(program, floor=lambda _, settings: Recorded("floor", events, settings))
    section = run_section(program, tmp_path)
    assert [each for each in events if each.startswith("floor")] == [
        "floor start",
        "floor low 0.5",
        *["floor low 2"] * 3,
        "floor kill",
    ]
    low_2 = [each.split()[0] for each in events if each.endswith("low 2")]
    assert low_2 == ["kafka", "ottla", "floor", "floor", "ottla", "kafka", "kafka", "ottla", "floor"]
    samples = {table.name: set(table.samples) for table in section.tables}
    both = {"kafka", "ottla"}
    assert samples == {"load": both, "low": {*both, "floor"}, "memory": both}


def test_ottla_and_the_floor_are_watched_in_rounds_of_their_own_after_all_others(tmp_path, monkeypatch):
    events = []
    monkeypatch.delenv(BOUND_VARIABLE, raising=False)

    class Watched(Recorded):
        def start(self):
            self.note(f"start {os.environ.get(BOUND_VARIABLE)}")

    def prepare(subject, scale):
        subject.note("prepare")

    loads = [
        measure("kill", restarts_nodes=True),
        replace(measure("load"), prepare=prepare, prepared_bytes=20.0),
        replace(measure("low"), has_floor=True, written_bytes=10.0),
        measure("alone", needs_subject=False),
    ]
    monkeypatch.setattr("ottla.bench.program.touch", lambda _, size: events.append(f"touch {size:g}"))
    program = program_of(events, *loads)
    program = replace(
        program,
        subjects={"ottla": lambda _, settings: Watched("ottla", events, settings)},
        floor=lambda _, settings: Watched("floor", events, settings),
    )
    section = run_section(program, tmp_path, "--observe")
    timed = events.index("ottla kill")
    assert events[0] == "ottla alone 2"
    assert "ottla start None" in events[:timed]
    assert events[events.index("ottla start 5") :] == [
        "ottla start 5", "touch 60", "ottla prepare", "ottla load 2", "touch 30", "ottla low 2", "ottla kill 0.5",
        "ottla kill",
        "floor start 5", "touch 30", "floor low 2", "floor kill",
    ]  # fmt: skip
    assert BOUND_VARIABLE not in os.environ
    assert section.turns == {"load": [], "low": [], "kill": []}
    assert section.floor_turns == {"low": []}
    assert section.tables[-1].samples == {
        "ottla": [{"turns": 0, "floors_turns": 0}],
        "floor": [{"floors_turns": 0}],
    }


@pytest.mark.parametrize(
    ("arguments", "is_observed"),
    [([], True), (["--quick"], False), (["--quick", "--observe"], True), (["--no-observe"], False)],
)
def test_whole_runs_are_observed(arguments, is_observed):
    assert parse(arguments, PROGRAM).observe is is_observed


def test_a_floor_that_no_measure_has_is_not_started(tmp_path):
    events = []
    program = program_of(events, measure("load"))
    program = replace(program, floor=lambda _, settings: Recorded("floor", events, settings))
    run_section(program, tmp_path)
    assert not any(each.startswith("floor") for each in events)


def test_what_is_read_later_is_prepared_once_for_each_subject(tmp_path):
    events = []

    def prepare(subject, scale):
        subject.note("prepare")

    restart = replace(measure("kill", restarts_nodes=True), prepare=prepare)
    run_section(program_of(events, restart, measure("load")), tmp_path)
    assert [each for each in events if "prepare" in each] == ["kafka prepare", "ottla prepare"]
    first_kill = next(at for at, each in enumerate(events) if "kill 2" in each)
    assert max(at for at, each in enumerate(events) if "load" in each) < first_kill
    assert events[first_kill - 2 : first_kill] == ["kafka prepare", "ottla prepare"]


def test_memory_is_used_once_before_each_load_that_writes_much(tmp_path, monkeypatch):
    events = []
    monkeypatch.setattr(
        "ottla.bench.program.touch", lambda folder, size: events.append(f"touch {size:g} in {folder.name}")
    )
    program = program_of(events, measure("load", written_bytes=10.0), measure("small"))
    section = ["--disk", str(tmp_path / "disk")]
    run_section(program, tmp_path, *section)
    at = [number for number, event in enumerate(events) if event.startswith("touch")]
    assert {events[each] for each in at} == {"touch 30 in disk"}
    assert [events[each + 1] for each in at] == [event for event in events if event.endswith("load 2")]
    events.clear()
    run_section(program, tmp_path, *section, "--quick")
    assert not any(event.startswith("touch") for event in events)


def test_memory_under_load_is_measured_in_each_run(tmp_path):
    section = run_section(program_of([], measure("load")), tmp_path)
    memory = next(table for table in section.tables if table.name == "memory")
    assert all(sample["private_bytes"] > 1e6 for sample in memory.samples["ottla"])


def test_subjects_are_ended_when_a_load_fails(tmp_path):
    def fail(subject, scale):
        raise LoadFailed("lost")

    events = []
    with pytest.raises(LoadFailed):
        run_section(program_of(events, replace(measure("load"), run=fail)), tmp_path)
    assert events[-2:] == ["kafka kill", "ottla kill"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--runs", "2"],
        ["--settings", "default,fast"],
        ["--places", "floppy"],
        ["--only", "nothing is called so"],
        ["--server", "redpanda"],
    ],
)
def test_what_makes_no_figures_is_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        parse(arguments, PROGRAM)
    assert "error" in capsys.readouterr().err


def test_the_whole_comparison_is_both_settings_in_both_places():
    options = parse([], PROGRAM)
    assert (options.settings, options.places, options.runs) == (["default", "tuned"], [DISK, TMPFS], 3)
    assert options.is_saved


@pytest.mark.parametrize("part", [["--quick"], ["--only", "java"], ["--server", "ottla"], ["--no-save"]])
def test_a_part_is_not_saved_since_readme_shows_the_latest_result(part):
    assert not parse(part, PROGRAM).is_saved


def test_subjects_of_any_names_and_number_take_turns_and_one_without_processes_is_not_warmed_up():
    class Remote(Recorded):
        def broker_pids(self):
            return []

    events = []
    subjects = [Recorded("a", events, {}), Remote("b", events, {}), Recorded("c", events, {})]

    def round_(subject):
        subject.note("round")
        return {"load": 1.0}

    with Harness(subjects, say=lambda text: None) as harness:
        harness.start()
        harness.warm_up(round_, most_rounds=5)
        for run in range(2):
            for subject in harness.in_turn(run):
                subject.note(f"run {run}")
    assert set(harness.warm_ups) == {"a", "c"}
    assert events[3:] == [
        *["a round"] * 3,
        *["c round"] * 3,
        *["a run 0", "b run 0", "c run 0", "c run 1", "b run 1", "a run 1"],
        *["a kill", "b kill", "c kill"],
    ]
