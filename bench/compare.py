"""Kafka and Ottla side by side: the same loads on the same machine, in turn.

    python -m bench.compare [--quick] [--runs N] [--only TEXT]... [--data-dir FOLDER]

Prints a table and writes it, with every sample, to bench/results/. bench/README.md says how to read it.
"""

import argparse
import datetime
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import report
from bench.loads import LOADS, WARM_UP, Load
from bench.report import Comparison, Environment
from bench.servers import SERVERS, Server, Usage, end_on_signals
from tests.harness.fetch import KAFKA_VERSION

_RESULTS: Final = Path(__file__).parent / "results"
_SHARED_MEMORY: Final = Path("/dev/shm")
#: A broker is idle when its start is this long ago.
_SETTLE_S: Final = 2.0
#: After the warm-up, loads at this part of their volume come first and are not counted, either.
_REHEARSAL_SCALE: Final = 0.25
_QUICK_SCALE: Final = 0.25
_STEPS: Final = 100_000


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="one run of a quarter of the volume")
    parser.add_argument("--runs", type=int, metavar="N", help="measured runs; medians are shown (default: 3)")
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="only loads whose name has this in it"
    )
    parser.add_argument(
        "--server", action="append", choices=sorted(SERVERS), help="only this one (default: all)"
    )
    parser.add_argument(
        "--data-dir", type=Path, metavar="FOLDER", help="where the logs go (default: /dev/shm)"
    )
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    loads = [load for load in LOADS if not options.only or any(text in load.name for text in options.only)]
    if not loads:
        parser.error(f"no load is called so; there are: {', '.join(load.name for load in LOADS)}")
    end_on_signals()
    base = options.data_dir or (_SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None)
    folder = Path(tempfile.mkdtemp(prefix="ottla-bench-", dir=base))
    comparison = Comparison(environment=environment(folder), loads=loads)
    began = time.monotonic()
    try:
        _compare(
            comparison,
            folder,
            names=options.server or list(SERVERS),
            runs=options.runs or (1 if options.quick else 3),
            scale=_QUICK_SCALE if options.quick else 1.0,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(report.as_markdown(comparison))
    print(f"took {time.monotonic() - began:.0f} s")
    if not options.no_save:
        for path in report.save(comparison, _RESULTS):
            print(f"written: {path}")


def _compare(comparison: Comparison, folder: Path, *, names: list[str], runs: int, scale: float) -> None:
    servers: list[Server] = []
    try:
        for run in range(runs):
            servers += _starts(comparison, folder, names, run=run, is_last=run == runs - 1)
        for load in WARM_UP:
            for server in servers:
                _say(f"warm-up  {server.name}  {load.name}  {report.in_words(load.run(server, 1.0))}")
        for load in comparison.loads:
            for server in servers:
                if load.prepare is not None:
                    load.prepare(server, scale)
        for run in range(-1, runs):
            for load in comparison.loads:
                # Who goes first changes, so that nobody always finds what the other has left behind.
                for server in servers if run % 2 == 0 else reversed(servers):
                    _measure(
                        comparison, load, server, run=run, scale=scale * (_REHEARSAL_SCALE if run < 0 else 1)
                    )
    finally:
        for server in servers:
            server.kill()


def _starts(
    comparison: Comparison, folder: Path, names: list[str], *, run: int, is_last: bool
) -> list[Server]:
    """Start each broker in a new folder; the last ones stay."""
    kept: list[Server] = []
    for name in names:
        server = SERVERS[name](folder / f"{name}-{run}")
        try:
            started = server.start()
            time.sleep(_SETTLE_S)
            idle = server.usage()
            comparison.starts.setdefault(name, []).append((started, idle))
            _say(f"{name}: started in {started.start_s:.2f} s, idle {idle.private_bytes / 1e6:.0f} MB")
        except BaseException:
            server.kill()
            raise
        if is_last:
            kept.append(server)
        else:
            server.stop()
            shutil.rmtree(server.folder)
    return kept


def _measure(comparison: Comparison, load: Load, server: Server, *, run: int, scale: float) -> None:
    # A consumer reads a whole topic, whatever the scale of the warm-up.
    sample = load.run(server, scale)
    used = server.usage()
    if run >= 0:
        comparison.samples.setdefault(load.name, {}).setdefault(server.name, []).append(sample)
    peak = comparison.peaks.get(server.name, used)
    comparison.peaks[server.name] = Usage(
        used.cpu_s,
        max(peak.resident_bytes, used.resident_bytes),
        max(peak.private_bytes, used.private_bytes),
    )
    _say(
        f"{'rehearsal' if run < 0 else f'run {run + 1}'}  {server.name}  {load.name}  {report.in_words(sample)}"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def environment(folder: Path) -> Environment:
    """This machine, this code, and where the logs are."""
    commit = _output("git", "rev-parse", "--short", "HEAD")
    changed = _output("git", "status", "--porcelain", "--untracked-files=no")
    return Environment(
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        commit=commit,
        is_changed=bool(changed),
        cpu_count=os.cpu_count() or 0,
        load_average=os.getloadavg()[0],
        file_system=_output("stat", "--file-system", "--format=%T", str(folder)),
        kernel=platform.release(),
        python=platform.python_version(),
        python_step_ns=_python_step_ns(),
        java=_output("java", "-version").split("\n")[0],
        kafka=KAFKA_VERSION,
    )


def _python_step_ns() -> float:
    """What a step of a small loop costs: one version's builds differ by half."""

    def loop_s() -> float:
        began, x = time.perf_counter(), 0
        for i in range(_STEPS):
            x += i & 3
        return time.perf_counter() - began

    return min(loop_s() for _ in range(20)) / _STEPS * 1e9


def _output(*command: str) -> str:
    done = subprocess.run(
        command,
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout.strip()


if __name__ == "__main__":
    main()
