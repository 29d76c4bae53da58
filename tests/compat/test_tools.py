"""Our tools on a folder that Kafka wrote: nothing is wrong in it, every record has a meaning, and Kafka's own
tool counts the same.
"""

import json
import re
import shutil
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.bench.components.processes import PATIENCE_S
from ottla.command_line import main
from ottla.config.log_config import LogConfig
from ottla.storage.files import Files
from ottla.storage.manager.log_manager import LogManager
from ottla.storage.verify import inspect
from tests.compat.admin import take
from tests.harness.kafka import KafkaServer, run_tool

NOW_MS = 1_700_000_000_000
SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "100",
    "log.initial.task.delay.ms": "100",
    # The records are years old: retention would take them, whenever it comes.
    "log.retention.ms": "-1",
}
TOPICS = {
    "plain": {"segment.bytes": "1048576", "index.interval.bytes": "500"},
    "compacted": {
        "segment.bytes": "1048576",
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
    },
    "transactional": {"segment.bytes": "1048576", "index.interval.bytes": "500"},
}
_BATCH = re.compile(
    r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) .*?producerId: (-?\d+) "
    r".*?partitionLeaderEpoch: (-?\d+) .*?position: (\d+) .*?size: (\d+) .*?crc: (\d+) isvalid: (\w+)"
)
_RECORD = re.compile(r"^\| offset: (\d+) ")


def work(bootstrap: str) -> None:
    """Records, transactions of all ends, a classic group and a group of the new protocol."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    created = admin.create_topics([NewTopic(name, 1, 1, config=config) for name, config in TOPICS.items()])
    for future in created.values():
        future.result(PATIENCE_S)
    random = Random(5)
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 20, "linger.ms": 5})
    for number in range(30_000):
        value = random.randbytes(60).hex().encode()
        producer.produce("plain", value, key=b"%d" % number, timestamp=NOW_MS + random.randrange(10**6))
        producer.produce("compacted", value, key=b"%d" % (number % 700))
        if number % 500 == 0:
            producer.flush(PATIENCE_S)
    assert producer.flush(PATIENCE_S) == 0
    transact(bootstrap)
    for group, options in {"classic": {}, "modern": {"group.protocol": "consumer"}}.items():
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
             "enable.auto.commit": False, **options}
        )  # fmt: skip
        consumer.subscribe(["plain"])
        (message,) = take(consumer, 1)
        consumer.commit(message, asynchronous=False)
        consumer.close()


def transact(bootstrap: str) -> None:
    """Interleaved transactions of two producers, every third one aborted; the last one stays open."""
    producers = [
        Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "linger.ms": 0,
                "transaction.timeout.ms": 900_000,
            }
        )
        for name in ("one", "two")
    ]
    for producer in producers:
        producer.init_transactions(PATIENCE_S)
    for number in range(30):
        for producer in producers:
            producer.begin_transaction()
        for _ in range(20):
            for producer in producers:
                producer.produce("transactional", b"v" * 600, key=b"k")
                producer.flush(PATIENCE_S)
        for producer in producers if number % 2 else reversed(producers):
            if number % 3 == 0:
                producer.abort_transaction(PATIENCE_S)
            else:
                producer.commit_transaction(PATIENCE_S)
    producers[0].begin_transaction()
    producers[0].produce("transactional", b"open")
    assert producers[0].flush(PATIENCE_S) == 0


@pytest.fixture(scope="module")
def kafka_folder(tmp_path_factory) -> Path:
    server = KafkaServer(tmp_path_factory.mktemp("kafka"), settings=SETTINGS).start()
    work(server.bootstrap)
    cleaner = server.data_dir / "cleaner-offset-checkpoint"
    server.child.wait_until(lambda: "compacted 0 " in cleaner.read_text(), interval_s=0.1)
    server.stop()
    return server.data_dir


def dumped(*paths: Path, options: tuple[str, ...] = ()) -> list[dict]:
    done = CliRunner().invoke(main, ["dump-log", "--json", *options, *map(str, paths)])
    rows = [json.loads(line) for line in done.output.splitlines()]
    assert done.exit_code == 0, [row for row in rows if row["kind"] == "problem"] or done.output[-2000:]
    return rows


def test_nothing_is_wrong_in_a_folder_that_kafka_wrote(kafka_folder):
    report = inspect(kafka_folder, Files(), is_deep=True)
    assert [str(finding) for finding in report.findings if finding.is_error] == []
    names = {part.directory.name for part in report.partitions}
    assert {"__cluster_metadata-0", "plain-0", "__consumer_offsets-0", "__transaction_state-0"} <= names
    plain = next(part for part in report.partitions if part.directory.name == "plain-0")
    assert plain.end_offset == 30_000
    assert plain.segments_count > 2


def test_nothing_is_wrong_after_kafka_was_killed_and_we_recovered(tmp_path):
    """Our own recovery leaves a sound folder of Kafka's unclean one."""
    kafka = KafkaServer(tmp_path / "kafka", settings=SETTINGS).start()
    work(kafka.bootstrap)
    kafka.kill()
    manager = LogManager.open(
        [kafka.data_dir],
        files=Files(),
        cluster_id=None,
        node_id=1,
        directory_id=lambda: UUID(int=1),
        random=Random(1),
        now_ms=NOW_MS,
        default_config=LogConfig(),
    )
    assert not manager.was_clean
    manager.shutdown(NOW_MS, broker_epoch=5)
    report = inspect(kafka.data_dir, Files())
    assert [str(finding) for finding in report.findings if finding.is_error] == []


