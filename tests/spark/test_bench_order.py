"""Preparations before the runs, and work between the targets of a run."""

import os
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from ottla.bench.generators.rows import Kind, Role, Row
from ottla.bench.harness import Harness
from ottla.bench.runs import run as module
from ottla.bench.runs.interrupts import Interrupts
from ottla.bench.runs.run import WorkloadRun


def workload_run(**fields):
    unused = {
        "spark": None,
        "options": None,
        "workload": None,
        "targets": [],
        "environment": None,
        "folder": None,
    }
    return WorkloadRun(interrupts=Interrupts(), **{**unused, **fields})


@pytest.mark.parametrize(
    ("records", "costs"),
    [([10, 0, 4], {"p0": 0.1, "p2": 0.25}), ([0, 0], {"p0": 1.0, "p1": 1.0})],
    ids=["a phase that waits", "phases that wait only"],
)
def test_what_a_cluster_uses_while_it_is_waited_for_says_nothing_of_how_warm_it_is(
    monkeypatch, records, costs
):
    phases = [SimpleNamespace(name=f"p{at}") for at in range(len(records))]
    used = iter(range(100))

    def ran(self, phase, *_, **__):
        row = Row(kind=Kind.SECOND, client="c", role=Role.PRODUCER, records=records[phases.index(phase)])
        return SimpleNamespace(failure=None, rows=[row])

    monkeypatch.setattr(module, "warm_up_of", lambda workload: SimpleNamespace(phases=phases))
    monkeypatch.setattr(module, "topics_of_run", lambda *_: nullcontext({}))
    monkeypatch.setattr(module, "_cpu_s", lambda target: next(used))
    monkeypatch.setattr(WorkloadRun, "_run_phase", ran)
    assert workload_run()._warm_up_round(SimpleNamespace(name="kafka"), None) == costs


def test_each_target_begins_when_the_one_before_has_left_nothing_to_be_done(monkeypatch):
    happened = []

    monkeypatch.setattr(os, "sync", lambda: happened.append("sync"))
    monkeypatch.setattr(Interrupts, "wait", lambda self, seconds: happened.append("wait") or False)
    monkeypatch.setattr(WorkloadRun, "_measure_target", lambda self, its, *_: happened.append(its.name))
    run = workload_run(options=SimpleNamespace(runs=2))
    run._measure(Harness([SimpleNamespace(name=name) for name in "ab"], say=print), None, None)
    assert happened == [step for name in "abba" for step in ("wait", "sync", name)]
