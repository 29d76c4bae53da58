"""A data folder goes from Kafka to Ottla and back: clients of either see the same.

Records of every codec, with headers and without keys, several segments, aborted and undecided transactions, a
compacted log, offsets by timestamp, ends of epochs and committed offsets: see `tests.compat.views`.
"""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.storage.files import Files
from ottla.storage.verify import inspect
from tests.compat.admin import PATIENCE_S, take, wait_until
from tests.compat.clients import CODECS
from tests.compat.test_storage_files import dump
from tests.compat.views import View, differences, view
from tests.harness.kafka import KafkaServer
from tests.harness.ottla import OttlaServer

NOW_MS = 1_700_000_000_000
SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "100",
    "log.initial.task.delay.ms": "100",
    "log.flush.offset.checkpoint.interval.ms": "200",
    # The records are years old: retention would take them, whenever it comes.
    "log.retention.ms": "-1",
    # So long Kafka takes a broker that was killed to be up, and does not let another one register.
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
}
SMALL = {"segment.bytes": "1048576", "index.interval.bytes": "500"}
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "plain": (2, SMALL),
    "codecs": (1, SMALL),
    "append-time": (1, {**SMALL, "message.timestamp.type": "LogAppendTime"}),
    "compacted": (
        1,
        {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    ),
    "transactional": (1, SMALL),
    "empty": (1, {}),
}
PARTITIONS = {topic: count for topic, (count, _) in TOPICS.items()}
GROUPS = ("readers", "committers")


def create_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = [NewTopic(topic, count, 1, config=config) for topic, (count, config) in TOPICS.items()]
    for future in admin.create_topics(new).values():
        future.result(PATIENCE_S)

    def have_leaders() -> bool:
        found = admin.list_topics(timeout=PATIENCE_S).topics
        return all(
            topic in found and sum(it.leader >= 0 for it in found[topic].partitions.values()) == count
            for topic, count in PARTITIONS.items()
        )

    wait_until(have_leaders)


def produce(bootstrap: str, *, codec: str, seed: int) -> None:
    """About a segment for each log: keys and values of all kinds, timestamps that go back and forth."""
    random = Random(seed)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": True,
         "batch.num.messages": 10, "linger.ms": 5}
    )  # fmt: skip

    def send(topic: str, value: bytes | None, key: bytes | None, **more: Any) -> None:
        timestamp = NOW_MS + seed * 10_000 + random.randrange(10_000)
        producer.produce(topic, value, key, partition=more.pop("partition", 0), timestamp=timestamp, **more)

    for number in range(500):
        value = random.randbytes(800) * 2  # can be compressed by all
        send("plain", value, b"%d" % number, partition=number % 2)
        send("plain", value, None, partition=(number + 1) % 2)
        send(
            "codecs",
            None if number % 50 == 0 else value,
            None if number % 3 == 0 else b"k%d" % number,
            headers=[("h", b"\x00\xff"), ("h", None), ("\u00e9", b"")] if number % 2 else None,
        )
        send("append-time", value, b"k")
        # Every key comes again; some end with a tombstone.
        send("compacted", None if number % 97 == 0 else value + value, b"%d" % (number % 200))
        if number % 50 == 0:
            assert producer.flush(PATIENCE_S) == 0
    assert producer.flush(PATIENCE_S) == 0


def transact(bootstrap: str) -> None:
    """Interleaved transactions of two producers, every third one aborted; the last one stays undecided."""
    one, two = (
        Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0,
             "transaction.timeout.ms": 900_000}
        )
        for name in ("one", "two")
    )  # fmt: skip
    for producer in (one, two):
        producer.init_transactions(PATIENCE_S)
    for number in range(12):
        for producer in (one, two):
            producer.begin_transaction()
        for _ in range(6):
            for producer in (one, two):
                producer.produce("transactional", b"%d" % number + b"v" * 10_000, key=b"k")
                assert producer.flush(PATIENCE_S) == 0
        for producer in (one, two) if number % 2 else (two, one):
            if number % 3 == 0:
                producer.abort_transaction(PATIENCE_S)
            else:
                producer.commit_transaction(PATIENCE_S)
    for producer, value in ((one, b"undecided"), (two, b"behind it")):
        producer.begin_transaction()
        producer.produce("transactional", value)
        assert producer.flush(PATIENCE_S) == 0
    two.commit_transaction(PATIENCE_S)


