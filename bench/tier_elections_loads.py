"""A broker that has lost its disk in a cluster of topics that are tiered and also local: its rejoin, its leadership.

    broker 1: leads, has everything locally       broker 2: follows, too
    broker 3: is wiped; the first after broker 1 in the assignment

With `follower.fetch.last.tiered.offset.enable` (KIP-1023) broker 3 copies only what is not tiered. If broker
1 stops then, broker 3 is elected, and consumers of older records are served from the remote tier; with
`leader.election.prefer.early.local.log.start.offset` (draft KIP-1303) broker 2 is.
"""

import time
from typing import Final

from ottla.bench.figures import KAFKA, OTTLA, LoadFailed, Sample, percentiles
from ottla.bench.targets.clusters import Cluster
from ottla.bench.targets.tiering_clusters import (
    LEADER,
    TieredTopic,
    cluster_on_minio,
    configure_brokers,
    poll_until,
)
from ottla.bench.targets.wiped_broker import filled, rejoined, stop
from ottla.bench.targets.wire import RequestFailed, WireClient
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.records.batch import batches

_SKIPS_TIERED: Final = "follower.fetch.last.tiered.offset.enable"
_PREFERS_LOCAL: Final = "leader.election.prefer.early.local.log.start.offset"
_THRESHOLD: Final = "leader.election.local.log.start.offset.threshold"
#: The configuration of a topic that is tiered, and local for as long as records are kept.
_BOTH_TIERS: Final = {"remote.storage.enable": "true"}
_COMPLETE_FOLLOWER: Final = 2
_WIPED: Final = 3
#: The bytes of `large`; less at scales below 1.
_LARGEST_BYTES: Final = 16e9
_SIZES: Final = {"small": 1 / 16, "middle": 1 / 4, "large": 1.0}
#: The bytes that consumers read after a fail-over, at scale 1.
_BACKLOG_BYTES: Final = 500e6
_FETCH_BYTES: Final = 1 << 20
_LOG_START_OFFSET: Final = 1
#: Leaders collect what they report to the controller for a second.
_REPORTED_AFTER_S: Final = 5.0

#: The figures of all sizes but `small`, by the cluster's folder.
_larger: dict[str, Sample] = {}


def measure_larger(cluster: Cluster, scale: float) -> None:
    """Measure the larger sizes once, since the copies take minutes.

    Not `large` of Kafka, which takes more than all the rest.
    """
    sample: Sample = {}
    for name, share in _SIZES.items():
        if name != "small" and (name, cluster.name) != ("large", KAFKA):
            sample |= _both_ways(cluster, name, _LARGEST_BYTES * min(1.0, scale) * share)
    _larger[str(cluster.folder)] = sample


def rejoin(cluster: Cluster, scale: float) -> Sample:
    """Measure seconds and bytes of a rejoin with KIP-1023 and without."""
    small = _both_ways(cluster, "small", _LARGEST_BYTES * min(1.0, scale) * _SIZES["small"])
    sample = {**small, **_larger[str(cluster.folder)]}
    if "large_s" in sample:
        sample["growth"] = sample["large_s"] / sample["small_s"]
    return sample


def _both_ways(cluster: Cluster, name: str, size_bytes: float) -> Sample:
    _skip_tiered(cluster, is_on=False)
    topics = filled(cluster, {name: size_bytes}, _WIPED, configs=_BOTH_TIERS)
    topic = topics[name]
    _without_first_record(topic)
    plain_s = rejoined(cluster, _WIPED, topics)[name]
    plain_bytes = topic.local_bytes(_WIPED)
    stop(cluster, _WIPED, topics)
    _skip_tiered(cluster, is_on=True)
    took_s = rejoined(cluster, _WIPED, topics)[name]
    moved_bytes = topic.local_bytes(_WIPED)
    topic.delete()
    return {
        f"{name}_plain_s": plain_s,
        f"{name}_s": took_s,
        f"{name}_plain_bytes": plain_bytes,
        f"{name}_bytes": moved_bytes,
        f"{name}_speed_up": plain_s / took_s,
    }


def _without_first_record(topic: TieredTopic) -> None:
    """Wait until all is copied, and delete the first record.

    An empty follower begins at offset 0. Only if that is not in the leader's local log, KIP-1023 changes anything.
    """
    topic.wait_until_copied()
    topic.delete_records(_LOG_START_OFFSET)


def fail_over(cluster: Cluster, scale: float) -> Sample:
    """Consume the whole log after the leader has stopped, without the preference and, with Ottla, with it."""
    return {
        **_after_fail_over(cluster, scale, prefers_local=False),
        **({} if cluster.name == KAFKA else _after_fail_over(cluster, scale, prefers_local=True)),
    }


