"""The options of `ottla bench run`, and all checks of them that are possible before anything is started."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from ottla.bench.runs.parse import load
from ottla.bench.runs.workload_checks import check
from ottla.bench.targets.fit import check_fit, slows_store
from ottla.bench.targets.running import running
from ottla.bench.targets.started import started
from ottla.bench.targets.target import Target
from ottla.bench.workloads.keys import Place
from ottla.bench.workloads.model import Tier, Workload
from ottla.bench.workloads.scaling import scaled

MINIO: Final = "minio"


class CannotRun(Exception):
    """Options do not fit together; the sentence says which one to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command line."""

    workload: str
    #: Name and bootstrap servers of clusters that run already.
    targets: Sequence[tuple[str, str]]
    #: The targets to start: `ottla`, `kafka`, and `minio` for its store.
    start: Sequence[str]
    #: The store behind the brokers that are started; None for the workload's.
    store: Tier | None
    master: str
    runs: int
    seconds_factor: float
    out: Path
    #: The folder in which started brokers keep their files.
    disk: Path
    warm_up_rounds: int
    #: Whether a run of its own watches the event loops of an Ottla that is started.
    is_observed: bool
    is_dirty_allowed: bool
    #: The exact command line.
    command: str


def workload_of(options: Options) -> Workload:
    """Return the workload as it will be run. Raises WorkloadError, CannotRun."""
    workload = scaled(load(options.workload), options.seconds_factor)
    store = Tier.MINIO if MINIO in options.start else options.store
    if store is None:
        return workload
    if workload.cluster.tier is Tier.NONE:
        raise CannotRun(f"{workload.name} has no remote tier: remove --store and --start {MINIO}")
    changed = replace(workload, cluster=replace(workload.cluster, tier=store))
    check(changed, Place(f"{workload.name}.toml, with the store {store.value}"))
    return changed


def check_out(out: Path) -> None:
    """Raise CannotRun if no result can be written: else that is known after the warm-up only. Leaves nothing."""
    path = out.absolute()
    try:
        with TemporaryFile(dir=next(each for each in (path, *path.parents) if each.exists())):
            pass
    except OSError as error:
        raise CannotRun(f"--out {out} cannot be written ({error.strerror}): name another folder") from error


def targets_of(options: Options, workload: Workload, folder: Path) -> list[Target]:
    """Return the targets in the order of the command line; nothing is started. Raises TargetError, CannotRun."""
    names = [name for name, _ in options.targets]
    kinds = [kind for kind in options.start if kind != MINIO]
    for name in {*names, *kinds}:
        if [*names, *kinds].count(name) > 1:
            raise CannotRun(f"there are two targets called {name}: give each a name of its own")
    if MINIO in options.start and not kinds:
        raise CannotRun(f"--start {MINIO} is the remote tier of a cluster that is started: add --start ottla")
    if not names and not kinds:
        raise CannotRun("there is no target: name one with --target NAME=HOST:PORT, or --start ottla")
    targets: list[Target] = [running(name, bootstrap) for name, bootstrap in options.targets]
    can_be_slow = slows_store(workload)
    targets += [started(kind, workload.cluster, folder / kind, can_be_slow=can_be_slow) for kind in kinds]
    for target in targets:
        check_fit(workload, target)
    return targets
