"""The time of a new broker until it answers, and its memory when it is idle."""

import json
import shutil
import statistics
import subprocess
import sys
import time
from typing import Final

from ottla.bench.environment import REPOSITORY
from ottla.bench.figures import MEGABYTES, MILLISECONDS, SECONDS, Figure, Goal, LoadFailed, Sample
from ottla.bench.measures import Measure
from ottla.bench.targets.servers import Ottla, Server, ottla_environment

#: A broker is idle when its start is this long ago.
_SETTLE_S: Final = 1.5
_TIMEOUT_S: Final = 60


def _start(server: Server, scale: float) -> Sample:
    """Start another one in a new folder, and stop it."""
    other = type(server)(server.folder.parent / f"{server.name}-new", server.settings)
    try:
        started = other.start()
        time.sleep(_SETTLE_S)
        idle = other.usage()
        other.stop()
    finally:
        other.kill()
        shutil.rmtree(other.folder)
    return {
        "start_s": started.start_s,
        "format_s": started.format_s,
        "idle_private_bytes": idle.private_bytes,
        "idle_resident_bytes": idle.resident_bytes,
    }


def _start_in_process(server: Server, scale: float) -> Sample:
    """Start nodes in a process, as a test suite does. Nothing for Kafka, which cannot be embedded in Python."""
    if not isinstance(server, Ottla):
        return {}
    folder = server.folder.parent / f"{server.name}-in-process"
    command = [sys.executable, "-m", "ottla.bench.internals.start_in_process", str(folder)]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=ottla_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    shutil.rmtree(folder, ignore_errors=True)
    if done.returncode:
        raise LoadFailed(f"start in process: {done.stderr[-2000:]}")
    return {"start_s": statistics.median(json.loads(done.stdout))}


START: Final[Measure[Server]] = Measure(
    name="start",
    title="Start with a new folder",
    note="From the process's start to the first answered ApiVersions; Kafka's folder is formatted by a "
    f"command of its own before, Ottla formats its own. Idle: {_SETTLE_S:g} s later.",
    figures=(
        Figure(
            metric="start_s",
            title="to the first answer",
            unit=SECONDS,
            goal=Goal(at_most=0.3, is_absolute=True),
        ),
        Figure(metric="format_s", title="formatting before", unit=SECONDS),
        Figure(
            metric="idle_private_bytes",
            title="resident when idle, page cache aside",
            unit=MEGABYTES,
            goal=Goal(at_most=40e6, is_absolute=True),
        ),
        Figure(metric="idle_resident_bytes", title="resident when idle", unit=MEGABYTES),
    ),
    run=_start,
    needs_subject=False,
)

START_IN_PROCESS: Final[Measure[Server]] = Measure(
    name="start-in-process",
    title="Start inside a process that has imported everything",
    note="Ottla as a test fixture: until a new node serves. Kafka has no such start.",
    figures=(
        Figure(
            metric="start_s",
            title="until it serves",
            unit=MILLISECONDS,
            goal=Goal(at_most=0.03, is_absolute=True),
        ),
    ),
    run=_start_in_process,
    needs_subject=False,
)
