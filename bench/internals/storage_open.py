"""Opening all logs of a folder, in a process of its own: how long it takes, and what the logs weigh then.

python -m ottla.bench.internals.storage_open FOLDER
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple
from uuid import UUID

import psutil

from ottla.bench.environment import REPOSITORY
from ottla.bench.internals.storage_support import NOW_MS
from ottla.config.log_config import LogConfig
from ottla.storage.files import Files
from ottla.storage.manager.log_manager import LogManager


class Opened(NamedTuple):
    """The figures of a process that has opened and closed the logs of a folder."""

    open_s: float
    open_cpu_s: float
    close_s: float
    logs_count: int
    #: The private memory beyond that before, without pages shared with files.
    private_bytes: int


@contextmanager
def opened(folder: Path, config: LogConfig) -> Iterator[LogManager]:
    """Open all logs of a folder; they are closed cleanly at the end."""
    logs = LogManager.open(
        [folder],
        files=Files(),
        cluster_id=None if (folder / "meta.properties").exists() else "bench",
        node_id=1,
        directory_id=lambda: UUID(int=1),
        random=Random(1),
        now_ms=NOW_MS,
        default_config=config,
    )
    yield logs
    logs.shutdown(NOW_MS, broker_epoch=-1)


def in_a_process(folder: Path) -> Opened:
    """Open the folder's logs and close them, in another process."""
    done = subprocess.run(
        [sys.executable, "-m", "ottla.bench.internals.storage_open", str(folder)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Opened(**json.loads(done.stdout))


def private_bytes() -> int:
    """Return the resident memory of this process without pages shared with files."""
    memory = psutil.Process().memory_info()
    return int(memory.rss - memory.shared)


def main() -> None:
    """Open the logs of a folder, measure, close them, and print the figures."""
    before = private_bytes()
    began, cpu_began = time.perf_counter(), time.process_time()
    with opened(Path(sys.argv[1]), LogConfig()) as logs:
        open_s, open_cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
        held, count = private_bytes() - before, len(logs.logs)
        began = time.perf_counter()
    close_s = time.perf_counter() - began
    print(json.dumps(Opened(open_s, open_cpu_s, close_s, count, held)._asdict()))


if __name__ == "__main__":
    main()
