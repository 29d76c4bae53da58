"""Ottla with a sampler of CPU time in each node (`bench/internals/profiled_broker.py`), on while a load measures."""

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ottla.bench.profiles import NodeSamples
from ottla.bench.targets.clusters import OttlaCluster
from ottla.bench.targets.servers import Ottla, Usage
from ottla.bench.targets.settings import SETTINGS

_PROGRAM: Final = "ottla.bench.internals.profiled_broker"
_PATIENCE_S: Final = 20
_POLL_S: Final = 0.01


class Samplers:
    """The samplers of some nodes, which are on and off at the same time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._is_on = False
        self._files: dict[int, int] = {}
        self._taken: list[list[NodeSamples]] = []

    def switch(self, pids: Sequence[int]) -> None:
        """Switch the samplers on; or off, and read their samples. Raises TimeoutError."""
        for pid in pids:
            os.kill(pid, signal.SIGUSR2)
        self._is_on = not self._is_on
        if not self._is_on:
            self._taken.append([self._read(pid) for pid in pids])

    def taken(self) -> list[list[NodeSamples]]:
        """Return the samples since the last call: for each time that the samplers were on, those of each node."""
        found, self._taken = self._taken, []
        return found

    def _read(self, pid: int) -> NodeSamples:
        self._files[pid] = self._files.get(pid, 0) + 1
        path = self.folder / f"{pid}-{self._files[pid]}.json"
        deadline = time.monotonic() + _PATIENCE_S
        while not path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {_PATIENCE_S} s for {path}")
            time.sleep(_POLL_S)
        return NodeSamples.from_json(json.loads(path.read_text()))


class ProfiledServer(Ottla):
    """One broker. Loads read `usage` just before and just after what they measure: it switches the sampler."""

    def __init__(self, folder: Path, settings: Mapping[str, str] = SETTINGS["default"]) -> None:
        super().__init__(folder, settings)
        self.samplers = Samplers(folder.absolute() / "profiles")

    def usage(self) -> Usage:
        """Return the usage of the broker, and switch its sampler on or off."""
        used = super().usage()
        self.samplers.switch(self.broker_pids())
        return used

    def _program(self) -> list[str]:
        return [_PROGRAM, str(self.samplers.folder)]


class ProfiledCluster(OttlaCluster):
    """A cluster in which `usage` switches the samplers of the three brokers; those of controllers stay off."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, settings)
        self.samplers = Samplers(folder.absolute() / "profiles")

    def usage(self) -> Usage:
        """Return the usage of the brokers, and switch their samplers on or off."""
        used = super().usage()
        self.samplers.switch(self.broker_pids())
        return used

    def _program(self) -> list[str]:
        return [_PROGRAM, str(self.samplers.folder)]
