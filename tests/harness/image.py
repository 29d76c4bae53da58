"""docker/Dockerfile without a container engine: its steps, executed in a folder that stands for the image's root.

Packages of requirements/run.lock are those of the tests' own environment, which has them from the same lock; steps
that need another user are left out. Both stages have one root, since a virtual environment knows its path.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = REPOSITORY / "docker/Dockerfile"
#: Folders of the image; in a step they are those of the root.
_FOLDERS = re.compile(r"(?<![\w/.])/(?=(?:etc|opt|src|data|var|mnt)\b)")


def instructions() -> Iterator[tuple[str, str]]:
    """Yield each instruction of the Dockerfile with its arguments, lines joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", "")
    for line in filter(None, text.splitlines()):
        name, _, arguments = line.partition(" ")
        yield name, arguments


def copied() -> list[str]:
    """The files and folders of the repository that the Dockerfile copies."""
    copies = [
        arguments.split()
        for name, arguments in instructions()
        if name == "COPY" and "--from" not in arguments
    ]
    return [source for *sources, _ in copies for source in sources]


class Image:
    """The image: its root, and what it runs."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self._here = self.root
        self.environment: dict[str, str] = {}
        self.command: list[str] = []
        self.health_check: list[str] = []
        for name, arguments in instructions():
            self._execute(name, _FOLDERS.sub(f"{self.root}/", arguments))

    def _execute(self, name: str, arguments: str) -> None:
        match name:
            case "WORKDIR":
                self._here = Path(arguments)
                self._here.mkdir(parents=True)
            case "COPY":
                self._copy(arguments.split())
            case "RUN":
                for command in arguments.split("&&"):
                    self._run(shlex.split(command))
            case "ENV":
                variable, _, value = arguments.partition("=")
                self.environment[variable] = value.replace("$PATH", os.environ["PATH"])
            case "HEALTHCHECK":
                self.health_check = json.loads(arguments.partition(" CMD ")[2])
            case "CMD":
                self.command = json.loads(arguments)
            case _:
                assert name in ("FROM", "USER", "VOLUME", "EXPOSE"), name

    def _copy(self, words: list[str]) -> None:
        if words[0] == "--from=build":
            assert words[1] == words[2]
            assert Path(words[1]).is_dir()
            return
        *sources, target = words
        for source in sources:
            to = self._here / target / (Path(source).name if target.endswith("/") else "")
            to.parent.mkdir(parents=True, exist_ok=True)
            if (REPOSITORY / source).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
                shutil.copytree(REPOSITORY / source, to, symlinks=True, ignore=ignored)
            else:
                shutil.copy(REPOSITORY / source, to)

    def _run(self, command: list[str]) -> None:
        match command:
            case ["python", *rest]:
                self._call([sys.executable, *rest])
            case ["pip", "--python", python, "install", *_, "-r", lock]:
                assert (self._here / lock).is_file()
                [packages] = Path(python).parents[1].glob("lib/python*/site-packages")
                (packages / "locked.pth").write_text(sysconfig.get_path("purelib"))
            case ["pip", _, _, "uninstall", "--yes", "setuptools"]:
                pass  # it is the tests' own one
            case ["pip", *rest]:
                self._call([sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *rest])
            case ["useradd" | "chown", *_]:
                pass
            case ["mkdir", *_]:
                self._call(command)
            case _:
                raise AssertionError(f"an unknown step: {command}")

    def _call(self, command: list[str]) -> None:
        subprocess.run(command, cwd=self._here, check=True)

    def is_healthy(self, variables: dict[str, str]) -> tuple[bool, str]:
        """Whether the health check of a container with these variables succeeds, and its output."""
        done = subprocess.run(
            self.health_check, env={**os.environ, **self.environment, **variables},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode == 0, done.stdout + done.stderr
