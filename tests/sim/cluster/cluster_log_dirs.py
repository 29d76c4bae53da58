"""Log directories that an operator takes out of `log.dirs` and puts back, while a broker is stopped.

    removed    not in log.dirs any more; its files stay where they are
    replaced   an empty one is in its place
    renamed    at another path; the id in its meta.properties is the same
    returned   one that was removed or replaced is in log.dirs again, with the logs of then
    handed     to another broker, whose id the operator has written into it: the logs there are those of another replica

The first directory has the metadata log and stays. At the end of a story all are back (`restore`), but for those in
another broker: what is there is lost, as with a new disk. So such a directory has nothing that is needed any more.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from ottla.storage.manager import meta_properties

if TYPE_CHECKING:
    from cluster_machine import Machine

CHANGES = ("removed", "removed", "replaced", "renamed", "returned", "returned", "handed")


class LogDirs:
    """The log directories of one machine, which does not run while they are changed."""

    def __init__(self, machine: "Machine", random: Random) -> None:
        self._machine = machine
        self._random = random
        self.configured = [*machine.config.log_dirs]
        #: Taken out, with their files.
        self.away: list[str] = []
        #: The change that the next start makes.
        self.planned: str | None = None
        self.names: Iterator[str] = (f"/disk/new-{number}" for number in range(1000))

    def change(self) -> str | None:
        """Make the planned change; what was done."""
        assert not self._machine.is_up, self._machine
        kind, self.planned = self.planned, None
        others = self.configured[1:]
        match kind:
            case "removed" | "replaced" if others:
                path = self._random.choice(others)
                self.configured.remove(path)
                self.away.append(path)
                if kind == "replaced":
                    self.configured.append(next(self.names))
            case "renamed" if others:
                path, new = self._random.choice(others), next(self.names)
                self._machine.files.rename(Path(path), Path(new))
                self.configured[self.configured.index(path)] = new
            case "returned" if self.away:
                path = self._random.choice(self.away)
                self.away.remove(path)
                self.configured.append(path)
            case _:
                return None
        self._machine.set_log_dirs(self.configured)
        return f"{kind} {path}"

    def add(self, path: str) -> None:
        """A directory of another machine is in log.dirs."""
        self.configured.append(path)
        self._machine.set_log_dirs(self.configured)

    def restore(self) -> None:
        """All that were taken out are in log.dirs again, unless the machine runs."""
        if not self._machine.is_up and self.away:
            returned, self.away = self.away, []
            self.configured += returned
            self._machine.set_log_dirs(self.configured)


def hand_over(giver: "Machine", path: str, taker: "Machine") -> None:
    """A directory that was taken out of one machine is in another one, with that one's id; the taker is stopped."""
    name = next(taker.log_dirs.names)
    giver.log_dirs.away.remove(path)
    giver.files.hand_over(Path(path), taker.files, Path(name))
    properties = meta_properties.read(Path(name), taker.files)
    assert properties is not None, path
    meta_properties.write(Path(name), replace(properties, node_id=taker.node_id), taker.files)
    taker.log_dirs.add(name)
