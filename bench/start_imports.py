"""The imports of a new broker until it is ready, and the time of each module (`python -X importtime`).

    python -m ottla.bench.start_imports     prints the modules that take longest

Tracing costs about a fifth: the start itself is measured without it (`bench/start_up.py`).
"""

import re
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ottla.bench.figures import COUNT, MILLISECONDS, Figure, Sample
from ottla.bench.harness import scratch
from ottla.bench.markdown import aligned
from ottla.bench.measures import Measure
from ottla.bench.targets.servers import Ottla, Server

#: Ours, each a row of the report; everything else is Python's own or an installed package.
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


def _start(folder: Path, settings: Mapping[str, str]) -> list[Imported]:
    """Return the imports of a start with a new folder until it is ready, without later preparations."""
    server = _Traced(folder, settings)
    try:
        server.start()
        server.stop()
        return [*imported(server.log_file.read_text().partition("\nREADY ")[0])]
    finally:
        server.kill()
        shutil.rmtree(folder)


def _start_imports(server: Server, scale: float) -> Sample:
    """Return the figures of a start of Ottla; nothing for Kafka."""
    if not isinstance(server, Ottla):
        return {}
    return sample_of(_start(server.folder.parent / f"{server.name}-traced", server.settings))


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
        modules = _start(folder / "ottla", {})
    longest = sorted(modules, key=lambda each: -each.cumulative_s)[:_PRINTED]
    rows = [["module", "cumulative, ms", "alone, ms"]]
    rows += [[each.name, f"{each.cumulative_s * 1e3:.1f}", f"{each.own_s * 1e3:.1f}"] for each in longest]
    print("\n".join(aligned(rows)))
    sample = sample_of(modules)
    print(f"\n{len(modules)} modules, {sample['all_s'] * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
