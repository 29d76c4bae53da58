"""The loads: what one does to a broker, how much of it, and what is measured.

Every load runs against one server at a time and returns a sample: metric name -> value in base units
(bytes, seconds, requests). Topics are new for each produce; consumers read topics that `prepare` filled.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from bench import java_clients, librdkafka, paced
from bench.servers import Server, Usage
from bench.wire import WireClient, produce_frame

Sample = dict[str, float]

GIGABYTE: Final = 1e9
#: Defaults, but for the local queue: a full one stops fetching for `fetch.queue.backoff.ms`, a second by default,
#: and then it would be that second which is measured.
CONSUMER_SETTINGS: Final = {
    "queued.min.messages": "1000000",
    "queued.max.messages.kbytes": "262144",
    "fetch.queue.backoff.ms": "2",
}


class LoadFailed(Exception):
    """A load ended, but not with what it should have done to the broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """Ratios Ottla / Kafka that performance wants; None where it wants none."""

    throughput: float | None = None
    p99: float | None = None
    cpu: float | None = 0.45


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One row of the table."""

    name: str
    title: str
    goals: Goals
    #: (server, scale) -> sample. Scale 1 is a full run's volume.
    run: Callable[[Server, float], Sample]
    #: Fills what `run` reads, once for each server.
    prepare: Callable[[Server, float], None] | None = None


def percentiles(seconds: list[float]) -> Sample:
    """Three of them, as metrics."""
    cuts = statistics.quantiles(seconds, n=1000, method="inclusive")
    return {"p50_s": cuts[499], "p99_s": cuts[989], "p999_s": cuts[998]}


def _cpu_s(server: Server, before: Usage) -> float:
    return server.usage().cpu_s - before.cpu_s


class _Topic:
    """A topic for one load; checks that all of it arrived, and deletes it."""

    _count = 0

    def __init__(self, server: Server, load: str, *, partitions: int) -> None:
        _Topic._count += 1
        self.name = f"{load}-{_Topic._count}"
        self._server = server
        self._partitions = partitions
        with WireClient(server.port) as client:
            client.create_topic(self.name, partitions=partitions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with WireClient(self._server.port) as client:
            client.delete_topic(self.name)

    def check(self, count: int) -> None:
        with WireClient(self._server.port) as client:
            found = client.record_count(self.name, partitions=self._partitions)
        if found != count:
            raise LoadFailed(f"{self._server.name}: {found} of {count} records are in {self.name}")


def _size_name(record_bytes: int) -> str:
    return "1 KB" if record_bytes == 1024 else f"{record_bytes} B"


def librdkafka_produce(*, record_bytes: int, partitions: int, acks: str, megabytes: int) -> Load:
    """Librdkafka with its defaults: batches of up to 1 MB."""
    name = f"rdkafka-produce-{record_bytes}b-{partitions}p-acks-{acks}"

    def run(server: Server, scale: float) -> Sample:
        count = int(megabytes * 1e6 * scale) // record_bytes
        settings = {"bootstrap.servers": server.bootstrap, "acks": acks}
        with _Topic(server, name, partitions=partitions) as topic:
            with librdkafka.Producer(settings) as producer:
                before, began = server.usage(), time.perf_counter()
                producer.produce(topic.name, payload=b"x" * record_bytes, count=count)
                took_s = time.perf_counter() - began
                sample = _bulk_sample(server, before, took_s, count * record_bytes)
                if (round_trips := producer.round_trips_s()) is not None:
                    sample["p50_s"], sample["p99_s"] = round_trips
            topic.check(count)
        return sample

    return Load(
        name=name,
        title=f"librdkafka produce, {_size_name(record_bytes)}, {_partitions(partitions)}, acks={acks}",
        goals=Goals(throughput=1.1 if record_bytes < 1024 else 1.3),
        run=run,
    )


def _bulk_sample(server: Server, before: Usage, took_s: float, size_bytes: int) -> Sample:
    return {
        "bytes_per_s": size_bytes / took_s,
        "cpu_s_per_gb": _cpu_s(server, before) / (size_bytes / GIGABYTE),
    }


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"


def java_produce(*, record_bytes: int, partitions: int, acks: str, megabytes: int) -> Load:
    """kafka-producer-perf-test with its defaults: 16 KB batches, idempotent if acks=all."""
    name = f"java-produce-{record_bytes}b-{partitions}p-acks-{acks}"

    def run(server: Server, scale: float) -> Sample:
        count = int(megabytes * 1e6 * scale) // record_bytes
        with _Topic(server, name, partitions=partitions) as topic:
            before = server.usage()
            result = java_clients.produce(
                server.bootstrap, topic.name, record_bytes=record_bytes, count=count, settings={"acks": acks}
            )
            cpu_s = _cpu_s(server, before)
            topic.check(count)
        return {
            "bytes_per_s": result.bytes_per_s,
            "cpu_s_per_gb": cpu_s / (count * record_bytes / GIGABYTE),
            "p50_s": result.p50_s,
            "p99_s": result.p99_s,
        }

    return Load(
        name=name,
        title=f"Java perf-test produce, {_size_name(record_bytes)}, {_partitions(partitions)}, acks={acks}",
        goals=Goals(throughput=1.1 if record_bytes < 1024 else 1.3),
        run=run,
    )


def _filling(
    topic: str, *, record_bytes: int, partitions: int, megabytes: int
) -> Callable[[Server, float], None]:
    def prepare(server: Server, scale: float) -> None:
        count = int(megabytes * 1e6 * scale) // record_bytes
        with WireClient(server.port) as client:
            client.create_topic(topic, partitions=partitions)
        with librdkafka.Producer({"bootstrap.servers": server.bootstrap}) as producer:
            producer.produce(topic, payload=b"x" * record_bytes, count=count)
        with WireClient(server.port) as client:
            found = client.record_count(topic, partitions=partitions)
        if found != count:
            raise LoadFailed(f"{server.name}: {found} of {count} records are in {topic}")

    return prepare


def librdkafka_consume(*, record_bytes: int, partitions: int, megabytes: int) -> Load:
    """Librdkafka reading whole partitions from the page cache."""
    name = f"rdkafka-consume-{record_bytes}b-{partitions}p"

    def run(server: Server, scale: float) -> Sample:
        count = int(megabytes * 1e6 * scale) // record_bytes
        settings = {"bootstrap.servers": server.bootstrap, **CONSUMER_SETTINGS}
        with librdkafka.Consumer(settings) as consumer:
            before, began = server.usage(), time.perf_counter()
            count = consumer.consume(name, partitions=range(partitions), count=count)
            took_s = time.perf_counter() - began
            return _bulk_sample(server, before, took_s, count * record_bytes)

    return Load(
        name=name,
        title=f"librdkafka consume, {_size_name(record_bytes)}, {_partitions(partitions)}",
        goals=Goals(throughput=1.3 if partitions == 1 else 1.0),
        run=run,
        prepare=_filling(name, record_bytes=record_bytes, partitions=partitions, megabytes=megabytes),
    )


def java_consume(*, partitions: int, megabytes: int) -> Load:
    """kafka-consumer-perf-test, in a group."""
    name = f"java-consume-1024b-{partitions}p"

    def run(server: Server, scale: float) -> Sample:
        count = int(megabytes * 1e6 * scale) // 1024
        before = server.usage()
        bytes_per_s = java_clients.consume(server.bootstrap, name, count=count)
        cpu_s = _cpu_s(server, before)
        return {"bytes_per_s": bytes_per_s, "cpu_s_per_gb": cpu_s / (count * 1024 / GIGABYTE)}

    return Load(
        name=name,
        title=f"Java perf-test consume, 1 KB, {_partitions(partitions)}",
        goals=Goals(throughput=1.3 if partitions == 1 else 1.0),
        run=run,
        prepare=_filling(name, record_bytes=1024, partitions=partitions, megabytes=megabytes),
    )


def one_at_a_time(*, duration_s: float) -> Load:
    """A batch of 1 KB, answered, then the next one."""

    def run(server: Server, scale: float) -> Sample:
        with _Topic(server, "one-at-a-time", partitions=1) as topic:
            frame = produce_frame(topic.name, batch_bytes=1024)
            before = server.usage()
            took = paced.one_at_a_time(server.port, frame, duration_s=duration_s * scale)
            sample = _requests_sample(server, before, len(took) / sum(took), len(took))
            topic.check(len(took) + 1)
        return sample | percentiles(took)

    return Load(
        name="one-at-a-time",
        title="one request at a time, 1 KB batch, acks=all",
        goals=Goals(throughput=1.3, p99=0.6),
        run=run,
    )


def at_rate(*, per_s: int, duration_s: float) -> Load:
    """A batch of 1 KB, so many times a second, by the clock."""

    def run(server: Server, scale: float) -> Sample:
        with _Topic(server, "at-rate", partitions=1) as topic:
            frame = produce_frame(topic.name, batch_bytes=1024)
            before = server.usage()
            took = paced.at_rate(server.port, frame, per_s=per_s, duration_s=duration_s * scale)
            sample = _requests_sample(server, before, None, len(took))
            topic.check(len(took) + 1)
        return sample | percentiles(took)

    return Load(
        name="at-rate",
        title=f"{per_s:,} requests/s, 1 KB batch, linger 0, acks=all",
        goals=Goals(p99=0.6),
        run=run,
    )


def pipelined(*, batch_bytes: int, connections: int, depth: int, duration_s: float, goal: float) -> Load:
    """Small requests, several under way on each connection."""
    name = f"pipelined-{batch_bytes}b"

    def run(server: Server, scale: float) -> Sample:
        with _Topic(server, name, partitions=1) as topic:
            frame = produce_frame(topic.name, batch_bytes=batch_bytes)
            before, began = server.usage(), time.perf_counter()
            count = paced.pipelined(
                server.port, frame, connections=connections, depth=depth, duration_s=duration_s * scale
            )
            took_s = time.perf_counter() - began
            return _requests_sample(server, before, count / took_s, count)

    return Load(
        name=name,
        title=f"{batch_bytes:,} B batches, {connections} connections, {depth} under way on each",
        goals=Goals(throughput=goal),
        run=run,
    )


def _requests_sample(server: Server, before: Usage, per_s: float | None, count: int) -> Sample:
    sample = {"cpu_s_per_request": _cpu_s(server, before) / count}
    if per_s is not None:
        sample["requests_per_s"] = per_s
    return sample


LOADS: Final[tuple[Load, ...]] = (
    *(
        librdkafka_produce(record_bytes=size, partitions=partitions, acks=acks, megabytes=megabytes)
        for size, megabytes in ((1024, 800), (100, 300))
        for partitions in (1, 6)
        for acks in ("1", "all")
    ),
    *(
        java_produce(record_bytes=size, partitions=partitions, acks=acks, megabytes=megabytes)
        for size, megabytes in ((1024, 200), (100, 60))
        for partitions in (1, 6)
        for acks in ("1", "all")
    ),
    *(
        librdkafka_consume(record_bytes=size, partitions=partitions, megabytes=megabytes)
        for size, megabytes in ((1024, 1200), (100, 300))
        for partitions in (1, 6)
    ),
    *(java_consume(partitions=partitions, megabytes=600) for partitions in (1, 6)),
    one_at_a_time(duration_s=3),
    at_rate(per_s=1000, duration_s=6),
    pipelined(batch_bytes=200, connections=4, depth=32, duration_s=2, goal=2.0),
    pipelined(batch_bytes=16384, connections=4, depth=4, duration_s=2, goal=1.3),
)

#: What each server gets first, whatever is measured then: a cold JVM takes five times the CPU.
WARM_UP: Final[tuple[Load, ...]] = (
    librdkafka_produce(record_bytes=1024, partitions=6, acks="all", megabytes=800),
    pipelined(batch_bytes=200, connections=4, depth=32, duration_s=4, goal=2.0),
    one_at_a_time(duration_s=2),
)
