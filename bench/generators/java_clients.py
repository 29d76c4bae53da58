"""Kafka's own performance tools, by their main classes."""

import re
import subprocess
from typing import Final, NamedTuple

from ottla.bench.components import fetch

#: The JVM's options in kafka-producer-perf-test.sh and kafka-consumer-perf-test.sh.
_FLAGS: Final = ("-Xmx512M", "-XX:+UseG1GC", "-Xshare:auto")
_RESULT = re.compile(
    r"(?P<count>\d+) (?:steady state )?records sent, (?P<per_s>[\d.]+) records/sec \((?P<mb_s>[\d.]+) MB/sec\), "
    r"(?P<avg>[\d.]+) ms avg latency, (?P<max>[\d.]+) ms max latency, (?P<p50>\d+) ms 50th, \d+ ms 95th, "
    r"(?P<p99>\d+) ms 99th"
)
_MEBIBYTE: Final = 1 << 20


class ToolFailed(Exception):
    """A tool ended with an error, or printed no result."""


class Produced(NamedTuple):
    """The figures that ProducerPerformance prints of its run."""

    bytes_per_s: float
    mean_s: float
    p50_s: float
    p99_s: float


def _run(main_class: str, *arguments: str) -> str:
    command = [fetch.java(), *_FLAGS, "-cp", f"{fetch.kafka_jars()}/*", main_class, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    if done.returncode:
        raise ToolFailed(f"{main_class}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def produce(
    bootstrap: str,
    topic: str,
    *,
    record_bytes: int,
    count: int,
    settings: dict[str, str],
    warm_up_count: int = 0,
    rate: float | None = None,
) -> Produced:
    """Run kafka-producer-perf-test as fast as it can, or at `rate` records per second.

    The first `warm_up_count` records are sent, but not measured.
    """
    output = _run(
        "org.apache.kafka.tools.ProducerPerformance",
        *(
            "--bootstrap-server",
            bootstrap,
            "--topic",
            topic,
            "--throughput",
            "-1" if rate is None else f"{rate:g}",
        ),
        *("--record-size", str(record_bytes), "--num-records", str(warm_up_count + count)),
        *(("--warmup-records", str(warm_up_count)) if warm_up_count else ()),
        *("--command-property", *(f"{key}={value}" for key, value in settings.items())),
    )
    results = [match for match in _RESULT.finditer(output) if int(match["count"]) == count]
    if not results:
        raise ToolFailed(output)
    result = results[-1]
    return Produced(
        bytes_per_s=float(result["mb_s"]) * _MEBIBYTE,
        mean_s=float(result["avg"]) / 1000,
        p50_s=int(result["p50"]) / 1000,
        p99_s=int(result["p99"]) / 1000,
    )


def consume(bootstrap: str, topic: str, *, count: int) -> float:
    """Run kafka-consumer-perf-test; return the bytes per second of its fetching, without joining the group."""
    output = _run(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(count), "--hide-header"),
        *("--reporting-interval", "1000000"),
    )
    # start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, fetch records/s
    fields = [field.strip() for field in output.strip().splitlines()[-1].split(",")]
    if len(fields) != 10 or int(float(fields[4])) < count:
        raise ToolFailed(output)
    return float(fields[8]) * _MEBIBYTE
