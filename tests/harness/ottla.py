"""Ottla as a user starts it: a process of its own, known by its READY line."""

import re
import sys
from pathlib import Path

from ottla.bench.components.processes import Child, free_port
from tests.harness.release import begin_at_release

_READY = re.compile(r"^READY .*?bootstrap=(\S+):(\d+)", re.MULTILINE)


class OttlaServer:
    """A standalone broker on a free port and a folder of its own."""

    is_kafka = False

    def __init__(
        self,
        folder: Path,
        *,
        settings: dict[str, str] | None = None,
        data_dir: Path | None = None,
        program: tuple[str, ...] = ("-m", "ottla"),
        tier: str | Path | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        """`program` is what Python runs: the broker, or something that changes it before. `tier`: see `--tier`.

        `options` are further ones of `ottla broker`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.data_dir = data_dir or folder / "data"
        self._folder = folder
        self._settings = settings or {}
        self._program = program
        self._options = options
        self.tier = tier
        self._starts = 0
        self._child: Child | None = None
        self.port = free_port()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def child(self) -> Child:
        assert self._child is not None, "not started"
        return self._child

    def start(self) -> "OttlaServer":
        """Start and wait for READY; again at the same port, as a restart does."""
        self._starts += 1
        if not (self.data_dir / "meta.properties").exists():
            begin_at_release(Path(self._settings.get("metadata.log.dir", self.data_dir)))
        arguments = ["--port", str(self.port), "--data-dir", str(self.data_dir), *self._options]
        if self.tier is not None:
            arguments += ["--tier", str(self.tier)]
        for key, value in self._settings.items():
            arguments += ["--set", f"{key}={value}"]
        log = self._folder / f"ottla-{self._starts}.log"
        self._child = Child([sys.executable, *self._program, "broker", *arguments], log=log)
        self._child.wait_until(lambda: _READY.search(self.child.output()) is not None)
        found = _READY.search(self.child.output())
        assert found is not None
        self.port = int(found[2])
        return self

    def stop(self) -> int:
        return self.child.stop()

    def kill(self) -> None:
        self.child.kill()
