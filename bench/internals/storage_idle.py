"""The cost of unused partitions: memory, and time at the start."""

import shutil
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

from ottla.bench.figures import KILOBYTES, MEGABYTES, SECONDS, Figure, Goal, Sample
from ottla.bench.internals import storage_open
from ottla.bench.internals.command import Cases, of_ottla
from ottla.bench.internals.storage_support import NOW_MS, append, batch_of, scratch
from ottla.bench.targets.servers import Ottla
from ottla.bench.targets.wire import RequestFailed, WireClient
from ottla.config.log_config import LogConfig
from ottla.protocol.types import TopicPartition

_TOPIC_PARTITIONS: Final = 1000
_MEMORY_GOAL_BYTES: Final = 30e6
_OPEN_GOAL_S: Final = 5.0
_PATIENCE_S: Final = 120
#: A broker is idle when its start is this long ago.
_SETTLE_S: Final = 2.0


def idle(folder: Path, *, runs: int, scale: float) -> Cases:
    """Measure logs of one batch each; as storage alone, and as a whole broker."""
    counts = [int(1000 * scale), int(10_000 * scale)]
    samples: dict[str, dict[str, list[Sample]]] = {}
    for count in counts:
        with scratch(folder / "idle") as at:
            data = at / "data"
            _write_logs(data, count)
            samples[f"{count:,} logs"] = of_ottla(runs, partial(_open, data))
    few, many = (f"{count:,} logs" for count in counts)
    broker = f"{counts[0]:,} partitions of a broker"
    with scratch(folder / "idle") as at:
        samples[broker] = _broker(at, counts[0], runs)
    memory = Goal(at_most=_MEMORY_GOAL_BYTES * scale, is_absolute=True)
    return Cases(
        name="idle",
        title="Idle partitions",
        note=(
            "Opening after a clean stop, and the private memory that it takes. 'Logs': storage alone, in a "
            "process of its own. 'Partitions': a whole broker, from its start to its READY line and until "
            "all of them are served; its memory is what it holds more than one without topics."
        ),
        figures=(
            Figure(metric="private_bytes", title="memory", unit=MEGABYTES),
            Figure(metric="bytes_each", title="memory of each", unit=KILOBYTES),
            Figure(metric="open_s", title="opening", unit=SECONDS),
            Figure(metric="open_cpu_s", title="opening: CPU", unit=SECONDS),
            Figure(metric="served_s", title="until all are served", unit=SECONDS),
            Figure(metric="close_s", title="closing", unit=SECONDS),
        ),
        samples=samples,
        goals={
            **dict.fromkeys([(few, "private_bytes"), (broker, "private_bytes")], memory),
            (many, "open_s"): Goal(at_most=_OPEN_GOAL_S * scale, is_absolute=True),
        },
    )


def _write_logs(data: Path, count: int) -> None:
    batch, _ = batch_of(1024)
    with storage_open.opened(data, LogConfig()) as logs:
        for number in range(count):
            partition = TopicPartition("idle", number)
            append(logs.get_or_create(partition, topic_id=UUID(int=7), now_ms=NOW_MS), batch, 1)


def _open(data: Path) -> Mapping[str, float]:
    found = storage_open.in_a_process(data)
    return {
        "open_s": found.open_s,
        "open_cpu_s": found.open_cpu_s,
        "close_s": found.close_s,
        "private_bytes": found.private_bytes,
        "bytes_each": found.private_bytes / found.logs_count,
    }


def _broker(folder: Path, count: int, runs: int) -> dict[str, list[Sample]]:
    """Measure a broker without topics, then the same one with `count` partitions, restarted after a clean stop."""
    data = folder / "data"
    empty = _started(folder, data, 0)
    _create(folder, data, count)

    def run() -> Mapping[str, float]:
        found = _started(folder, data, count)
        private_bytes = found["private_bytes"] - empty["private_bytes"]
        return {**found, "private_bytes": private_bytes, "bytes_each": private_bytes / count}

    return of_ottla(runs, run)


def _server(folder: Path, data: Path) -> Ottla:
    server = Ottla(folder / "server")
    if data.exists():
        data.rename(server.data_dir())
    return server


def _put_back(server: Ottla, data: Path) -> None:
    server.kill()
    server.data_dir().rename(data)
    shutil.rmtree(server.folder)


def _create(folder: Path, data: Path, count: int) -> None:
    server = _server(folder, data)
    try:
        server.start()
        with server.client() as client:
            for number, size in enumerate(_topics(count)):
                client.create_topic(f"idle-{number}", partitions=size, replication_factor=1)
        server.stop()
    finally:
        _put_back(server, data)


def _topics(count: int) -> list[int]:
    """Return the number of partitions of each topic."""
    return [min(_TOPIC_PARTITIONS, count - at) for at in range(0, count, _TOPIC_PARTITIONS)]


def _started(folder: Path, data: Path, count: int) -> Mapping[str, float]:
    server = _server(folder, data)
    try:
        began = time.perf_counter()
        server.start()
        opened_s = time.perf_counter() - began
        _wait_until_served(server.port, count)
        served_s = time.perf_counter() - began
        time.sleep(_SETTLE_S)
        private_bytes = server.usage().private_bytes
        began = time.perf_counter()
        server.stop()
        close_s = time.perf_counter() - began
    finally:
        _put_back(server, data)
    return {"open_s": opened_s, "served_s": served_s, "private_bytes": private_bytes, "close_s": close_s}


def _wait_until_served(port: int, count: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with WireClient(port) as client:
                for number, size in enumerate(_topics(count)):
                    client.record_count(f"idle-{number}", partitions=size)
            return
        except RequestFailed:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
