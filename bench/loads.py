"""The loads on one broker: their work, their volume, their figures and goals.

Every load runs against one server at a time. Topics are new for each produce; consumers read topics that `prepare`
filled. Volumes are for scale 1, about a second of Kafka's time.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count as numbers
from typing import Any, Final
from uuid import UUID

from ottla.bench.figures import (
    GIGABYTE,
    MICROSECONDS,
    Figure,
    Goal,
    Goals,
    LoadFailed,
    Sample,
    bulk_figures,
    bulk_sample,
    latency_figures,
    partition_words,
    percentiles,
    request_figures,
)
from ottla.bench.generators import java_clients, librdkafka, paced
from ottla.bench.harness import Measure
from ottla.bench.targets.cluster_client import ClusterClient
from ottla.bench.targets.clusters import Cluster
from ottla.bench.targets.servers import Server, Usage
from ottla.bench.targets.wire import (
    API_VERSIONS_REQUEST,
    TOPIC_ID_VERSIONS,
    WireClient,
    produce_frame,
    produce_message,
    request_frame,
)
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages import response_class
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.produce import ProduceResponse
from ottla.protocol.schema import Request

_KIB: Final = 1024
#: Defaults, but for the local queue: a full one stops fetching for `fetch.queue.backoff.ms`, a second by default,
#: and then it would be that second which is measured.
CONSUMER_SETTINGS: Final = {
    "queued.min.messages": "1000000",
    "queued.max.messages.kbytes": "262144",
    "fetch.queue.backoff.ms": "2",
}
#: The least cost of sending mapped segments, 1 KB records, on the machine where the goals were set.
_CONSUME_FLOOR_S_PER_GB: Final = 0.36

#: Percentiles need more requests than throughput: paced loads take so many times as long.
_PACED_S: Final = 2.0
#: The duration of loads of which only the median has a goal.
_ASKED_S: Final = 0.5

_topic_numbers = numbers(1)


def _size_words(record_bytes: int) -> str:
    return "1 KB" if record_bytes == _KIB else f"{record_bytes} B"


def _cpu_s(subject: Server | Cluster, before: Usage) -> float:
    return subject.usage().cpu_s - before.cpu_s


class LoadTopic:
    """A topic of one load, with connections to ask about it."""

    def __init__(
        self, subject: Server | Cluster, client: ClusterClient, name: str, *, partitions: int
    ) -> None:
        """Create the topic, and wait until it is served."""
        self.name = name
        self.client = client
        self._subject = subject
        client.create_topic(name, partitions=partitions, replication_factor=subject.replication_factor)

    def leader_port(self) -> int:
        """Return the port of the broker that leads the first partition."""
        return self._subject.addresses()[self.client.leader(self.name)].port

    def check(self, count: int) -> None:
        """Raise LoadFailed unless so many records are committed."""
        check_count(self._subject, self.client, self.name, count)


def check_count(subject: Server | Cluster, client: ClusterClient, name: str, count: int) -> None:
    """Raise LoadFailed unless so many records of a topic are committed."""
    found = client.record_count(name)
    if found != count:
        raise LoadFailed(f"{subject.name}: {found} of {count} records are in {name}")


@contextmanager
def new_topic(subject: Server | Cluster, load: str, *, partitions: int) -> Iterator[LoadTopic]:
    """Make a topic for one load, deleted behind it."""
    with subject.client() as client:
        topic = LoadTopic(subject, client, f"{load}-{next(_topic_numbers)}", partitions=partitions)
        yield topic
    # A broker may have been restarted since: that client's connection to it is gone.
    with subject.client() as client:
        client.delete_topic(topic.name)


def librdkafka_produce(*, record_bytes: int, partitions: int, acks: str, megabytes: int) -> Measure[Server]:
    """Produce by librdkafka with its defaults: batches of up to 1 MB."""
    name = f"rdkafka-produce-{record_bytes}b-{partitions}p-acks-{acks}"

    def run(server: Server, scale: float) -> Sample:
        count = int(megabytes * 1e6 * scale) // record_bytes
        settings = {"bootstrap.servers": server.bootstrap, "acks": acks}
        with new_topic(server, name, partitions=partitions) as topic:
            with librdkafka.Producer(settings) as producer:
                before, began = server.usage(), time.perf_counter()
                producer.produce(topic.name, payload=b"x" * record_bytes, count=count)
                took_s = time.perf_counter() - began
                sample = bulk_sample(
                    cpu_s=_cpu_s(server, before), took_s=took_s, size_bytes=count * record_bytes
                )
                if (round_trips := producer.round_trips_s()) is not None:
                    sample["p50_s"], sample["p99_s"] = round_trips
            topic.check(count)
        return sample

    size = _size_words(record_bytes)
    return Measure(
        name=name,
        title=f"librdkafka produce, {size}, {partition_words(partitions)}, acks={acks}",
        figures=[
            *bulk_figures(Goals(throughput=1.1 if record_bytes < _KIB else 1.3, cpu=0.6)),
            *latency_figures(None),
        ],
        run=run,
        written_bytes=megabytes * 1e6,
        # With acks=1 it is the same; with 100 B records it is the client's.
        has_floor=record_bytes == _KIB and acks == "all",
        is_profiled=record_bytes == _KIB and acks == "all",
    )


def java_produce(*, record_bytes: int, partitions: int, megabytes: int) -> Measure[Server]:
    """Produce by kafka-producer-perf-test with its defaults: 16 KB batches, acks=all, idempotent."""
    name = f"java-produce-{record_bytes}b-{partitions}p"

    def run(server: Server, scale: float) -> Sample:
        count = int(megabytes * 1e6 * scale) // record_bytes
        with new_topic(server, name, partitions=partitions) as topic:
            before = server.usage()
            result = java_clients.produce(
                server.bootstrap, topic.name, record_bytes=record_bytes, count=count, settings={"acks": "all"}
            )
            cpu_s = _cpu_s(server, before)
            topic.check(count)
        return {
            "bytes_per_s": result.bytes_per_s,
            "cpu_s_per_gb": cpu_s / (count * record_bytes / GIGABYTE),
            "p50_s": result.p50_s,
            "p99_s": result.p99_s,
        }

    return Measure(
        name=name,
        title=f"Java perf-test produce, {_size_words(record_bytes)}, {partition_words(partitions)}",
        figures=[
            *bulk_figures(Goals(throughput=1.1 if record_bytes < _KIB else 1.3, cpu=0.5)),
            *latency_figures(None),
        ],
        run=run,
        written_bytes=megabytes * 1e6,
        # Of several partitions this client sends several batches in a request, which the floor does not take.
        has_floor=record_bytes == _KIB and partitions == 1,
    )


def _filling(
    topic_name: str, *, record_bytes: int, partitions: int, megabytes: int
) -> Callable[[Server, float], None]:
    def prepare(server: Server, scale: float) -> None:
        count = int(megabytes * 1e6 * scale) // record_bytes
        with server.client() as client:
            topic = LoadTopic(server, client, topic_name, partitions=partitions)
            with librdkafka.Producer({"bootstrap.servers": server.bootstrap}) as producer:
                producer.produce(topic_name, payload=b"x" * record_bytes, count=count)
            topic.check(count)

    return prepare


def _consume_figures(partitions: int) -> list[Figure]:
    return bulk_figures(
        Goals(throughput=1.1 if partitions == 1 else 1.0),
        cpu_goal=Goal(at_most=_CONSUME_FLOOR_S_PER_GB, is_absolute=True),
    )


def librdkafka_consume(*, record_bytes: int, partitions: int, megabytes: int) -> Measure[Server]:
    """Consume whole partitions from the page cache by librdkafka."""
    name = f"rdkafka-consume-{record_bytes}b-{partitions}p"

    def run(server: Server, scale: float) -> Sample:
        count = int(megabytes * 1e6 * scale) // record_bytes
        settings = {"bootstrap.servers": server.bootstrap, **CONSUMER_SETTINGS}
        with librdkafka.Consumer(settings) as consumer:
            before, began = server.usage(), time.perf_counter()
            count = consumer.consume(name, partitions=range(partitions), count=count)
            took_s = time.perf_counter() - began
            cpu_s = _cpu_s(server, before)
        return bulk_sample(cpu_s=cpu_s, took_s=took_s, size_bytes=count * record_bytes)

    return Measure(
        name=name,
        title=f"librdkafka consume, {_size_words(record_bytes)}, {partition_words(partitions)}",
        figures=_consume_figures(partitions),
        run=run,
        prepare=_filling(name, record_bytes=record_bytes, partitions=partitions, megabytes=megabytes),
        prepared_bytes=megabytes * 1e6,
    )


def java_consume(*, partitions: int, megabytes: int) -> Measure[Server]:
    """Consume by kafka-consumer-perf-test, in a group."""
    name = f"java-consume-1024b-{partitions}p"

    def run(server: Server, scale: float) -> Sample:
        count = int(megabytes * 1e6 * scale) // _KIB
        before = server.usage()
        bytes_per_s = java_clients.consume(server.bootstrap, name, count=count)
        cpu_s = _cpu_s(server, before)
        return {"bytes_per_s": bytes_per_s, "cpu_s_per_gb": cpu_s / (count * _KIB / GIGABYTE)}

    return Measure(
        name=name,
        title=f"Java perf-test consume, 1 KB, {partition_words(partitions)}",
        figures=_consume_figures(partitions),
        run=run,
        prepare=_filling(name, record_bytes=_KIB, partitions=partitions, megabytes=megabytes),
        prepared_bytes=megabytes * 1e6,
    )


def one_at_a_time(subject: Server | Cluster, *, duration_s: float) -> Sample:
    """Measure round trips: a batch of 1 KB is sent after each response."""
    with new_topic(subject, "one-at-a-time", partitions=1) as topic:
        frame = produce_frame(topic.name, batch_bytes=_KIB)
        port = topic.leader_port()
        before = subject.usage()
        took = paced.one_at_a_time(port, frame, duration_s=duration_s)
        cpu_s = _cpu_s(subject, before)
        topic.check(len(took) + 1)
    return _one_at_a_time_sample(took, cpu_s)


def _one_at_a_time_sample(took: Sequence[float], cpu_s: float) -> Sample:
    sample = {"requests_per_s": len(took) / sum(took), "cpu_s_per_request": cpu_s / len(took)}
    return sample | percentiles(took)


def at_rate(subject: Server | Cluster, *, per_s: int, duration_s: float) -> Sample:
    """Measure a batch of 1 KB, so many times a second, by the clock, whether or not earlier ones are answered."""
    with new_topic(subject, "at-rate", partitions=1) as topic:
        frame = produce_frame(topic.name, batch_bytes=_KIB)
        port = topic.leader_port()
        before = subject.usage()
        took = paced.at_rate(port, frame, per_s=per_s, duration_s=duration_s)
        cpu_s = _cpu_s(subject, before)
        topic.check(len(took) + 1)
    return {"cpu_s_per_request": cpu_s / len(took)} | percentiles(took)


def asked_one_at_a_time(
    api_key: ApiKey,
    title: str,
    message: Callable[[LoadTopic], Request],
    is_right: Callable[[Any], bool],
    *,
    versions: Mapping[ApiKey, int] | None = None,
) -> Measure[Server]:
    """Measure the same request about a topic of one record, answered, then once more.

    `versions` are those of WireClient.
    """
    version = None if versions is None else versions[api_key]
    name = api_key.name.lower().replace("_", "-") + ("" if version is None else f"-v{version}")

    def run(server: Server, scale: float) -> Sample:
        with new_topic(server, name, partitions=1) as topic:
            request = message(topic)
            with WireClient(server.port, versions=versions or {}) as client:
                client.request(ApiKey.PRODUCE, produce_message(topic.name, batch_bytes=_KIB), ProduceResponse)
                answer = client.request(api_key, request, response_class(api_key))
            if not is_right(answer):
                raise LoadFailed(f"{server.name}: {answer}")
            before = server.usage()
            took = paced.one_at_a_time(
                server.port, request_frame(api_key, request, version=version), duration_s=_ASKED_S * scale
            )
            cpu_s = _cpu_s(server, before)
            topic.check(1)
        return _one_at_a_time_sample(took, cpu_s)

    return Measure(
        name=f"{name}-one-at-a-time",
        title=f"{title}, one at a time",
        figures=[*request_figures(Goals()), *latency_figures(None, p50=Goal(at_most=0.8), unit=MICROSECONDS)],
        run=run,
        has_floor=True,
    )


def pipelined(goals: Goals, *, batch_bytes: int, connections: int, depth: int) -> Measure[Server]:
    """Measure small requests, several under way on each connection."""
    name = f"pipelined-{batch_bytes}b"

    def run(server: Server, scale: float) -> Sample:
        with new_topic(server, name, partitions=1) as topic:
            frame = produce_frame(topic.name, batch_bytes=batch_bytes)
            before, began = server.usage(), time.perf_counter()
            count = paced.pipelined(
                server.port, frame, connections=connections, depth=depth, duration_s=scale
            )
            took_s = time.perf_counter() - began
            cpu_s = _cpu_s(server, before)
        return {"requests_per_s": count / took_s, "cpu_s_per_request": cpu_s / count}

    return Measure(
        name=name,
        title=f"{batch_bytes:,} B batches, {connections} connections, {depth} under way on each",
        figures=request_figures(goals),
        run=run,
        has_floor=True,
        is_profiled=True,
    )


def _topic_id(topic: LoadTopic) -> UUID:
    """Return the topic's id, by which current clients name it."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic.name)])
    with WireClient(topic.leader_port(), versions=TOPIC_ID_VERSIONS) as client:
        return client.request(ApiKey.METADATA, request, MetadataResponse).topics[0].topic_id


