"""What happens between the targets of a run."""

import os
from types import SimpleNamespace

from bench.harness import Harness
from bench.runs.interrupts import Interrupts
from bench.runs.run import WorkloadRun


def test_each_target_begins_when_the_one_before_has_left_nothing_to_be_done(monkeypatch):
    happened = []

    def target(name):
        return SimpleNamespace(name=name, restore=lambda: happened.append(f"restore {name}"))

    monkeypatch.setattr(os, "sync", lambda: happened.append("sync"))
    monkeypatch.setattr(Interrupts, "wait", lambda self, seconds: happened.append("wait") or False)
    monkeypatch.setattr(WorkloadRun, "_measure_target", lambda self, its, *_: happened.append(its.name))
    run = WorkloadRun(
        spark=None,
        options=SimpleNamespace(runs=2),
        workload=None,
        targets=[],
        environment=None,
        interrupts=Interrupts(),
    )
    run._measure(Harness([target("a"), target("b")], say=print), None, None)
    expected = [["wait", "sync", name, f"restore {name}"] for name in "abba"]
    assert happened == [step for each in expected for step in each]
