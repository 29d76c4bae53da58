"""`__cluster_metadata-0` read by the other side: Kafka's tools and Kafka itself on our log, we on Kafka's."""

import json
from contextlib import suppress
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from ottla.controller.metadata_log.log import MetadataLog
from ottla.controller.metadata_log.new_batches import batches_of
from ottla.controller.metadata_log.record_versions import version_of
from ottla.controller.metadata_log.snapshot_writer import records_of
from ottla.controller.metadata_log.transactions import TransactionFilter
from ottla.controller.quorum.raft_client import RaftClient
from ottla.controller.raft.types import Address, RaftSettings
from ottla.metadata.features import CONTROLLER_UNREGISTRATION_4_4_IV2
from ottla.metadata.frame import encode_record
from ottla.metadata.image import InvalidMetadata, MetadataImage
from ottla.metadata.records import (
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    UnregisterControllerRecord,
)
from ottla.protocol.local_log import LocalLogState, ReplicaLocalLog
from ottla.protocol.messages.voters_record import Voter, VotersRecord
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.runtime.production import ProductionRuntime
from ottla.storage.appending import AppendOrigin
from ottla.storage.files import Files
from ottla.storage.manager import meta_properties
from tests.compat.admin import create_topic, eventually_equal
from tests.harness.kafka import KafkaServer, tool
from tests.harness.ottla import OttlaServer
from tests.harness.release import LEVEL
from tests.unit.metadata.metadata_cases import CASES, kafka_name, to_json, versions


def dump(path: Path) -> list[str]:
    """The output of kafka-dump-log for the records of a file."""
    text = tool("kafka-dump-log", "--cluster-metadata-decoder", "--files", str(path))
    assert "isvalid: false" not in text
    return [line for line in text.splitlines() if line.startswith("|")]


def test_kafkas_tool_reads_every_record_that_we_can_write(tmp_path: Path):
    known = [
        record
        for record in CASES
        if LEVEL >= CONTROLLER_UNREGISTRATION_4_4_IV2 or not isinstance(record, UnregisterControllerRecord)
    ]
    cases = [(record, version) for record in known for version in versions(record)]
    for (record, version), line in zip(cases, dump_of(tmp_path, cases), strict=True):
        decoded = json.loads(line.partition("payload: ")[2])
        assert (decoded["type"], decoded["version"]) == (kafka_name(record), version)
        expected = to_json(record, version)
        assert decoded["data"] == expected


def dump_of(tmp_path: Path, cases: list[tuple[MetadataRecord, int]]) -> list[str]:
    """The output of kafka-dump-log for records in these versions."""
    log = MetadataLog.open(tmp_path, files=Files(), random=Random(1), now_ms=0)
    values = [(None, encode_record(record, version)) for record, version in cases]
    batch = build_batch(simple_records(values, timestamp=0))
    log._log.append_as_leader(batch, leader_epoch=1, now_ms=0, origin=AppendOrigin.RAFT_LEADER)
    directory = log.directory
    log.close()
    return dump(directory / f"{0:020d}.log")


@pytest.mark.parametrize("kind", [PartitionRecord, PartitionChangeRecord])
def test_kafkas_tool_skips_local_logs(tmp_path: Path, kind: type[PartitionRecord | PartitionChangeRecord]):
    """Local logs are a tagged field (draft KIP-1303), which Kafka's nodes do not know: no metadata.version
    has to be raised.
    """
    state = LocalLogState(
        local_log_start_offset=5, local_log_bytes=2**40, oldest_local_timestamp=1_700_000_000_000
    )
    local_logs = [ReplicaLocalLog(replica_id=replica, state=state) for replica in (1, 2)]
    cases = [
        (kind(topic_id=UUID(int=7), partition_id=3, leader=1, local_logs=logs), version)
        for version in (0, 1, 2)
        for logs in (local_logs, None)
    ]
    read = [line.partition("payload: ")[2] for line in dump_of(tmp_path, cases)]
    assert len(read) == len(cases)
    assert read[::2] == read[1::2]


def topics(server: OttlaServer | KafkaServer) -> set[str]:
    return set(tool("kafka-topics", "--bootstrap-server", server.bootstrap, "--list").split())


def create(server: OttlaServer | KafkaServer, name: str) -> None:
    create_topic(server.bootstrap, name, 3, {"retention.ms": "1234567"})


def described(server: OttlaServer | KafkaServer, name: str) -> list[str]:
    text = tool("kafka-topics", "--bootstrap-server", server.bootstrap, "--describe", "--topic", name)
    return sorted(text.split())


# KIP-500
def test_a_data_folder_goes_from_ottla_to_kafka_and_back(tmp_path: Path):
    ottla = OttlaServer(tmp_path / "ottla").start()
    create(ottla, "ours")
    ours = described(ottla, "ours")
    ottla.stop()
    lines = dump(ottla.data_dir / "__cluster_metadata-0" / f"{0:020d}.log")
    assert "LeaderChange" in lines[0]
    assert any('"name":"ours"' in line for line in lines)

    kafka = KafkaServer(tmp_path / "kafka", data_dir=ottla.data_dir).start()
    assert topics(kafka) == {"ours"}
    eventually_equal(lambda: described(kafka, "ours"), ours)
    create(kafka, "theirs")
    theirs = described(kafka, "theirs")
    kafka.stop()

    ottla.start()
    assert topics(ottla) == {"ours", "theirs"}
    eventually_equal(lambda: (described(ottla, "ours"), described(ottla, "theirs")), (ours, theirs))
    ottla.stop()


