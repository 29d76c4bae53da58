"""Log folders, interchanged with Apache Kafka: its dump tool reads ours, we open its, and both write the same bytes.

What clients see of them when one broker goes on from the other's folder: test_data_folders.py.
"""

import shutil
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.bench.components.processes import PATIENCE_S
from ottla.config.log_config import LogConfig
from ottla.protocol.types import TopicPartition
from ottla.storage.files import Files
from ottla.storage.log import AppendOrigin
from ottla.storage.manager.log_manager import LogManager
from tests.harness.kafka import KafkaServer, run_tool
from tests.unit.storage.storage_support import NOW_MS, batch, marker, offsets_in, open_log

CONFIG = LogConfig(segment_bytes=20_000, index_interval_bytes=500)
CHECKPOINTS = ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint")
TOPICS = {"plain": "none", "zipped": "zstd"}


def dump(*directories: Path, options: tuple[str, ...]) -> str:
    """Kafka's own reading of all files of logs; its complaints included."""
    files = [
        str(path)
        for directory in directories
        for path in sorted(directory.iterdir())
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    ]
    done = run_tool("kafka-dump-log", "--files", ",".join(files), *options)
    assert done.returncode == 0, done.stderr
    text = done.stdout + done.stderr
    for complaint in ("isvalid: false", "Mismatches", "not found", "Invalid", "Exception", "corrupt"):
        assert complaint not in text, text[-3000:]
    return text


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> Path:
    """A closed log with several segments, epochs, producers and an aborted transaction."""
    log = open_log(tmp_path_factory.mktemp("ours") / "orders-0", config=CONFIG)
    for number in range(400):
        fields = {"producer_id": number % 3, "producer_epoch": 0, "base_sequence": number // 3 * 2}
        data = batch(2, value=b"v" * 80, timestamp=NOW_MS + number * 7 % 500, is_transactional=True, **fields)
        log.append_as_leader(data, leader_epoch=number // 150, now_ms=NOW_MS)
    for producer_id in range(3):
        log.append_as_leader(
            marker(producer_id=producer_id, commit=producer_id == 1, timestamp=NOW_MS),
            leader_epoch=3,
            now_ms=NOW_MS,
            origin=AppendOrigin.COORDINATOR,
        )
    assert len(log.segments) > 3
    log.close()
    return log.directory


def test_kafka_reads_our_files(ours):
    text = dump(ours, options=("--deep-iteration",))
    assert text.count("isvalid: true") >= 403
    assert "producerId: 2 producerEpoch: 0 coordinatorEpoch: 0" in text
    assert "endTxnMarker: ABORT" in text


@pytest.mark.parametrize("option", ["--index-sanity-check", "--verify-index-only"])
def test_kafka_finds_our_indexes_right(ours, option):
    text = dump(ours, options=(option,))
    if option == "--index-sanity-check":
        assert text.count("passed sanity check") == 2 * len(list(ours.glob("*.log")))


@pytest.fixture(scope="module")
def kafkas(tmp_path_factory) -> Path:
    """The data folder of a Kafka that was stopped; two topics of small segments."""
    server = KafkaServer(tmp_path_factory.mktemp("kafka")).start()
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    # Records so old are gone as soon as Kafka thinks of retention: half a minute after its start.
    config = {"segment.bytes": "1048576", "index.interval.bytes": "500", "retention.ms": "-1"}
    created = admin.create_topics([NewTopic(name, 1, 1, config=config) for name in TOPICS])
    for future in created.values():
        future.result(PATIENCE_S)
    for name, codec in TOPICS.items():
        producer = Producer(
            {"bootstrap.servers": server.bootstrap, "compression.type": codec, "enable.idempotence": True,
             "batch.num.messages": 20, "linger.ms": 5}
        )  # fmt: skip
        random = Random(5)
        for number in range(30_000):
            value = random.randbytes(60).hex().encode()
            producer.produce(name, value, key=b"%d" % number, timestamp=NOW_MS + number // 3)
            if number % 500 == 0:
                producer.flush(PATIENCE_S)
        assert producer.flush(PATIENCE_S) == 0
    server.stop()
    return server.data_dir


@pytest.mark.parametrize("topic", TOPICS)
def test_the_same_batches_make_the_same_files(kafkas, tmp_path, topic):
    """Byte for byte: segments, both indexes, producer snapshots, epochs, partition metadata."""
    source = kafkas / f"{topic}-0"
    data = {path.name: path.read_bytes() for path in source.iterdir()}
    config = LogConfig(segment_bytes=1048576, index_interval_bytes=500)
    written = open_log(tmp_path / "copy", config=config)
    theirs = open_log(source, config=config)
    written.assign_topic_id(theirs.topic_id)
    for _, one in theirs.reader.records_since(0):
        written.append_as_follower(one, leader_epoch=theirs.latest_epoch, now_ms=NOW_MS)
    end = theirs.log_end_offset
    theirs.close_files()
    written.close()
    made = {path.name: path.read_bytes() for path in written.directory.iterdir()}
    assert end == 30_000
    assert sum(name.endswith(".log") for name in data) > 2
    assert sorted(made) == sorted(data)
    for name, content in data.items():
        assert made[name] == content, name


@pytest.mark.parametrize("is_clean", [True, False])
def test_we_open_kafkas_folder(kafkas, tmp_path, is_clean):
    """A folder that Kafka left, stopped or killed, has the same offsets and producers here, and rebuilt
    indexes are Kafka's.
    """
    folder = shutil.copytree(kafkas, tmp_path / "data")
    indexes = [path for topic in TOPICS for path in (folder / f"{topic}-0").glob("*index")]
    before = [path.read_bytes() for path in indexes]
    # The order of a checkpoint's lines is that of a hash table in Kafka.
    checkpoints = {name: sorted((folder / name).read_bytes().splitlines()) for name in CHECKPOINTS}
    mark = (folder / ".kafka_cleanshutdown").read_bytes()
    if not is_clean:
        (folder / ".kafka_cleanshutdown").unlink()
        (folder / "recovery-point-offset-checkpoint").unlink()
        for path in indexes:
            path.unlink()
    manager = LogManager.open(
        [folder],
        files=Files(),
        cluster_id=None,
        node_id=1,
        directory_id=lambda: UUID(int=1),
        random=Random(1),
        now_ms=NOW_MS,
        default_config=LogConfig(segment_bytes=1048576, index_interval_bytes=500),
    )
    assert manager.was_clean is is_clean
    assert (manager.previous_broker_epoch is not None) is is_clean
    for topic in TOPICS:
        log = manager.get(TopicPartition(topic, 0))
        assert log.log_end_offset == 30_000
        assert log.topic_id is not None
        (producer,) = log.producers.producers.values()
        assert producer.last_sequence == 29_999
        assert offsets_in(log)[0] == 0
        assert log.reader.offset_for_timestamp(NOW_MS + 5000).offset == 15_000
        assert log.reader.max_timestamp_offset()[:2] == (NOW_MS + 9999, 29_997)
    epoch = manager.previous_broker_epoch
    manager.shutdown(NOW_MS, broker_epoch=5 if epoch is None else epoch)
    assert [path.read_bytes() for path in indexes] == before
    assert {name: sorted((folder / name).read_bytes().splitlines()) for name in CHECKPOINTS} == checkpoints
    if is_clean:
        assert (folder / ".kafka_cleanshutdown").read_bytes() == mark
