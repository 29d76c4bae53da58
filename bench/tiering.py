"""A consumer catches up from the remote tier, beside what a plain client of the store and a local consumer can do.

    python -m ottla.bench.tiering [--settings default,tuned] [--places disk,tmpfs] [--disk DIR] [--tmpfs DIR] ...

KIP-405's test case 2 with three brokers of each side; the other test cases are workloads of `ottla bench`.
Prints tables and writes them, with every sample, to bench/results/. bench/PROGRAMS.md says how to read them.
"""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from ottla.bench.figures import (
    GIGABYTE,
    MEGABYTES_A_SECOND,
    OTTLA,
    SECONDS,
    SECONDS_A_GIGABYTE,
    TIMES,
    Figure,
    Goal,
    LoadFailed,
    Sample,
    bulk_sample,
)
from ottla.bench.generators import librdkafka
from ottla.bench.harness import Measure, Program
from ottla.bench.loads import CONSUMER_SETTINGS, at_rate
from ottla.bench.program import main
from ottla.bench.replication_loads import RECORD_BYTES, produce
from ottla.bench.targets.clusters import Cluster
from ottla.bench.targets.settings import DISK
from ottla.bench.targets.store_clients import DirectoryClient, StoreClient
from ottla.bench.targets.tiering_clusters import (
    TIER_PROPERTIES,
    TIERED,
    TIERED_CLUSTERS,
    TieredTopic,
    cluster_on_minio,
    poll_until,
    tiered_topic,
)

_OF_A_PLAIN_CLIENT: Final = Goal(at_least=0.8, is_absolute=True)
_CPU: Final = "CPU of all brokers"
#: The goal for memory: 80 MB, as of an untiered broker, and 64 MiB of chunks that consumers read from the
#: remote tier.
_MEMORY_BYTES: Final = 150e6
#: The megabytes of the backlog, at scale 1, and the segments' size.
_MEGABYTES: Final = 600
_SEGMENT_BYTES: Final = 32 << 20
_NOT_YET_TIERED: Final = {"segment.bytes": str(_SEGMENT_BYTES)}
_COPIED: Final = {"remote.storage.enable": "true"}
_FIRST_RECORD_POLL_S: Final = 0.001


def _catch_up_from_directory(cluster: Cluster, scale: float) -> Sample:
    """Copy a backlog to the shared directory, then consume it from there; also read it without a broker."""
    store = DirectoryClient(Path(cluster.settings["rsm.config.dir"]))
    return _there_and_back(cluster, store, megabytes=_MEGABYTES * scale)


def _catch_up_from_minio(cluster: Cluster, scale: float) -> Sample:
    """Measure the catch-up with a MinIO server and a broker of its own. Nothing for Kafka, which has no such store."""
    if cluster.name != OTTLA:
        return {}
    with cluster_on_minio(cluster.folder) as (one, bucket):
        return _there_and_back(one, bucket, megabytes=_MEGABYTES * scale)


def _there_and_back(cluster: Cluster, store: StoreClient, *, megabytes: float) -> Sample:
    # Two segments at least: the active one is not copied.
    count = max(int(megabytes * 1e6), 2 * _SEGMENT_BYTES) // RECORD_BYTES
    with tiered_topic(cluster, "backlog", _NOT_YET_TIERED) as topic:
        produce(cluster, topic.name, count=count)
        topic.check(count)
        local = _consume(topic, count, store)
        closed = topic.segments()[:-1]
        size_bytes = sum(path.stat().st_size for path in closed)
        plain_put_s = store.put_s(closed)
        put_s, put_cpu_s = _copied(topic, store)
        both_s = _both_at_once(topic, count, store)
        topic.alter(TIERED)
        topic.wait_until_tail_is_local()
        plain_get_s, found_bytes = store.get_s(topic.name)
        if found_bytes != size_bytes:
            raise LoadFailed(
                f"{cluster.name}: {found_bytes} of {size_bytes} bytes of {topic.name} were copied"
            )
        # As with local segments: a broker that has just started takes half as long again for its first pass.
        first_pass = _consume(topic, count, store)
        remote = _consume(topic, count, store)
    plain_get, plain_put = found_bytes / plain_get_s, size_bytes / plain_put_s
    return {
        "upload_bytes_per_s": size_bytes / put_s,
        "upload_cpu_s_per_gb": put_cpu_s / (size_bytes / GIGABYTE),
        "plain_put_bytes_per_s": plain_put,
        "upload_share": size_bytes / put_s / plain_put,
        **remote,
        "first_s": first_pass["first_s"],
        "plain_get_bytes_per_s": plain_get,
        "local_bytes_per_s": local["bytes_per_s"],
        "both_bytes_per_s": size_bytes / both_s,
        "share": remote["bytes_per_s"] / min(plain_get, local["bytes_per_s"]),
        "share_of_both": remote["bytes_per_s"] / (size_bytes / both_s),
        "local_first_s": local["first_s"],
    }


def _copied(topic: TieredTopic, store: StoreClient) -> tuple[float, float]:
    """Switch tiering on: from the first object until the last segment is copied: (seconds, CPU seconds)."""
    before = topic.cluster.usage()
    topic.alter(_COPIED)
    began = poll_until(lambda: store.has_any_of(topic.name), f"a first object of {topic.name}")
    ended = topic.wait_until_copied()
    return ended - began, topic.cluster.usage().cpu_s - before.cpu_s


def _consumer(topic: TieredTopic) -> librdkafka.Consumer:
    return librdkafka.Consumer({"bootstrap.servers": topic.cluster.bootstrap, **CONSUMER_SETTINGS})


