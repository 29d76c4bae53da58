"""What the benchmarks of clusters have in common: command line, both clusters, alternating runs, results.

measures without a cluster:  Kafka, Ottla, Ottla, Kafka, ...
start both clusters, warm-up
rehearsal of loads (not counted), then run 1 .. N of each measure, alternating
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import cluster_report
from bench.cluster_report import Figure, Table
from bench.clusters import CLUSTERS, Cluster
from bench.compare import environment
from bench.loads import Sample
from bench.servers import end_on_signals

_RESULTS: Final = Path(__file__).parent / "results"
_SHARED_MEMORY: Final = Path("/dev/shm")
_QUICK_SCALE: Final = 0.1
_REHEARSAL_SCALE: Final = 0.25
_RUNS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What makes one table; see `Table`."""

    name: str
    title: str
    note: str
    figures: Sequence[Figure]
    #: (cluster, scale) -> sample. Scale 1 is a full run's volume.
    run: Callable[[Cluster, float], Sample]
    #: Samples in each run: fail-overs vary more than loads.
    times: int = 1
    #: Whether nodes are restarted, which are cold then: it comes last, after all runs of the others, and unrehearsed.
    restarts_nodes: bool = False
    #: Whether both clusters have to be up.
    needs_cluster: bool = True


def main(
    arguments: Sequence[str] | None,
    *,
    program: str,
    description: str,
    measures: Sequence[Measure],
    settings: Mapping[str, str],
    warm_up: Callable[[Cluster, float], None],
) -> None:
    """Run a benchmark's command line; results go to bench/results/<date>-`program`.{md,json}."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{program}", description=description)
    names = [measure.name for measure in measures]
    parser.add_argument("--quick", action="store_true", help="one run of a tenth of the volume")
    parser.add_argument(
        "--runs", type=int, metavar="N", help=f"measured runs; medians are shown (default: {_RUNS})"
    )
    parser.add_argument("--only", action="append", choices=names, help="only this; may be repeated")
    parser.add_argument(
        "--server", action="append", choices=sorted(CLUSTERS), help="only this one (default: both)"
    )
    parser.add_argument(
        "--data-dir", type=Path, metavar="FOLDER", help="where the files go (default: /dev/shm)"
    )
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    end_on_signals()
    base = options.data_dir or (_SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None)
    folder = Path(tempfile.mkdtemp(prefix=f"ottla-{program}-", dir=base))
    where = environment(folder)
    bench = _Bench(
        folder,
        [measure for measure in measures if not options.only or measure.name in options.only],
        servers=options.server or list(CLUSTERS),
        runs=options.runs or (1 if options.quick else _RUNS),
        scale=_QUICK_SCALE if options.quick else 1.0,
        settings=settings,
    )
    began = time.monotonic()
    try:
        bench.run(warm_up)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(cluster_report.preface(where, settings))
    for table in bench.tables:
        print(cluster_report.as_text(table))
    print(f"took {time.monotonic() - began:.0f} s")
    if not options.no_save:
        for path in cluster_report.save(where, settings, bench.tables, stem=program, folder=_RESULTS):
            print(f"written: {path}")


class _Bench:
    """One run of the program."""

    def __init__(
        self,
        folder: Path,
        measures: Sequence[Measure],
        *,
        servers: Sequence[str],
        runs: int,
        scale: float,
        settings: Mapping[str, str],
    ) -> None:
        self._measures = measures
        self._runs = runs
        self._scale = scale
        self._clusters = [CLUSTERS[name](folder / name, settings=settings) for name in servers]
        self._tables = {
            measure.name: Table(
                name=measure.name, title=measure.title, note=measure.note, figures=measure.figures
            )
            for measure in measures
        }

    @property
    def tables(self) -> list[Table]:
        """What was measured."""
        return list(self._tables.values())

    def run(self, warm_up: Callable[[Cluster, float], None]) -> None:
        """Measure everything; nothing runs afterwards."""
        alone = [measure for measure in self._measures if not measure.needs_cluster]
        together = [measure for measure in self._measures if measure.needs_cluster]
        try:
            for run in range(self._runs):
                for measure in alone:
                    self._measure(measure, run)
            if together:
                for cluster in self._clusters:
                    say(f"{cluster.name}: three controllers and three brokers up in {cluster.start():.1f} s")
                for cluster in self._clusters:
                    warm_up(cluster, self._scale)
                    say(f"{cluster.name}: warm")
            warm = [measure for measure in together if not measure.restarts_nodes]
            for measure in warm:
                for cluster in self._clusters:
                    measure.run(cluster, self._scale * _REHEARSAL_SCALE)
            for measures in (warm, [measure for measure in together if measure.restarts_nodes]):
                for run in range(self._runs):
                    for measure in measures:
                        self._measure(measure, run)
        finally:
            for cluster in self._clusters:
                cluster.kill()

    def _measure(self, measure: Measure, run: int) -> None:
        for time_ in range(measure.times):
            # Who goes first changes, so that nobody always finds what the other has left behind.
            is_forward = (run + time_) % 2 == 0
            for cluster in self._clusters if is_forward else reversed(self._clusters):
                sample = measure.run(cluster, self._scale)
                self._tables[measure.name].samples.setdefault(cluster.name, []).append(sample)
                words = cluster_report.in_words(measure.figures, sample)
                say(f"run {run + 1}  {cluster.name}  {measure.name}  {words}")


def say(text: str) -> None:
    """Tell who waits how far it is."""
    print(text, file=sys.stderr, flush=True)
