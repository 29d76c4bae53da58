"""The wheel beside a project whose own modules have the names of Ottla's rooms: `ottla` is all that it installs.

The project is the current folder and on PYTHONPATH, as in its own tests, and each of its modules refuses
to be imported.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from ottla.bench.components.processes import PATIENCE_S, Child, wait_until
from tests.compat import admin

ROOT = Path(__file__).parents[2]
ROOMS = (
    "runtime",
    "protocol",
    "metadata",
    "replication",
    "config",
    "storage",
    "remote",
    "controller",
    "broker",
    "bench",
    "testing",
    "stories",
    "web",
)
READY = re.compile(r"^READY .*?bootstrap=(\S+)", re.MULTILINE)


class Installed:
    """An environment with the wheel, and the project."""

    def __init__(self, folder: Path) -> None:
        source, self.project, self._folder = folder / "source", folder / "project", folder
        # What the image is built from.
        for name in re.findall(r"^COPY ([\w/]+) \1$", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE):
            shutil.copytree(
                ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, source)
        self._pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
        [self.wheel] = folder.glob("*.whl")
        self.bin = folder / "env/bin"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
        self.change("install", "--no-deps", "--no-index", str(self.wheel))
        # What it needs, of the tests' environment, of which the own import hooks are not taken over.
        self.packages = next((folder / "env/lib").glob("python*/site-packages"))
        (self.packages / "needed.pth").write_text(sysconfig.get_path("purelib"))
        for name in (*ROOMS, "tests", "requirements"):
            module = (
                self.project / name / "__init__.py"
                if name in ("broker", "bench", "tests", "testing", "stories")
                else self.project / f"{name}.py"
            )
            module.parent.mkdir(parents=True, exist_ok=True)
            module.write_text(f"raise ImportError('{name} of the project')\n")
        self.environment = {
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder), "PYTHONPATH": str(self.project)
        }  # fmt: skip

    def _pip(self, *arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments], check=True
        )

    def change(self, *arguments: str) -> None:
        """Run pip for the environment."""
        self._pip("--python", str(self.bin / "python"), *arguments)

    def run(self, *command: str) -> str:
        """The output of a command of the environment, run in the project."""
        done = subprocess.run(
            command, cwd=self.project, env=self.environment,
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, name: str, *command: str) -> Child:
        """A process in the project."""
        return Child([*command], log=self._folder / f"{name}.log", cwd=self.project, env=self.environment)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    return Installed(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def broker(installed, tmp_path_factory):
    """A broker with a remote tier: (its address, the tier's folder)."""
    folder = tmp_path_factory.mktemp("broker")
    command = [
        "ottla",
        "broker",
        "--port",
        "0",
        "--data-dir",
        str(folder / "data"),
        "--tier",
        str(folder / "tier"),
    ]
    child = installed.start("broker", *command, "--set", "remote.log.manager.task.interval.ms=100")
    child.wait_until(lambda: READY.search(child.output()) is not None)
    found = READY.search(child.output())
    assert found is not None
    yield found[1], folder / "tier"
    assert child.stop() == 0


def test_it_has_one_package(installed):
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"ottla"}
    assert {name.split("/")[1] for name in names if name.count("/") > 1} >= {*ROOMS}
    assert {"ottla/py.typed", "ottla/bench/page/page.css", "ottla/bench/workloads/smoke.toml"} <= {*names}
    assert {
        "ottla/stories/hour.toml",
        "ottla/stories/texts/lineage/scenario_2.txt",
        "ottla/web/play.html",
    } <= {*names}
    assert not [
        name
        for name in names
        if "/tests/" in name or (name.startswith("ottla/stories/texts/") and name.endswith(".py"))
    ]


@pytest.mark.parametrize(
    "command",
    [
        "ottla --version",
        "ottla bench list",
        "ottla tier --help",
        "python -m ottla --version",
        "ottla random-uuid",
        "ottla play lineage/scenario_2",
        "ottla docs build site",
    ],
)
def test_a_command(installed, command):
    assert installed.run(*command.split())


