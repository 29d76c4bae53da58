"""Local logs of replicas in the partition records and in the image (draft KIP-1303)."""

from uuid import UUID

import pytest

from ottla.controller.metadata_log.record_versions import version_of
from ottla.controller.metadata_log.snapshot_writer import records_of
from ottla.metadata.frame import decode_record, encode_record
from ottla.metadata.image import MetadataImage
from ottla.metadata.leader_preference import LeaderPreference, preference_order
from ottla.metadata.records import PartitionChangeRecord, PartitionRecord, TopicRecord
from ottla.protocol.local_log import (
    LocalLog,
    LocalLogState,
    ReplicaLocalLog,
    local_logs_from,
    replica_local_logs,
)

TOPIC_ID = UUID(int=7)
STATE = LocalLogState(local_log_start_offset=5, local_log_bytes=6, oldest_local_timestamp=-1)
LOGS = [
    ReplicaLocalLog(replica_id=2, state=LocalLogState(local_log_start_offset=9)),
    ReplicaLocalLog(replica_id=1, state=STATE),
]
IN_MEMORY = ((1, LocalLog(5, 6, None)), (2, LocalLog(9, 0, None)))

#: The field: number of tagged fields, tag 13030, size, length + 1, then id, start, bytes and timestamp of each,
#: each struct with its own number of tagged fields.
FIELD = (
    "01" "e665" "3d" "03"
    "00000002" "0000000000000009" "0000000000000000" "ffffffffffffffff" "00" "00"
    "00000001" "0000000000000005" "0000000000000006" "ffffffffffffffff" "00" "00"
)  # fmt: skip


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("kind", [PartitionRecord, PartitionChangeRecord])
def test_both_records_have_them_in_a_tagged_field(kind, version):
    record = kind(topic_id=TOPIC_ID, partition_id=3, local_logs=LOGS)
    written = encode_record(record, version)
    assert written.hex().endswith(FIELD)
    assert decode_record(written) == record
    # Without them there is no tagged field, as in Kafka's records.
    without = encode_record(kind(topic_id=TOPIC_ID, partition_id=3), version)
    assert without == bytes.fromhex(written.hex().removesuffix(FIELD) + "00")


@pytest.mark.parametrize(
    "local_log", [LocalLog(0, 0, None), LocalLog(7, 2**40, 0), LocalLog(2**62, 1, 2**41)]
)
def test_the_wire_has_the_same_local_log(local_log):
    assert LocalLog.from_state(local_log.to_state()) == local_log


def test_an_unknown_timestamp_is_minus_one_on_the_wire_only():
    assert LocalLog.from_state(STATE) == LocalLog(5, 6, None)
    assert local_logs_from(LOGS) == IN_MEMORY  # ordered by replica
    assert local_logs_from(replica_local_logs(IN_MEMORY)) == IN_MEMORY


def test_a_negative_start_offset_of_a_bad_peer_is_no_earlier_than_that_of_an_unknown_local_log():
    bad = ReplicaLocalLog(replica_id=1, state=LocalLogState(local_log_start_offset=-(2**63)))
    known = dict(local_logs_from([bad]))
    assert known == {1: LocalLog(0, 0, None)}
    spans = LeaderPreference(prefers_early_start=True, eligible_local_ms=1, eligible_local_bytes=1)
    assert preference_order([1, 2], known, spans, now_ms=0) == [[1, 2]]


def image_with(*records) -> MetadataImage:
    image = MetadataImage()
    partition = PartitionRecord(
        topic_id=TOPIC_ID, partition_id=0, replicas=[1, 2], isr=[1, 2], leader=1, local_logs=LOGS
    )
    image.replay_all([TopicRecord(name="t", topic_id=TOPIC_ID), partition, *records])
    return image


def change(**fields) -> PartitionChangeRecord:
    return PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, **fields)


@pytest.mark.parametrize(("record", "after"), [
    (None,                               IN_MEMORY),
    (change(isr=[1]),                    IN_MEMORY),      # null: unchanged
    (change(local_logs=LOGS[:1]),        IN_MEMORY[1:]),  # a list replaces the whole previous one
    (change(local_logs=[]),              ()),
])  # fmt: skip
def test_the_image_has_the_local_logs_of_the_last_record_that_has_any(record, after):
    image = image_with(*([record] if record else []))
    partition = image.partition(TOPIC_ID, 0)
    assert partition is not None
    assert partition.local_logs == after
    assert partition.leader_epoch == -1  # a change of local logs is no election
    assert partition.partition_epoch == (0 if record else -1)


@pytest.mark.parametrize("metadata_version", [7, 18, 30])  # PartitionRecord v0, v1, v2
def test_a_snapshot_keeps_them(metadata_version):
    image = image_with()
    copy = MetadataImage()
    for record in records_of(image, metadata_version=metadata_version):
        written = encode_record(record, version_of(record, metadata_version=metadata_version))
        copy.replay_all([decode_record(written)])
    assert copy.partition(TOPIC_ID, 0) == image.partition(TOPIC_ID, 0)