def fail_over_on_minio(cluster: Cluster, scale: float) -> Sample:
    """Measure the fail-over with MinIO as the store. Nothing for Kafka, which has no such store."""
    if cluster.name != OTTLA:
        return {}
    with cluster_on_minio(cluster.folder, brokers=3) as (other, _):
        return fail_over(other, scale)


def _after_fail_over(cluster: Cluster, scale: float, *, prefers_local: bool) -> Sample:
    _skip_tiered(cluster, is_on=True)
    if cluster.name != KAFKA:
        # A batch here is one record of a megabyte: a threshold of 10,000 would be all of the log.
        configure_brokers(cluster, {_PREFERS_LOCAL: str(prefers_local).lower(), _THRESHOLD: "10"})
    topics = filled(
        cluster,
        {"fail-over": _BACKLOG_BYTES * scale},
        _WIPED,
        others=[_COMPLETE_FOLLOWER],
        configs=_BOTH_TIERS,
    )
    topic = topics["fail-over"]
    _without_first_record(topic)
    rejoined(cluster, _WIPED, topics)
    if prefers_local:
        time.sleep(_REPORTED_AFTER_S)
    cluster.stop_node(LEADER)
    leader = _wait_for_leader(cluster, topic)
    if leader != (_COMPLETE_FOLLOWER if prefers_local else _WIPED):
        raise LoadFailed(f"{cluster.name}: broker {leader} leads {topic.name}, {prefers_local=}")
    name = "local" if prefers_local else "plain"
    sample = {f"{name}_{metric}": value for metric, value in _consume(topic, leader).items()}
    cluster.spawn(LEADER)
    cluster.wait_until_answering(LEADER)
    with cluster.client() as client:
        client.wait_for_isr(topic.name, partitions=1, size=len(topic.replicas))
    topic.delete()
    return sample


def _skip_tiered(cluster: Cluster, *, is_on: bool) -> None:
    """Set KIP-1023's configuration in the file of the broker that is wiped, for its next start.

    As a dynamic one Kafka's broker would know it too late: it begins to follow before it applies configurations.
    """
    path = cluster.node(_WIPED).properties_file
    lines = [line for line in path.read_text().splitlines() if not line.startswith(_SKIPS_TIERED)]
    path.write_text("\n".join([*lines, f"{_SKIPS_TIERED}={str(is_on).lower()}"]) + "\n")


def _wait_for_leader(cluster: Cluster, topic: TieredTopic) -> int:
    """Return the next leader, once it serves."""
    with cluster.client() as client:

        def is_led() -> bool:
            if client.leader(topic.name) in (-1, LEADER):
                return False
            try:
                topic.local_log_start_offset(client.leader(topic.name))
            except RequestFailed:
                return False
            return True

        poll_until(is_led, f"the next leader of {topic.name}")
        return client.leader(topic.name)


def _consume(topic: TieredTopic, leader: int) -> Sample:
    """Read from the log start to the end, one Fetch at a time; return the seconds of each that returns records."""
    local_start = topic.local_log_start_offset(leader)
    offset, size_bytes, remote_count = _LOG_START_OFFSET, 0, 0
    took: list[float] = []
    with topic.cluster.client() as cluster_client:
        end = cluster_client.record_count(topic.name)  # the high watermark
    with WireClient(topic.cluster.node(leader).port) as client:
        began = asked_at = time.perf_counter()
        while offset < end:
            records = memoryview(_fetch(client, topic.name, offset))
            if not records:
                continue
            now = time.perf_counter()
            took.append(now - asked_at)
            remote_count += offset < local_start
            for header, batch in batches(records):
                offset = header.next_offset
                size_bytes += len(batch)
            asked_at = time.perf_counter()
    took_s = time.perf_counter() - began
    found = percentiles(took)
    return {
        "p50_s": found["p50_s"],
        "p99_s": found["p99_s"],
        "max_s": max(took),
        "bytes_per_s": size_bytes / took_s,
        "remote_reads": remote_count,
    }


def _fetch(client: WireClient, topic: str, offset: int) -> bytes | memoryview:
    """Return the records of one Fetch; none if the broker waits for them still. Raises RequestFailed."""
    row = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES)
    request = FetchRequest(
        topics=[FetchTopic(topic=topic, partitions=[row])],
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=_FETCH_BYTES,
    )
    found = client.request(ApiKey.FETCH, request, FetchResponse).responses[0].partitions[0]
    if found.error_code:
        raise RequestFailed(f"{topic} at {offset}: {ErrorCode(found.error_code).name}")
    return found.records or b""