def test_a_room_is_imported_from_the_wheel(installed):
    script = (
        "import ottla.storage.log, ottla.bench.compare, sys; print(ottla.__file__, *({*sys.modules} & {%s}))"
    )
    found = installed.run("python", "-c", script % ", ".join(map(repr, ROOMS)))
    assert Path(found.strip()) == installed.packages / "ottla/__init__.py"


def test_segments_are_copied_by_the_transfer_process_and_read_by_spark(installed, broker):
    """Spark's executors are processes of their own, too, in the project's folder."""
    bootstrap, tier = broker
    tiered = {"remote.storage.enable": "true", "segment.bytes": "1048576", "local.retention.bytes": "1"}
    admin.create_topic(bootstrap, "orders", config=tiered)
    admin.produce(bootstrap, "orders", [bytes(10_000)] * 250)
    wait_until(lambda: [*tier.rglob("*.log")])
    assert "orders" in installed.run("ottla", "tier", "ls", "--bootstrap-server", bootstrap)
    script = f"""
from pyspark.sql import SparkSession
from ottla.remote.spark_source.source import TierDataSource
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.dataSource.register(TierDataSource)
store = {{"remote.log.storage.manager.class.name": "directory", "rsm.config.dir": {str(tier)!r}}}
options = store | {{"kafka.bootstrap.servers": {bootstrap!r}, "subscribe": "orders"}}
print(spark.read.format("ottla-tier").options(**options).load().count())
spark.stop()
"""
    assert int(installed.run("python", "-c", script)) > 0


def test_a_project_of_tests_by_the_plug_in(installed):
    """Its conftest.py needs nothing: the plug-in is an entry point of the wheel."""
    folder = installed.project / "shop"
    folder.mkdir()
    for name in ("test_orders.py", "test_streams.py"):
        shutil.copy(ROOT / "tests/unit/testing/project" / name, folder)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nfilterwarnings = ignore\n")
    found = installed.run("python", "-m", "pytest", "-q", "-n2", "-p", "no:cacheprovider", str(folder))
    assert "36 passed" in found


def test_a_cluster_of_processes(installed, tmp_path):
    child = installed.start(
        "cluster",
        "ottla",
        "cluster",
        "up",
        "--brokers",
        "2",
        "--port",
        "0",
        "--data-dir",
        str(tmp_path / "cluster"),
    )
    child.wait_until(lambda: "bootstrap" in child.output())
    assert child.stop() == 0


def test_two_nodes_in_a_process_of_the_user(installed, tmp_path):
    script = f"""
import asyncio, json
from pathlib import Path
from ottla.config.load import load_config
from ottla.broker.node import Node
from ottla.runtime.production import run

async def main(runtime):
    folders = [Path({str(tmp_path)!r}, name) for name in ("a", "b")]
    nodes = [await Node.start(runtime, load_config(port=0, data_dir=folder)) for folder in folders]
    ports = [node.listeners[0].port for node in nodes]
    for node in nodes:
        await node.stop()
    return ports

print(json.dumps(run(main)))
"""
    assert len({*json.loads(installed.run("python", "-c", script))}) == 2


def test_uninstalling_leaves_nothing(installed):
    installed.change("uninstall", "--yes", "ottla")
    environment = installed.bin.parent
    left = [
        path
        for path in environment.rglob("*")
        if path.is_file() and "ottla" in str(path.relative_to(environment))
    ]
    # pytest keeps what it has compiled of a plug-in, as of any other one, before it can say that it needs no rewriting.
    assert {path.name.partition(".")[0] for path in left} <= {"__init__", "pytest_plugin"}
    assert [path for path in left if "-pytest-" not in path.name] == []
    # For the processes of the other tests, which import more of it when they stop.
    installed.change("install", "--no-deps", "--no-index", str(installed.wheel))
