"""Starting on what a crash left: the same folder, copied, for Kafka and for Ottla in turn."""

import shutil
import time
from pathlib import Path
from typing import Final

from ottla.bench.figures import SECONDS, Figure, Goal, Sample
from ottla.bench.internals import storage_open
from ottla.bench.internals.command import Cases
from ottla.bench.internals.storage_support import append, batch_of, scratch
from ottla.bench.targets.servers import Kafka, Ottla, Server
from ottla.bench.targets.wire import RequestFailed, WireClient
from ottla.config.log_config import LogConfig
from ottla.protocol.types import TopicPartition
from ottla.storage.checkpoints import RECOVERY_POINT_FILE
from ottla.storage.manager.log_directory import CLEAN_SHUTDOWN_FILE

_TOPIC: Final = "recovered"
_PARTITION: Final = TopicPartition(_TOPIC, 0)
_LOG_BYTES: Final = 1_000_000_000
_KIB: Final = 1024
_BATCH_SIZES: Final = {"16 KB batches": 16 * _KIB, "1 KB batches": _KIB}
_PATIENCE_S: Final = 120
_KINDS: Final[dict[str, type[Server]]] = {"kafka": Kafka, "ottla": Ottla}


def recovery(folder: Path, *, runs: int, scale: float) -> Cases:
    """Measure the recovery of one partition of a gigabyte in one segment.

    None of it is known to be flushed, and no index is trusted.
    """
    samples: dict[str, dict[str, list[Sample]]] = {}
    size_bytes = int(_LOG_BYTES * scale)
    for name, batch_bytes in _BATCH_SIZES.items():
        with scratch(folder / "recovery") as at:
            template, count = _folder(at, size_bytes, batch_bytes)
            servers = [kind(at / kind.name) for kind in _KINDS.values()]
            for server in servers:
                shutil.copytree(template, server.data_dir())
            found = samples.setdefault(name, {server.name: [] for server in servers})
            for run in range(runs):
                for server in servers if run % 2 == 0 else reversed(servers):
                    found[server.name].append(_start_twice(server, count))
    return Cases(
        name="recovery",
        title="Recovery of an unclean log",
        note=(
            f"One partition of {size_bytes / 1e6:,.0f} MB in one segment, without recovery point, whose "
            "every batch is checked, CRC included, and indexed again; files in the page cache. 'Served' is "
            "from the process's start to the first answer with the log's end: after a clean stop, and "
            "after a crash; the difference is the recovery. 'Alone' is our storage without a broker."
        ),
        figures=(
            Figure(metric="clean_s", title="served after a clean stop", unit=SECONDS),
            Figure(metric="unclean_s", title="served after a crash", unit=SECONDS),
            Figure(metric="recovery_s", title="difference", unit=SECONDS),
            Figure(metric="alone_s", title="alone", unit=SECONDS),
        ),
        samples=samples,
        goals={
            (case, metric): Goal(at_most=1.0) for case in samples for metric in ("unclean_s", "recovery_s")
        },
    )


def _folder(folder: Path, size_bytes: int, batch_bytes: int) -> tuple[Path, int]:
    """Make a data folder that was left cleanly; return it with the number of records in its one log."""
    server = Ottla(folder / "template")
    try:
        server.start()
        with server.client() as client:
            client.create_topic(_TOPIC, partitions=1, replication_factor=1)
        server.stop()
    finally:
        server.kill()
    data = server.data_dir()
    batch, count = batch_of(batch_bytes)
    times = size_bytes // len(batch)
    with storage_open.opened(data, LogConfig()) as logs:
        log = logs.get(_PARTITION)
        assert log is not None
        append(log, batch, times)
    return data, count * times


def _make_unclean(data: Path) -> None:
    """Make the folder unclean, as after a crash: nothing is known to be flushed, and no index is there."""
    (data / CLEAN_SHUTDOWN_FILE).unlink()
    (data / RECOVERY_POINT_FILE).unlink()
    for path in (data / str(_PARTITION)).glob("*index"):
        path.unlink()


def _start_twice(server: Server, count: int) -> Sample:
    """Start the server on its folder as it was left, and as after a crash; it is left cleanly then."""
    data = server.data_dir()
    found = {"clean_s": _start(server, count)}
    if isinstance(server, Ottla):
        _make_unclean(data)
        found["alone_s"] = storage_open.in_a_process(data).open_s
    _make_unclean(data)
    found["unclean_s"] = _start(server, count)
    return {**found, "recovery_s": found["unclean_s"] - found["clean_s"]}


def _start(server: Server, count: int) -> float:
    """Return the seconds until the log's end is answered."""
    try:
        began = time.perf_counter()
        server.start()
        _wait_for_end(server.port, count)
        served_s = time.perf_counter() - began
        server.stop()
    finally:
        server.kill()
    return served_s


def _wait_for_end(port: int, count: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with WireClient(port) as client:
                found = client.record_count(_TOPIC, partitions=1)
            break
        except RequestFailed:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if found != count:
        raise RuntimeError(f"{found} of {count} records were recovered")