def _fetch_request(topic: FetchTopic) -> FetchRequest:
    topic.partitions = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
    return FetchRequest(max_wait_ms=500, min_bytes=1, topics=[topic])


def _is_one_record(answer: FetchResponse) -> bool:
    row = answer.responses[0].partitions[0]
    return not row.error_code and len(row.records or b"") == _KIB


_ASKED: Final = (
    asked_one_at_a_time(
        ApiKey.API_VERSIONS,
        "ApiVersions",
        lambda _: API_VERSIONS_REQUEST,
        lambda answer: not answer.error_code,
    ),
    asked_one_at_a_time(
        ApiKey.METADATA,
        "Metadata of one topic",
        lambda topic: MetadataRequest(topics=[MetadataRequestTopic(name=topic.name)]),
        lambda answer: len(answer.topics[0].partitions) == 1,
    ),
    asked_one_at_a_time(
        ApiKey.FETCH,
        "Fetch of one record of 1 KB, topic by name (v12)",
        lambda topic: _fetch_request(FetchTopic(topic=topic.name)),
        _is_one_record,
    ),
    asked_one_at_a_time(
        ApiKey.FETCH,
        "Fetch of one record of 1 KB, topic by id (v16)",
        lambda topic: _fetch_request(FetchTopic(topic_id=_topic_id(topic))),
        _is_one_record,
        versions=TOPIC_ID_VERSIONS,
    ),
)
_ONE_AT_A_TIME: Final[Measure[Server]] = Measure(
    name="one-at-a-time",
    title="one request at a time, 1 KB batch, acks=all",
    figures=[*request_figures(Goals(throughput=1.5, cpu=0.5)), *latency_figures(0.6)],
    run=lambda server, scale: one_at_a_time(server, duration_s=_PACED_S * scale),
    has_floor=True,
    is_profiled=True,
)
_AT_RATE: Final[Measure[Server]] = Measure(
    name="at-rate",
    title="1,000 requests/s, 1 KB batch, acks=all",
    figures=[*request_figures(Goals(cpu=0.5))[1:], *latency_figures(0.6)],
    run=lambda server, scale: at_rate(server, per_s=1000, duration_s=_PACED_S * scale),
    has_floor=True,
)
_SMALL: Final = pipelined(Goals(throughput=4, cpu=0.2), batch_bytes=200, connections=4, depth=32)
_MEDIUM: Final = pipelined(Goals(throughput=1.5, cpu=0.45), batch_bytes=16_384, connections=4, depth=4)

