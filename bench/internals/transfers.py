"""The cost of copies to the remote tier: produce latency while segments are copied, and the speed of one copy.

python -m ottla.bench.internals.transfers FOLDER CLASS [KEY=VALUE ...]     as: directory dir=/tmp/tier

A broker in this process serves 1,000 requests/s of 1 KB of a client in another one, while 64 MiB are copied every two
seconds: not at all, by a thread of the broker, and by its transfer process. Then ten such copies, one after
the other, by both, and, for a bucket, by boto3's put_object alone. Prints JSON; seconds, and bytes per
second.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from ottla.broker.node import Node
from ottla.config.load import load_config
from ottla.protocol.types import TopicPartition
from ottla.remote.plugins import load_storage_manager
from ottla.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from ottla.remote.storage_manager import LogSegmentData, RemoteStorageManager
from ottla.remote.stores.s3_settings import S3Settings
from ottla.remote.transfers.messages import Setup
from ottla.remote.transfers.worker_store import WORKER_MODULE, WorkerStore
from ottla.runtime import Pool
from ottla.runtime.production import ProductionRuntime, run
from ottla.storage.leader_epoch_cache import EpochEntry

_SEGMENT_BYTES: Final = 64 * 1024 * 1024
_INTERVAL_S: Final = 2.0
_PHASE_S: Final = 20.0
_ROUNDS: Final = 3
_COPIES: Final = 10

#: The program of a client in a process of its own. Prints the latencies.
_CLIENT: Final = """
import json, sys
from ottla.bench import paced
from ottla.bench.targets.wire import WireClient, produce_frame
port, topic, duration_s = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
with WireClient(port) as client:
    client.create_topic(topic, partitions=1)
paced.at_rate(port, produce_frame(topic, batch_bytes=1024), per_s=1000, duration_s=1)
print(json.dumps(paced.at_rate(port, produce_frame(topic, batch_bytes=1024), per_s=1000, duration_s=duration_s)))
"""

_numbers = count(1)


class _Segment:
    """A file as a segment, and copies of it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "segment"
        self.path.write_bytes(bytes(range(256)) * (_SEGMENT_BYTES // 256))
        small = folder / "index"
        small.write_bytes(bytes(1000))
        self.data = LogSegmentData(
            log_segment=self.path,
            offset_index=small,
            time_index=small,
            transaction_index=None,
            producer_snapshot=small,
            leader_epoch_index=b"0\n1\n0 0\n",
        )

    def copy(self, store: RemoteStorageManager) -> float:
        """Copy the segment, and delete the copy; return the seconds of the copy."""
        partition = TopicIdPartition(UUID(int=1), TopicPartition("bench", 0))
        metadata = RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(partition, UUID(int=next(_numbers))),
            start_offset=0,
            end_offset=1,
            max_timestamp_ms=0,
            broker_id=1,
            event_timestamp_ms=0,
            segment_size_bytes=_SEGMENT_BYTES,
            leader_epochs=(EpochEntry(0, 0),),
        )
        began = time.perf_counter()
        store.copy_log_segment_data(metadata, self.data)
        took_s = time.perf_counter() - began
        store.delete_log_segment_data(metadata)
        return took_s


async def _latencies(
    runtime: ProductionRuntime, port: int, store: RemoteStorageManager | None, segment: _Segment
) -> list[float]:
    """Return the latencies of produce requests while the segment is copied every two seconds."""
    copying = asyncio.ensure_future(_copy_again_and_again(runtime, store, segment))
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _CLIENT,
        str(port),
        f"t{next(_numbers)}",
        str(_PHASE_S),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await client.communicate()
    copying.cancel()
    await asyncio.wait([copying])
    found: list[float] = json.loads(output)
    return sorted(found)


async def _copy_again_and_again(
    runtime: ProductionRuntime, store: RemoteStorageManager | None, segment: _Segment
) -> None:
    while store is not None:
        await runtime.run_blocking(segment.copy, store, pool=Pool.REMOTE_COPIES)
        await asyncio.sleep(_INTERVAL_S)


def _plain_client(configs: dict[str, str], segment: _Segment) -> Callable[[], float] | None:
    """Return boto3's put_object of the same file; None for another store."""
    if "bucket" not in configs:
        return None
    import boto3

    settings = S3Settings.parse(configs)
    access_key, secret_key = settings.credentials or (None, None)
    client = boto3.client(
        "s3",
        endpoint_url=settings.endpoint,
        region_name=settings.region,
        aws_access_key_id=access_key,
        aws_secret_access_key=None if secret_key is None else secret_key.value,
    )

    def put() -> float:
        began = time.perf_counter()
        with segment.path.open("rb") as file:
            client.put_object(Bucket=settings.bucket, Key="plain", Body=file)
        return time.perf_counter() - began

    return put


async def _measure(runtime: ProductionRuntime) -> dict[str, Any]:
    folder, class_name = Path(sys.argv[1]), sys.argv[2]
    configs = dict(each.split("=", 1) for each in sys.argv[3:])
    segment = _Segment(folder)
    own = load_storage_manager(class_name, configs, creates_store=True)
    worker = runtime.worker(
        WORKER_MODULE, Setup(class_name=class_name, class_path=None, configs=configs, checks_batches=False)
    )
    result: dict[str, Any] = {}
    with closing(WorkerStore(own, worker)) as worker_store:
        stores: dict[str, RemoteStorageManager | None] = {
            "none": None,
            "thread": own,
            "process": worker_store,
        }
        await runtime.run_blocking(segment.copy, own, pool=Pool.REMOTE_COPIES)
        await runtime.run_blocking(segment.copy, worker_store, pool=Pool.REMOTE_COPIES)
        node = await Node.start(runtime, load_config(port=0, data_dir=folder / "data"))
        for _ in range(_ROUNDS):
            for name, store in stores.items():
                took = await _latencies(runtime, node.listeners[0].port, store, segment)
                row = {"p50_s": took[len(took) // 2], "p99_s": took[len(took) * 99 // 100], "max_s": took[-1]}
                result.setdefault(name, []).append(row)
        await node.stop()
        result["bytes_per_s"] = await runtime.run_blocking(
            _throughput, [("thread", lambda: segment.copy(own)), ("process", lambda: segment.copy(worker_store)),
                          ("boto3", _plain_client(configs, segment))],
            pool=Pool.REMOTE_COPIES,
        )  # fmt: skip
    return result


def _throughput(kinds: list[tuple[str, Callable[[], float] | None]]) -> dict[str, float]:
    """Return the median of ten copies of each kind, in turns."""
    took: dict[str, list[float]] = {name: [] for name, copy in kinds if copy is not None}
    for _ in range(_COPIES):
        for name, copy in kinds:
            if copy is not None:
                took[name].append(copy())
    return {name: _SEGMENT_BYTES / sorted(each)[_COPIES // 2] for name, each in took.items()}


def main() -> None:
    """Run all measurements, and print them as JSON."""
    measured: Callable[[ProductionRuntime], Coroutine[Any, Any, dict[str, Any]]] = _measure
    print(json.dumps(run(measured), indent=1))


if __name__ == "__main__":
    main()