def _consume(topic: TieredTopic, count: int, store: StoreClient) -> Sample:
    """Consume all records with librdkafka; the rate is that from the first one on."""
    size_bytes = count * RECORD_BYTES
    with _consumer(topic) as consumer:
        before, began = topic.cluster.usage(), time.perf_counter()
        own_s, store_s = time.process_time(), store.cpu_s()
        consumer.consume(topic.name, partitions=range(1), count=count)
        ended = time.perf_counter()
        own_s, store_s = time.process_time() - own_s, store.cpu_s() - store_s
        cpu_s = topic.cluster.usage().cpu_s - before.cpu_s
    return {
        "first_s": consumer.first_at - began,
        "consumer_cpu_s_per_gb": own_s / (size_bytes / GIGABYTE),
        "store_cpu_s_per_gb": store_s / (size_bytes / GIGABYTE),
        **bulk_sample(cpu_s=cpu_s, took_s=ended - consumer.first_at, size_bytes=size_bytes),
    }


def _both_at_once(topic: TieredTopic, count: int, store: StoreClient) -> float:
    """Read the store by the plain client while the consumer reads local segments; return the seconds of both.

    Nothing is handed from the one to the other, and nothing is verified: no broker on this machine can be faster.
    """
    with _consumer(topic) as consumer, ThreadPoolExecutor(1) as threads:
        consuming = threads.submit(consumer.consume, topic.name, partitions=range(1), count=count)
        while not consumer.first_at and not consuming.done():
            time.sleep(_FIRST_RECORD_POLL_S)
        store.get_s(topic.name)
        consuming.result()
        return time.perf_counter() - consumer.first_at


_UPLOAD: Final = (
    Figure(metric="upload_bytes_per_s", title="upload", unit=MEGABYTES_A_SECOND),
    Figure(metric="upload_cpu_s_per_gb", title=f"upload: {_CPU}", unit=SECONDS_A_GIGABYTE),
    Figure(metric="plain_put_bytes_per_s", title="a plain client's put", unit=MEGABYTES_A_SECOND),
    Figure(metric="upload_share", title="upload / put", unit=TIMES, goal=_OF_A_PLAIN_CLIENT),
)
_RATE: Final = Figure(metric="bytes_per_s", title="catch-up", unit=MEGABYTES_A_SECOND)
_CATCH_UP: Final = (
    Figure(metric="cpu_s_per_gb", title=f"catch-up: {_CPU}", unit=SECONDS_A_GIGABYTE),
    Figure(metric="consumer_cpu_s_per_gb", title="catch-up: CPU of the consumer", unit=SECONDS_A_GIGABYTE),
    Figure(metric="store_cpu_s_per_gb", title="catch-up: CPU of the store", unit=SECONDS_A_GIGABYTE),
    Figure(metric="plain_get_bytes_per_s", title="a plain client's get", unit=MEGABYTES_A_SECOND),
    Figure(
        metric="local_bytes_per_s", title="the same consumer, from local segments", unit=MEGABYTES_A_SECOND
    ),
    Figure(metric="share", title="catch-up / the slower of both", unit=TIMES, goal=_OF_A_PLAIN_CLIENT),
    Figure(metric="both_bytes_per_s", title="both at once, without a remote read", unit=MEGABYTES_A_SECOND),
    Figure(metric="share_of_both", title="catch-up / both at once", unit=TIMES),
    Figure(metric="first_s", title="until the first record", unit=SECONDS),
    Figure(metric="local_first_s", title="the same, from local segments", unit=SECONDS),
)

MEASURES: Final[tuple[Measure[Cluster], ...]] = (
    Measure(
        name="catch-up",
        title="2: a consumer catches up, from a directory",
        note="A backlog of closed segments is copied as soon as tiering is switched on, then removed "
        "locally, then read by librdkafka from offset 0. Rates from the first record on. The plain client "
        "copies and flushes, or reads, the same files one after the other; a store cannot deliver more "
        "than that, nor a consumer take more than from local segments. Both at once: the plain client "
        "reads the store while the consumer reads local segments, the most that the processors of this "
        "machine allow.",
        figures=(*_UPLOAD, replace(_RATE, goal=Goal(at_least=1.0)), *_CATCH_UP),
        run=_catch_up_from_directory,
    ),
    Measure(
        name="catch-up-minio",
        title="2: a consumer catches up, from MinIO",
        note="The same with one broker and a MinIO server on this machine; boto3 is the plain client. "
        "Kafka has no such store.",
        figures=(*_UPLOAD, _RATE, *_CATCH_UP),
        run=_catch_up_from_minio,
    ),
)


def warm_up_round(cluster: Cluster, scale: float) -> Mapping[str, float]:
    """Copy to the remote tier and read back, and append small batches; return the CPU of each."""
    there_and_back = _catch_up_from_directory(cluster, scale)
    return {
        "catch-up": there_and_back["cpu_s_per_gb"],
        "upload": there_and_back["upload_cpu_s_per_gb"],
        "at-rate": at_rate(cluster, per_s=1000, duration_s=scale)["cpu_s_per_request"],
    }


PROGRAM: Final[Program[Cluster]] = Program(
    name="tiering",
    description=(__doc__ or "").split("\n")[0],
    subjects=TIERED_CLUSTERS,
    measures=MEASURES,
    warm_up_round=warm_up_round,
    seconds=2.0,
    settings=("default",),
    places=(DISK,),
    properties=TIER_PROPERTIES,
    memory_goal_bytes=_MEMORY_BYTES,
    headlines=(
        ("catch-up", "bytes_per_s"),
        ("catch-up", "upload_share"),
        ("catch-up-minio", "share"),
        ("catch-up-minio", "upload_share"),
    ),
)


if __name__ == "__main__":
    main(None, PROGRAM)
