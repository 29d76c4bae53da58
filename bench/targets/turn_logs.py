"""The nodes whose event loops are watched, and the logs in which they report turns that take too long.

    with watched():             nodes that are started meanwhile have a watch with this bound
        ...
        READER.new()            the turns of all nodes since the last call

The watch takes 3 % of a processor where a node is idle, and 5 to 10 % of what small requests take. So no run
that is timed has it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ottla.bench.components.processes import Child
from ottla.bench.turns import BOUND_MS, Turn, turns_in

#: The environment variable of `runtime/stalls.py`.
BOUND_VARIABLE: Final = "OTTLA_LOOP_STALL_MS"


@contextmanager
def watched() -> Iterator[None]:
    """Nodes that are started in the block report their turns."""
    before = os.environ.get(BOUND_VARIABLE)
    os.environ[BOUND_VARIABLE] = str(BOUND_MS)
    try:
        yield
    finally:
        if before is None:
            del os.environ[BOUND_VARIABLE]
        else:
            os.environ[BOUND_VARIABLE] = before


class TurnReader:
    """Reads what the logs of this program's nodes report, each report once."""

    def __init__(self) -> None:
        self._read: dict[Path, int] = {}
        self._found: list[tuple[Path, Turn]] = []

    def note(self) -> None:
        """Read the logs up to here; for nodes whose logs are about to be removed."""
        for log, starts in Child.logs.items():
            if not log.exists():
                continue
            text = log.read_bytes()
            self._found += [(log, turn) for turn in turns_in(text, starts, since=self._read.get(log, 0))]
            self._read[log] = len(text)

    def new(self, *, log: Path | None = None) -> list[Turn]:
        """Return all reports since the last call, of all nodes or of the one with this log."""
        self.note()
        found, self._found = self._found, []
        return [turn for where, turn in found if log is None or where == log]


#: The reader of the process, whose nodes write these logs.
READER: Final = TurnReader()
