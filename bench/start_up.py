"""Starts of a new broker: the time until it answers, its memory when it is idle, and what it imports until then.

    python -m ottla.bench.start_up     prints the modules whose import takes longest (`python -X importtime`)

Tracing imports costs about a fifth: the start itself is measured without it.
"""

import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ottla.bench.environment import REPOSITORY
from ottla.bench.figures import (
    COUNT,
    MEGABYTES,
    MILLISECONDS,
    SECONDS,
    Figure,
    Goal,
    LoadFailed,
    Sample,
    aligned,
)
from ottla.bench.harness import Measure, scratch
from ottla.bench.targets.servers import Ottla, Server, ottla_environment

#: A broker is idle when its start is this long ago.
_SETTLE_S: Final = 1.5
_TIMEOUT_S: Final = 60
#: Our packages, each a row of the imports; everything else is Python's own or an installed package.
PACKAGES: Final = (
    "ottla",
    "runtime",
    "protocol",
    "metadata",
    "replication",
    "config",
    "storage",
    "remote",
    "controller",
    "broker",
)
_STANDARD, _INSTALLED = "Python's own", "installed packages"
#: The modules whose time, with all modules that they are the first to import, the report shows.
SHOWN: Final = (
    "asyncio",
    "uvloop",
    "click",
    "ottla.broker.cli.broker",
    "ottla.broker.api",
    "ottla.broker.services",
    "ottla.broker.node",
    "ottla.broker.groups.coordinator",
    "ottla.broker.replicas.replica_manager",
    "ottla.broker.roles.tiering",
    "ottla.controller.controller",
)
_LINE: Final = re.compile(r"^import time: +(\d+) \| +(\d+) \| +([\w.]+)$", re.MULTILINE)
_US: Final = 1e-6
_PRINTED: Final = 40


def _start(server: Server, scale: float) -> Sample:
    """Start another server in a new folder, and stop it."""
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


class Imported(NamedTuple):
    """A module that was imported, with its times."""

    name: str
    #: The time without the modules that it imports.
    own_s: float
    #: The time with those modules that had not been imported before.
    cumulative_s: float


def imported(text: str) -> Iterator[Imported]:
    r"""Yield the modules in an output with `-X importtime`, which may have other lines, too.

    >>> header = "import time: self [us] | cumulative | imported package\n"
    >>> [*imported(header + "import time:       150 |        400 |   click")]
    [Imported(name='click', own_s=0.00015, cumulative_s=0.0004)]
    """
    for own, cumulative, name in _LINE.findall(text):
        yield Imported(name, round(int(own) * _US, 6), round(int(cumulative) * _US, 6))


def group_of(module: str) -> str:
    """Return the row of the report to which a module belongs.

    >>> group_of("ottla.broker.api"), group_of("asyncio.events"), group_of("click")
    ('broker', "Python's own", 'installed packages')
    """
    top, _, rest = module.partition(".")
    if top == "ottla":
        return rest.partition(".")[0] or top
    is_standard = top in sys.stdlib_module_names or top in ("site", "sitecustomize", "usercustomize")
    return _STANDARD if is_standard else _INSTALLED


def sample_of(modules: Sequence[Imported]) -> Sample:
    """Return the figures of one start."""
    own_s: defaultdict[str, float] = defaultdict(float)
    for each in modules:
        own_s[group_of(each.name)] += each.own_s
    return {
        "all_s": sum(own_s.values()),
        "modules": len(modules),
        **{f"own_s {group}": seconds for group, seconds in own_s.items()},
        **{f"cumulative_s {each.name}": each.cumulative_s for each in modules if each.name in SHOWN},
    }


class _Traced(Ottla):
    """A broker that prints its imports among its log lines."""

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), "PYTHONPROFILEIMPORTTIME": "1"}


def _traced_start(folder: Path, settings: Mapping[str, str]) -> list[Imported]:
    """Return the imports of a start with a new folder until it is ready, without later preparations."""
    server = _Traced(folder, settings)
    try:
        server.start()
        server.stop()
        return [*imported(server.log_file().read_text().partition("\nREADY ")[0])]
    finally:
        server.kill()
        shutil.rmtree(folder)


def _start_imports(server: Server, scale: float) -> Sample:
    """Return the figures of a start of Ottla; nothing for Kafka."""
    if not isinstance(server, Ottla):
        return {}
    return sample_of(_traced_start(server.folder.parent / f"{server.name}-traced", server.settings))


START_IMPORTS: Final[Measure[Server]] = Measure(
    name="start-imports",
    title="Imports until it is ready",
    note="As `python -X importtime` reports them, which costs a fifth more. Of a package: its modules "
    "alone. Of a module: with all that it is the first to import; not measured where it is not imported.",
    figures=(
        Figure(metric="all_s", title="all", unit=MILLISECONDS),
        Figure(metric="modules", title="modules", unit=COUNT),
        *(
            Figure(metric=f"own_s {group}", title=group, unit=MILLISECONDS)
            for group in (_STANDARD, _INSTALLED, *PACKAGES)
        ),
        *(
            Figure(metric=f"cumulative_s {module}", title=f"`{module}`, cumulative", unit=MILLISECONDS)
            for module in SHOWN
        ),
    ),
    run=_start_imports,
    needs_subject=False,
)


def main() -> None:
    """Print the modules of a start that take longest."""
    with scratch(Path(tempfile.gettempdir()), "start-imports") as folder:
        modules = _traced_start(folder / "ottla", {})
    longest = sorted(modules, key=lambda each: -each.cumulative_s)[:_PRINTED]
    rows = [["module", "cumulative, ms", "alone, ms"]]
    rows += [[each.name, f"{each.cumulative_s * 1e3:.1f}", f"{each.own_s * 1e3:.1f}"] for each in longest]
    print("\n".join(aligned(rows)))
    sample = sample_of(modules)
    print(f"\n{len(modules)} modules, {sample['all_s'] * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