LOADS: Final[tuple[Measure[Server], ...]] = (
    *(
        librdkafka_produce(record_bytes=size, partitions=partitions, acks=acks, megabytes=megabytes)
        for size, megabytes in ((_KIB, 400), (100, 200))
        for partitions in (1, 6)
        for acks in ("1", "all")
    ),
    *(
        java_produce(record_bytes=size, partitions=partitions, megabytes=megabytes)
        for size, megabytes in ((_KIB, 80), (100, 25))
        for partitions in (1, 6)
    ),
    *(
        librdkafka_consume(record_bytes=size, partitions=partitions, megabytes=megabytes)
        for size, megabytes in ((_KIB, 700), (100, 200))
        for partitions in (1, 6)
    ),
    *(java_consume(partitions=partitions, megabytes=250) for partitions in (1, 6)),
    *_ASKED,
    _ONE_AT_A_TIME,
    _AT_RATE,
    _SMALL,
    _MEDIUM,
)

_BULK: Final = librdkafka_produce(record_bytes=_KIB, partitions=6, acks="all", megabytes=400)


def warm_up_round(server: Server, scale: float) -> Mapping[str, float]:
    """Run each kind of request, since each warms its own code; return the CPU of each."""
    loads = (_BULK, _SMALL, _MEDIUM, _ONE_AT_A_TIME, *_ASKED)
    samples = {load.name: load.run(server, scale) for load in loads}
    return {
        name: sample[next(key for key in sample if key.startswith("cpu_s_"))]
        for name, sample in samples.items()
    }
