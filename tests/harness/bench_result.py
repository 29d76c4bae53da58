"""A small result of a workload with known figures, as a run would write it: two targets, a killed broker, five runs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ottla.bench.environment import Environment
from ottla.bench.figures import (
    COUNT,
    MEGABYTES_A_SECOND,
    MILLISECONDS,
    SECONDS_A_GIGABYTE,
    Figure,
    Goal,
    Table,
)
from ottla.bench.report import Report, Section, as_json
from ottla.bench.warm_up import WarmUp

SECONDS, RUNS = 30, 5
KILLED_S = 10
#: Seconds after the kill without an acknowledgement.
GAPS_S = {"kafka": 4, "ottla": 2}
#: Of producers, in the middle of the runs.
P99_S = {"kafka": 0.020, "ottla": 0.008}
PHASE = "fail-over"
_MS = 1e-3
#: Of any result in a test.
ENVIRONMENT = Environment(
    date="2026-11-22", commit="abc1234", is_changed=False, cpu_count=2, load_average=0.1, kernel="6.1",
    python="3.11.7", python_step_ns=30.0, java="openjdk 17", kafka="4.3.1",
)  # fmt: skip


def report() -> Report:
    """One phase with a goal met, one missed and a row without a goal."""
    samples = {
        target: [
            {
                "producer_bytes_per_s": 100e6 if target == "kafka" else 180e6,
                "producer_p50_s": P99_S[target] / 4,
                "producer_p99_s": P99_S[target] + run * _MS - 2 * _MS,
                "producer_max_s": 1.5,
                "cpu_s_per_gb": 3.0 if target == "kafka" else 2.7,
                "lost": 0.0,
            }
            for run in range(RUNS)
        ]
        for target in GAPS_S
    }
    figures = [
        Figure(metric="producer_bytes_per_s", title="producer: throughput", unit=MEGABYTES_A_SECOND,
               goal=Goal(at_least=1.3)),
        Figure(metric="producer_p50_s", title="producer: p50", unit=MILLISECONDS),
        Figure(metric="producer_p99_s", title="producer: p99", unit=MILLISECONDS),
        Figure(metric="producer_max_s", title="producer: slowest", unit=MILLISECONDS),
        Figure(metric="cpu_s_per_gb", title="CPU of all brokers", unit=SECONDS_A_GIGABYTE,
               goal=Goal(at_most=0.6)),
        Figure(metric="lost", title="records lost", unit=COUNT),
    ]  # fmt: skip
    table = Table(
        name=PHASE,
        title="A leader is killed",
        note="Two producers & <no> rate.",
        figures=figures,
        samples=samples,
    )
    return Report(
        program="fail-over",
        environment=ENVIRONMENT,
        runs=RUNS,
        seconds=None,
        duration_s=900.0,
        headlines=[(PHASE, "producer_bytes_per_s"), (PHASE, "producer_p99_s"), (PHASE, "cpu_s_per_gb")],
        sections=[
            Section(
                settings="default", place="disk", file_system="xfs", properties={"num.partitions": "3"}, tables=[table],
                warm_ups={"kafka": WarmUp(costs=[9.0, 3.0, 3.0, 3.0], is_steady=True)},
            )
        ],
        targets={"kafka": "Apache Kafka 4.3.1", "ottla": "Ottla abc1234"},
        title="Fail-over under load",
        about="How long is the gap when the leader is killed (KIP-966)?",
        command="ottla bench run fail-over --start ottla --start kafka --runs 5",
    )  # fmt: skip


def seconds() -> list[dict[str, Any]]:
    """The rows of seconds.parquet: zeros and no latency while nothing is acknowledged."""
    rows = []
    for target, gap_s in GAPS_S.items():
        for run in range(RUNS):
            for second in range(SECONDS):
                is_served = not KILLED_S <= second < KILLED_S + gap_s
                p99_s = P99_S[target] + run * _MS - 2 * _MS if is_served else None
                rows.append(
                    {
                        "target": target, "run": run, "phase": PHASE, "role": "producer", "second": second,
                        "records": 90_000 * is_served, "payload_bytes": 90_000_000 * is_served, "errors": 0,
                        "p50_s": None if p99_s is None else p99_s / 4, "p90_s": p99_s, "p99_s": p99_s, "p999_s": p99_s,
                        # The slowest record waited for the new leader.
                        "max_s": None if p99_s is None else float(gap_s) if second == KILLED_S + gap_s else 2 * p99_s,
                    }
                )  # fmt: skip
    return rows


def samples() -> list[dict[str, Any]]:
    """The rows of samples.parquet: three nodes and their store."""
    none = dict.fromkeys(("cpu_s", "private_bytes", "written_bytes", "tiered_bytes"))
    return [
        {"target": target, "run": run, "phase": PHASE, "node": node, "second": second, **none, **values}
        for target in GAPS_S
        for run in range(RUNS)
        for second in range(SECONDS)
        for node, values in _nodes_at(second)
    ]


def _nodes_at(second: int) -> Iterator[tuple[str, dict[str, float]]]:
    for node in (1, 2, 3):
        yield str(node), {"cpu_s": 0.2, "private_bytes": node * 20_000_000, "written_bytes": 0}
    yield "store", {"tiered_bytes": second * 50_000_000}


def events() -> list[dict[str, Any]]:
    """The rows of events.json: Kafka's replicas were not in sync again in one run."""
    return [
        {
            "target": target, "run": run, "phase": PHASE, "name": name, "action": action, "at_s": at_s + run / 100,
            "until": until, "took_s": None if run == 3 and (target, until) == ("kafka", "in_sync") else took_s,
        }
        for target in GAPS_S
        for run in range(RUNS)
        for name, action, at_s, until, took_s in (
            ("broker 2 is killed", "kill", KILLED_S, "led", float(GAPS_S[target])),
            ("it is started again", "start", 20, "in_sync", 3.5),
        )
    ]  # fmt: skip


def write_result(folder: Path) -> Path:
    """A result folder; Spark's would hold folders of Parquet files, which are read alike."""
    # Not installed with what the unit tests need.
    from pyarrow import Table as Arrow
    from pyarrow import parquet

    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(as_json(report()))
    parquet.write_table(Arrow.from_pylist(seconds()), folder / "seconds.parquet")
    parquet.write_table(Arrow.from_pylist(samples()), folder / "samples.parquet")
    (folder / "events.json").write_text(json.dumps(events()))
    return folder
