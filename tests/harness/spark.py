"""A Spark standalone cluster of processes on 127.0.0.1: one master, some workers with one core each."""

import re
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyspark

from ottla.bench.components.processes import Child

_HOME: Final = Path(pyspark.__file__).parent
_MASTER_UP: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER_UP: Final = re.compile(r"Successfully registered with master")


def _is_up(worker: Child) -> bool:
    return _WORKER_UP.search(worker.output()) is not None


class StandaloneCluster:
    """Started when entered, killed when left."""

    def __init__(self, folder: Path, *, workers: int) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._worker_count = workers
        self._children: list[Child] = []
        #: `--master` of programs that use it.
        self.url = ""

    def __enter__(self) -> Self:
        try:
            master = self._start("master", "Master", "--port", "0")
            master.wait_until(lambda: _MASTER_UP.search(master.output()) is not None)
            found = _MASTER_UP.search(master.output())
            assert found is not None
            self.url = found[1]
            workers = [
                self._start(
                    f"worker-{number}",
                    "Worker",
                    *(
                        "--cores",
                        "1",
                        "--memory",
                        "1g",
                        "--work-dir",
                        str(self.work_dir(number)),
                        self.url,
                    ),
                )
                for number in range(self._worker_count)
            ]
            for worker in workers:
                worker.wait_until(partial(_is_up, worker))
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()

    def work_dir(self, number: int) -> Path:
        """The folder in which a worker has the folders of its executors."""
        return self._folder / f"work-{number}"

    def _start(self, name: str, role: str, *arguments: str) -> Child:
        program = f"org.apache.spark.deploy.{role.lower()}.{role}"
        child = Child(
            [str(_HOME / "bin/spark-class"), program, "--host", "127.0.0.1", "--webui-port", "0", *arguments],
            log=self._folder / f"{name}.log",
            env={"SPARK_HOME": str(_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"},
        )
        self._children.append(child)
        return child

    def _kill(self) -> None:
        for child in reversed(self._children):
            child.kill()
