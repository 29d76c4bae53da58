"""A broker whose store is behind a network that fails as a test says, and what the tests ask of both."""

import re
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import boto3
import psutil
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from ottla.bench.components.minio import ACCESS_KEY, SECRET_KEY, MinioServer
from ottla.bench.components.processes import free_port, wait_until
from ottla.remote.stores.s3 import S3Storage
from tests.compat.admin import PATIENCE_S
from tests.harness.http_proxy import FaultyProxy
from tests.harness.ottla import OttlaServer

#: The time without an answer after which a request to the store fails. A store that is only slow must not
#: exceed it: what it writes after the deletion of the copy would be left over.
REQUEST_TIMEOUT_MS = 2_500
#: Everything periodic is often, so that a test does not wait.
_SETTINGS = {
    "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
    "remote.log.manager.task.interval.ms": "200",
    "remote.log.manager.task.retry.backoff.ms": "100",
    "remote.log.manager.task.retry.backoff.max.ms": "400",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "100",
    "log.cleaner.enable": "false",
}
_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)


class BadStore:
    """A bucket of a MinIO, and the proxy before it."""

    def __init__(self, minio: MinioServer, proxy: FaultyProxy, bucket: str) -> None:
        minio.make_bucket(bucket)
        self.proxy = proxy
        self.bucket = bucket
        self.client = boto3.client(
            "s3", endpoint_url=minio.endpoint, region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
        )  # fmt: skip
        self.manager = S3Storage()
        self.manager.configure(minio.settings(bucket))

    def tier(self, scheme: str, **more: str) -> str:
        """`--tier` by this client: "s3" or "minio"."""
        parameters = {
            "endpoint": self.proxy.endpoint,
            "region": "us-east-1",
            "access.key": ACCESS_KEY,
            "secret.key": SECRET_KEY.replace(" ", "%20"),
            "part.size.bytes": str(5 << 20),
            "request.timeout.ms": str(REQUEST_TIMEOUT_MS),
            **more,
        }
        return f"{scheme}://{self.bucket}?" + "&".join(f"{key}={value}" for key, value in parameters.items())

    def segments(self, topic: str, partition: int = 0) -> list[int]:
        """The base offsets of the segments that it has, each as often as it has it."""
        return sorted(
            found.start_offset
            for found in self.manager.list_objects()
            if found.index_type is None and found.segment_id.partition.topic_partition == (topic, partition)
        )

    def leftovers(self) -> list[str]:
        """The objects of copies that are not complete."""
        objects = list(self.manager.list_objects())
        complete = {found.segment_id for found in objects if found.index_type is None}
        return [found.key for found in objects if found.segment_id not in complete]

    def uploads(self, key: str) -> list[str]:
        """The uploads in parts that are under way to this key: MinIO lists them only by the whole key."""
        found = self.client.list_multipart_uploads(Bucket=self.bucket, Prefix=key)
        return [each["UploadId"] for each in found.get("Uploads", ())]


class TieredServer:
    """A broker with this tier. Left by `with`: it is killed, if a test has not stopped it."""

    def __init__(self, folder: Path, tier: str, **settings: str) -> None:
        self._metrics_port = free_port()
        listeners = {"metrics.listeners": f"http://127.0.0.1:{self._metrics_port}"}
        self.server = OttlaServer(folder, tier=tier, settings={**_SETTINGS, **listeners, **settings})

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.server.child.is_running:
            self.server.kill()

    @property
    def bootstrap(self) -> str:
        return self.server.bootstrap

    def local_segments(self, topic: str, partition: int = 0) -> list[int]:
        """The base offsets of the segments on its disk."""
        directory = self.server.data_dir / f"{topic}-{partition}"
        return sorted(int(path.stem) for path in directory.glob("*.log"))

    def metric(self, name: str, topic: str | None = None) -> float:
        """The value of a metric, or of a topic's, 0 while it is not exposed."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        rows = [(labels, value) for found, labels, value in _SAMPLE.findall(text) if found == name]
        return sum(float(value) for labels, value in rows if topic is None or f'topic="{topic}"' in labels)

    def worker(self) -> psutil.Process:
        """The process that transfers segments."""
        found: list[psutil.Process] = []

        def is_there() -> bool:
            for child in psutil.Process(self.server.child.pid).children():
                with suppress(psutil.NoSuchProcess):  # it has ended, or is a zombie
                    if "ottla.remote.transfers.worker" in child.cmdline():
                        found.append(child)
            return bool(found)

        wait_until(is_there)
        return found[0]


class PacedProducer:
    """Produces one record after the other, each when the one before is acknowledged, and keeps how long each took."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
        self.count = 0

    def produce(self, value: bytes) -> float:
        """Seconds until it is acknowledged. Raises KafkaException."""
        errors: list[object] = []
        start_s = time.perf_counter()
        self._producer.produce(
            self._topic, value, partition=0, on_delivery=lambda error, _: error and errors.append(error)
        )
        assert self._producer.flush(PATIENCE_S) == 0
        if errors:
            raise KafkaException(errors[0])
        self.count += 1
        return time.perf_counter() - start_s

    def run(self, seconds: float, value: bytes, *, least: int = 0, pause_s: float = 0.01) -> list[float]:
        """Produce for so long, and at `least` so many; the latencies in seconds, sorted."""
        end_s = time.monotonic() + seconds
        taken: list[float] = []
        while time.monotonic() < end_s or len(taken) < least:
            taken.append(self.produce(value))
            time.sleep(pause_s)
        return sorted(taken)


class Reader:
    """A consumer of one partition that notes what it gets, records and errors."""

    def __init__(self, bootstrap: str, topic: str, partition: int = 0, offset: int = 0) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 100,
                "check.crcs": True,
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, offset)])
        self.offsets: list[int] = []
        self.values: list[bytes] = []
        self.errors: list[str] = []

    def poll(self, seconds: float) -> None:
        """Take what comes within so many seconds."""
        for message in self._consumer.consume(10_000, seconds):
            if (error := message.error()) is not None:
                self.errors.append(str(error))
            else:
                self.offsets.append(message.offset() or 0)
                self.values.append(message.value() or b"")

    def read_to(self, end_offset: int) -> None:
        """All records before this offset."""

        def is_there() -> bool:
            self.poll(0.2)
            return len(self.offsets) >= end_offset

        wait_until(is_there, detail=lambda: f"{len(self.offsets)} of {end_offset}, {self.errors[-3:]}")

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def readers(bootstrap: str, topic: str, partitions: Sequence[int]) -> Iterator[dict[int, Reader]]:
    """A consumer for each of these partitions, from offset 0 on."""
    found = {index: Reader(bootstrap, topic, index) for index in partitions}
    try:
        yield found
    finally:
        for each in found.values():
            each.close()


def quantile(sorted_values: Sequence[float], share: float) -> float:
    """The value below which this share of them lies."""
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))]
