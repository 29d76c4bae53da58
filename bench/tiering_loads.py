"""KIP-405's test cases 1 and 2: produce while segments are copied to the remote tier; consume from there."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from ottla.bench import paced
from ottla.bench.figures import OTTLA, LoadFailed, Sample, percentiles
from ottla.bench.generators import librdkafka
from ottla.bench.load_figures import GIGABYTE, bulk_sample
from ottla.bench.loads import CONSUMER_SETTINGS
from ottla.bench.replication_loads import RECORD_BYTES, produce
from ottla.bench.targets.clusters import Cluster
from ottla.bench.targets.plain_store import PlainDirectory, PlainStore
from ottla.bench.targets.tiering_clusters import (
    TIERED,
    TieredTopic,
    cluster_on_minio,
    poll_until,
    tiered_topic,
)
from ottla.bench.targets.wire import produce_frame

_MIB: Final = 1 << 20
#: The duration of one phase, at scale 1: without, with, with, without tiering.
_PHASE_S: Final = 2.5
_PHASES: Final = (False, True, True, False)
#: The megabytes of catch-up, at scale 1, and the segments' size.
_MEGABYTES: Final = 600
_SEGMENT_BYTES: Final = 32 * _MIB
_MINIO_MEGABYTES: Final = 600
_NOT_YET_TIERED: Final = {"segment.bytes": str(_SEGMENT_BYTES)}
_COPIED: Final = {"remote.storage.enable": "true"}
_FIRST_RECORD_POLL_S: Final = 0.001


def store_of(cluster: Cluster) -> PlainDirectory:
    """Return the directory that the cluster's brokers share."""
    return PlainDirectory(Path(cluster.settings["rsm.config.dir"]))


def paced_produce(
    cluster: Cluster, scale: float, *, per_s: int, batch_bytes: int, segment_bytes: int
) -> Sample:
    """Send requests by the clock, with and without tiering in turn: percentiles, and with / without.

    Segments are closed in all phases. Raises LoadFailed if none was copied.
    """
    took: dict[bool, list[float]] = {False: [], True: []}
    cpu_s = {False: 0.0, True: 0.0}
    copied = 0
    for is_tiered in _PHASES:
        configs = {
            "segment.bytes": str(segment_bytes),
            "remote.storage.enable": "true" if is_tiered else "false",
        }
        with tiered_topic(cluster, "paced", configs) as topic, cluster.client() as client:
            frame = produce_frame(topic.name, batch_bytes=batch_bytes)
            before = cluster.usage()
            some = paced.at_rate(topic.port, frame, per_s=per_s, duration_s=_PHASE_S * scale)
            cpu_s[is_tiered] += cluster.usage().cpu_s - before.cpu_s
            topic.check(client, len(some) + 1)
            if is_tiered:
                copied += store_of(cluster).segment_count(topic.name)
                if not copied and len(some) * batch_bytes > 2 * segment_bytes:
                    raise LoadFailed(f"{cluster.name}: no segment of {topic.name} was copied")
                topic.wait_until_copied()
            took[is_tiered] += some
    plain, tiered = percentiles(took[False]), percentiles(took[True])
    return {
        **tiered,
        "plain_p50_s": plain["p50_s"],
        "plain_p99_s": plain["p99_s"],
        "p99_ratio": tiered["p99_s"] / plain["p99_s"],
        "cpu_s_per_request": cpu_s[True] / len(took[True]),
        "plain_cpu_s_per_request": cpu_s[False] / len(took[False]),
        "copied": copied,
    }


def catch_up_from_remote(cluster: Cluster, scale: float) -> Sample:
    """Copy a backlog to the shared directory, then consume it from there; also read it without a broker."""
    return _there_and_back(cluster, store_of(cluster), megabytes=_MEGABYTES * scale)


def catch_up_from_minio(cluster: Cluster, scale: float) -> Sample:
    """Measure the catch-up with a MinIO server and a broker of its own. Nothing for Kafka, which has no such store."""
    if cluster.name != OTTLA:
        return {}
    with cluster_on_minio(cluster.folder, brokers=1) as (one, bucket):
        return _there_and_back(one, bucket, megabytes=_MINIO_MEGABYTES * scale)


def _there_and_back(cluster: Cluster, store: PlainStore, *, megabytes: float) -> Sample:
    # Two segments at least: the active one is not copied.
    count = max(int(megabytes * 1e6), 2 * _SEGMENT_BYTES) // RECORD_BYTES
    with tiered_topic(cluster, "backlog", _NOT_YET_TIERED) as topic, cluster.client() as client:
        produce(cluster, topic.name, count=count)
        topic.check(client, count)
        local = _consume(topic, count, store)
        closed = topic.segments()[:-1]
        size_bytes = sum(path.stat().st_size for path in closed)
        plain_put_s = store.put_s(closed)
        put_s, put_cpu_s = _copied(topic, store)
        both_s = _both_at_once(topic, count, store)
        topic.alter(TIERED)
        topic.wait_until_tail_is_local()
        topic.wait_until_files_are_gone()
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


def _copied(topic: TieredTopic, store: PlainStore) -> tuple[float, float]:
    """Switch tiering on: from the first object until the last segment is copied: (seconds, CPU seconds)."""
    before = topic.cluster.usage()
    topic.alter(_COPIED)
    began = poll_until(lambda: store.has_any_of(topic.name), f"a first object of {topic.name}")
    ended = topic.wait_until_copied()
    return ended - began, topic.cluster.usage().cpu_s - before.cpu_s


def _consumer(topic: TieredTopic) -> librdkafka.Consumer:
    return librdkafka.Consumer({"bootstrap.servers": topic.cluster.bootstrap, **CONSUMER_SETTINGS})


def _consume(topic: TieredTopic, count: int, store: PlainStore) -> Sample:
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


def _both_at_once(topic: TieredTopic, count: int, store: PlainStore) -> float:
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