def read_on(bootstrap: str, count: int) -> list[tuple[int, int]]:
    """The next records of the group, committed; their partitions and offsets."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest",
         "enable.auto.commit": False}
    )  # fmt: skip
    consumer.subscribe(["plain"])
    taken = [(message.partition(), message.offset()) for message in take(consumer, count)]
    consumer.commit(asynchronous=False)
    consumer.close()
    return taken


def commit(bootstrap: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "committers"})
    at = TopicPartition("codecs", 0, offset, f"m\u00e9ta {offset}")
    consumer.commit(offsets=[at], asynchronous=False)
    consumer.close()


def wait_for_compaction(server: KafkaServer | OttlaServer) -> None:
    """Wait until all but the active segment is clean and the checkpoint says so, since then nothing changes
    any more."""
    checkpoint = server.data_dir / "cleaner-offset-checkpoint"

    def is_clean() -> bool:
        newest = max(int(path.stem) for path in (server.data_dir / "compacted-0").glob("*.log"))
        return newest > 0 and checkpoint.exists() and f"compacted 0 {newest}\n" in checkpoint.read_text()

    server.child.wait_until(is_clean)


def end(server: KafkaServer | OttlaServer, *, is_killed: bool) -> None:
    if is_killed:
        server.kill()
    else:
        assert server.stop() in (0, 143)


def assert_same(seen: View, expected: View) -> None:
    assert not (changes := list(differences(seen, expected))), "\n".join(changes)


def assert_sound(folder: Path) -> None:
    report = inspect(folder, Files(), is_deep=True)
    assert [str(finding) for finding in report.findings if finding.is_error] == []


@pytest.mark.parametrize("killed", ["kafka", "ottla"])
def test_from_kafka_to_ottla_and_back(tmp_path: Path, killed: str):
    """One of them is killed, the other one stopped."""
    kafka = KafkaServer(tmp_path / "kafka", settings=SETTINGS).start()
    create_topics(kafka.bootstrap)
    for seed, codec in enumerate(CODECS):
        produce(kafka.bootstrap, codec=codec, seed=seed)
    transact(kafka.bootstrap)
    first = read_on(kafka.bootstrap, 1000)
    commit(kafka.bootstrap, 17)
    wait_for_compaction(kafka)
    kafkas = view(kafka.port, PARTITIONS, GROUPS)
    end(kafka, is_killed=killed == "kafka")
    assert_worth_it(kafkas, kafka.data_dir)

    ottla = OttlaServer(tmp_path / "ottla", settings=SETTINGS, data_dir=kafka.data_dir).start()
    assert_same(view(ottla.port, PARTITIONS, GROUPS), kafkas)
    second = read_on(ottla.bootstrap, 1000)
    commit(ottla.bootstrap, 18)
    produce(ottla.bootstrap, codec="zstd", seed=5)
    wait_for_compaction(ottla)
    ours = view(ottla.port, PARTITIONS, GROUPS)
    end(ottla, is_killed=killed == "ottla")

    kafka.start()
    assert_same(view(kafka.port, PARTITIONS, GROUPS), ours)
    third = read_on(kafka.bootstrap, 4000)
    kafka.stop()
    read = first + second + third
    assert len(set(read)) == len(read) == 6000
    assert_sound(kafka.data_dir)


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_from_ottla_to_kafka(tmp_path: Path, is_killed: bool):
    ottla = OttlaServer(tmp_path / "ottla", settings=SETTINGS).start()
    create_topics(ottla.bootstrap)
    for seed, codec in enumerate(CODECS):
        produce(ottla.bootstrap, codec=codec, seed=seed)
    first = read_on(ottla.bootstrap, 1000)
    commit(ottla.bootstrap, 17)
    wait_for_compaction(ottla)
    ours = view(ottla.port, PARTITIONS, GROUPS)
    end(ottla, is_killed=is_killed)
    if not is_killed:
        logs = [ottla.data_dir / f"{topic}-0" for topic in TOPICS]
        assert dump(*logs, options=("--deep-iteration",)).count("isvalid: true") > 200
        dump(*logs, options=("--index-sanity-check",))

    kafka = KafkaServer(tmp_path / "kafka", settings=SETTINGS, data_dir=ottla.data_dir).start()
    assert_same(view(kafka.port, PARTITIONS, GROUPS), ours)
    second = read_on(kafka.bootstrap, 4000)
    kafka.stop()
    assert len({*first, *second}) == 5000
    assert_sound(ottla.data_dir)


def assert_worth_it(seen: View, folder: Path) -> None:
    """The view holds what the test is about."""
    for topic in ("plain", "codecs", "append-time", "compacted", "transactional"):
        assert len(list((folder / f"{topic}-0").glob("*.log"))) > 1, topic
    codecs = {batch.header.compression for batch in seen.stored["codecs", 0]}
    assert len(codecs) == len(CODECS)
    assert len(seen.aborted["transactional", 0]) == 8
    all_of_it = [record for batch in seen.stored["transactional", 0] for record in batch.records]
    assert len(seen.committed["transactional", 0]) == 96  # of 144, and nothing from the undecided one on
    assert len(all_of_it) == 144 + 24 + 3
    (latest, stable) = (seen.offsets["transactional", 0][-1, isolation].offset for isolation in (0, 1))
    assert stable < latest
    kept = [record.offset for batch in seen.stored["compacted", 0] for record in batch.records]
    assert len(kept) < kept[-1]
    offset, _, metadata = seen.groups["committers"]["codecs", 0]
    assert offset == 17
    assert metadata is not None
    assert metadata.startswith("m\u00e9ta 17")  # confluent-kafka adds a NUL
