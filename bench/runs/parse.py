"""Reads a workload's file: TOML, whose tables are the dataclasses of `ottla.bench.workloads.model`.

    workload = load("smoke")              # a workload that is shipped (bench/workloads/*.toml)
    workload = load("folder/mine.toml")   # or a file

Sizes are bytes, times are seconds. What cannot be run is refused with one sentence (`WorkloadError`).
"""

import difflib
import tomllib
from pathlib import Path
from typing import Final

from ottla.bench.runs.workload_checks import check
from ottla.bench.workloads.keys import Place, WorkloadError, read_table
from ottla.bench.workloads.model import Workload

SHIPPED: Final = Path(__file__).parents[1] / "workloads"
_ENDING: Final = ".toml"


def shipped() -> list[Path]:
    """Return the files of the workloads that are shipped, by name."""
    return sorted(SHIPPED.glob(f"*{_ENDING}"))


def load(name: str) -> Workload:
    """Load a workload by its file, or by its name if it is shipped. Raises WorkloadError."""
    path = Path(name)
    if path.suffix != _ENDING and "/" not in name:
        path = SHIPPED / f"{name}{_ENDING}"
        if not path.exists():
            raise WorkloadError(_unknown(name))
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise WorkloadError(f"{path} cannot be read: {reason}") from error
    return parse(text, path)


def parse(text: str, path: Path) -> Workload:
    """Parse a workload from the text of its file. Raises WorkloadError."""
    place = Place(path.name)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise place.error(f"is no TOML: {error}") from error
    workload = read_table(Workload, table, place, name=path.stem)
    check(workload, place)
    return workload


def _unknown(name: str) -> str:
    names = [path.stem for path in shipped()]
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {nearest[0]}? " if nearest else ""
    return (
        f"there is no workload {name!r}: {hint}`ottla bench list` shows those that are shipped; a file's name ends "
        f"in {_ENDING}"
    )