def test_every_record_of_kafkas_own_topics_is_decoded(kafka_folder):
    types: set[str] = set()
    for folder in kafka_folder.glob("__*"):
        logs = [path for path in folder.iterdir() if path.suffix in (".log", ".checkpoint")]
        for row in dumped(*logs, options=("--print-data",)):
            assert row["kind"] in ("file", "batch", "record", "control", "note"), row
            assert "not_known" not in row, row
            if row["kind"] == "record":
                types.add((row["value"] or row["key"])["type"])
            elif row["kind"] == "control":
                types.add(row["type"])
    assert types >= {
        "LEADER_CHANGE", "TopicRecord", "PartitionRecord", "RegisterBrokerRecord", "FeatureLevelRecord",
        "OffsetCommitValue", "GroupMetadataValue", "TransactionLogValue",
        "ConsumerGroupMetadataValue", "ConsumerGroupMemberMetadataValue",
        "ConsumerGroupTargetAssignmentMemberValue", "ConsumerGroupCurrentMemberAssignmentValue",
    }  # fmt: skip


def test_kafkas_tool_counts_the_same(kafka_folder):
    folders = ["plain-0", "compacted-0", "transactional-0", "__cluster_metadata-0"]
    paths = [path for name in folders for path in sorted((kafka_folder / name).glob("*.log"))]
    done = run_tool("kafka-dump-log", "--deep-iteration", "--files", ",".join(map(str, paths)))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    theirs = [match.groups() for line in lines if (match := _BATCH.match(line))]
    their_records = [int(match[1]) for line in lines if (match := _RECORD.match(line))]
    rows = dumped(*paths, options=("--print-data",))
    fields = ("base_offset", "last_offset", "records_count", "base_sequence", "producer_id",
              "partition_leader_epoch", "position", "size_bytes", "crc")  # fmt: skip
    ours = [
        (*(str(row[field]) for field in fields), json.dumps(row["crc_is_valid"]))
        for row in rows
        if row["kind"] == "batch"
    ]
    assert len(ours) > 1000
    assert ours == theirs
    assert [row["offset"] for row in rows if row["kind"] in ("record", "control")] == their_records


def test_all_other_files_are_shown(kafka_folder):
    """Indexes are held against the logs; none of the rows is a problem (see `dumped`)."""
    names = ("plain-0", "transactional-0", "compacted-0", "__cluster_metadata-0")
    paths = [
        path for name in names for path in (kafka_folder / name).iterdir() if path.name != "quorum-state"
    ]
    paths += list(kafka_folder.glob("*-checkpoint"))
    paths += [kafka_folder / "meta.properties", kafka_folder / "bootstrap.checkpoint"]
    rows = dumped(*paths)
    kinds = {row["kind"] for row in rows}
    assert kinds >= {
        "file",
        "batch",
        "entry",
        "aborted",
        "producer",
        "epoch",
        "checkpoint",
        "topic",
        "folder",
    }
    assert sum(row["kind"] == "aborted" for row in rows) == 20


def test_two_replicas_are_compared(kafka_folder, tmp_path):
    other = shutil.copytree(kafka_folder, tmp_path / "other")
    assert CliRunner().invoke(main, ["verify-log", str(kafka_folder), "--compare", str(other)]).exit_code == 0
    log = sorted((other / "plain-0").glob("*.log"))[1]
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    done = CliRunner().invoke(main, ["verify-log", str(kafka_folder), "--compare", str(other)])
    assert done.exit_code == 1
    assert log.name in done.output
