"""`ottla bench` is not a part of the broker but of its repository: found where Ottla is installed from a checkout."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

_REPOSITORY: Final = Path(__file__).parents[2]


def _found() -> click.Command:
    if find_spec("bench") is None and (_REPOSITORY / "bench").is_dir():
        # In front: another project may have installed a package called `tests`.
        sys.path.insert(0, str(_REPOSITORY))
    if find_spec("bench") is None:
        return _missing
    command = import_module("ottla.bench.command").bench
    assert isinstance(command, click.Command), command
    return command


@click.command("bench", context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _missing(arguments: tuple[str, ...]) -> None:
    """Measure Kafka-compatible clusters (only in a checkout of the repository)."""
    raise click.ClickException(
        "the benchmarks are not installed with the broker: clone the repository, run `make setup-bench` in it, and then "
        ".venv/bin/ottla bench"
    )


bench: Final = _found()