def test_kafkas_tool_reads_our_snapshots(tmp_path: Path):
    log = MetadataLog.open(tmp_path, files=Files(), random=Random(1), now_ms=0)
    image = MetadataImage()
    image.replay_all([FeatureLevelRecord(name="metadata.version", feature_level=LEVEL)])
    for record in CASES:
        with suppress(InvalidMetadata):  # those that change or end what is not there
            image.replay_all([record])
    (batch,) = batches_of([NoOpRecord()], metadata_version=LEVEL)
    log.append(batch, epoch=3, now_ms=1_700_000_000_000)
    log.update_high_watermark(1)
    writer = log.create_snapshot(1)
    voters = VotersRecord(voters=[Voter(voter_id=7, voter_directory_id=UUID(int=77))])
    writer.write(image, kraft_version=1, voters=voters, now_ms=5)
    log.snapshot_written(writer)
    first, *middle, last = dump(log.directory / "00000000000000000001-0000000003.checkpoint")
    assert "SnapshotHeader" in first
    assert "1700000000000" in first
    assert "SnapshotFooter" in last
    assert "KRaftVersion" in middle[0]
    assert "KRaftVoters" in middle[1]
    assert '"voterId":7' in middle[1]
    level = image.metadata_version  # one of the cases has changed it
    assert level is not None
    records = list(records_of(image, metadata_version=level))
    for record, line in zip(records, middle[2:], strict=True):
        decoded = json.loads(line.partition("payload: ")[2])
        version = version_of(record, metadata_version=level)
        assert (decoded["type"], decoded["version"]) == (kafka_name(record), version)
        assert decoded["data"] == to_json(record, version)


def test_kafka_goes_on_from_our_snapshot_alone(tmp_path: Path):
    """The log before it is gone: the topics, their configurations, brokers and voters are in the snapshot."""
    ottla = OttlaServer(tmp_path / "ottla").start()
    create(ottla, "ours")
    ours = described(ottla, "ours")
    ottla.stop()
    log = MetadataLog.open(ottla.data_dir, files=Files(), random=Random(1), now_ms=0)
    image, transactions, end = MetadataImage(), TransactionFilter(), log.end_offset
    for batch in log.decoded_batches(0, end):
        located = enumerate(batch.records, start=batch.base_offset)
        image.replay_all(record for _, record in transactions.apply(located))
    said = [message for _, message in log.quorum_messages()]
    voters = [message for message in said if isinstance(message, VotersRecord)]
    log.update_high_watermark(end)
    writer = log.create_snapshot(end)
    voter_set = voters[-1] if voters else None
    writer.write(image, kraft_version=1 if voters else 0, voters=voter_set, now_ms=0)
    log.snapshot_written(writer)
    log._log.truncate_fully_and_start_at(end, now_ms=0)
    log.removals_due(10**15).run()
    log.close()
    assert not (log.directory / f"{0:020d}.log").exists()

    kafka = KafkaServer(tmp_path / "kafka", data_dir=ottla.data_dir).start()
    eventually_equal(lambda: described(kafka, "ours"), ours)
    create(kafka, "theirs")
    kafka.stop()
    ottla.start()
    assert topics(ottla) == {"ours", "theirs"}
    eventually_equal(lambda: described(ottla, "ours"), ours)
    ottla.stop()


async def test_we_read_the_log_of_a_kafka_of_its_own(tmp_path: Path):
    kafka = KafkaServer(tmp_path / "kafka").start()
    create(kafka, "theirs")
    kafka.stop()

    properties = meta_properties.read(kafka.data_dir, Files())

    async def send(to, message, timeout_ms):
        raise AssertionError(f"the only voter sends no requests, but sends {message} to {to}")

    follower = Follower()
    runtime = ProductionRuntime()
    quorum = RaftClient.open(
        kafka.data_dir,
        settings=RaftSettings(
            node_id=1,
            directory_id=properties.directory_id,
            cluster_id=properties.cluster_id,
            listener_name="CONTROLLER",
            static_voters={1: Address("127.0.0.1", 9093)},
        ),
        files=Files(),
        runtime=runtime,
        send=send,
    )
    quorum.subscribe(follower)
    await quorum.start()
    image = follower.image
    assert set(image.topics_by_name) == {"theirs"}
    assert image.topic_config("theirs") == {"retention.ms": "1234567"}
    assert image.features["metadata.version"] == LEVEL
    assert image.features["group.version"] == 1
    assert set(image.brokers) == set(image.controllers) == {1}
    assert quorum.kraft_version == 0
    assert follower.leader_id == 1
    await quorum.stop()
    await runtime.close()


class Follower:
    """A listener of the metadata log that keeps its notifications."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.leader_id: int | None = None

    def on_commit(self, records, base_offset, end_offset):
        self.image.replay_all(records)

    def on_snapshot(self, chunks, snapshot):
        raise AssertionError("so young a log has no snapshot")

    def on_leader(self, leader):
        self.leader_id = leader.leader_id
