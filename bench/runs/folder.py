"""The folder of a result while it is written; `ottla.bench.aggregation` describes its files."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from ottla.bench.aggregation.files import MEASURED, append, write_rows
from ottla.bench.aggregation.outside import SAMPLES
from ottla.bench.aggregation.summary import EVENTS
from ottla.bench.runs.events import Happened
from ottla.bench.runs.phase_run import PhaseResult
from ottla.bench.targets.sampling import SCHEMA, SampleRow


class ResultFolder:
    """The folder of a result. Each phase is added as it ends, so that a later failure loses nothing."""

    def __init__(self, out: Path, workload: str) -> None:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        #: The name of the folder, which is also unique among streams of records.
        self.name = f"{stamp}-{workload}"
        self.path = out / self.name
        self.path.mkdir(parents=True)
        self._events: list[dict[str, object]] = []
        self._write_events()

    def add(self, result: PhaseResult, *, target: str, run: int, phase: str) -> None:
        """Add the rows, samples and events of a phase."""
        write_rows(result.rows, self.path, target=target, run=run, phase=phase)
        self._add_samples(result.samples, target=target, run=run, phase=phase)
        self._add_events(result.events, target=target, run=run, phase=phase)

    def _add_samples(self, samples: Sequence[SampleRow], *, target: str, run: int, phase: str) -> None:
        values = [(target, run, phase, *each.values()) for each in samples]
        append(values, f"{MEASURED}, {SCHEMA}", self.path / SAMPLES)

    def _add_events(self, events: Sequence[Happened], *, target: str, run: int, phase: str) -> None:
        self._events += [{"target": target, "run": run, "phase": phase, **asdict(each)} for each in events]
        self._write_events()

    def _write_events(self) -> None:
        (self.path / EVENTS).write_text(json.dumps(self._events, indent=1) + "\n")
