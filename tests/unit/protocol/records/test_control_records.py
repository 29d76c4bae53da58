"""Control records: transaction markers and the quorum's messages, held against Kafka's bytes."""

import struct

import pytest
from records_support import KAFKA_BATCHES, NOW, batch_of

from ottla.protocol.errors import InvalidRecord
from ottla.protocol.messages.k_raft_version_record import KRaftVersionRecord
from ottla.protocol.messages.leader_change_message import LeaderChangeMessage, Voter
from ottla.protocol.messages.snapshot_footer_record import SnapshotFooterRecord
from ottla.protocol.messages.snapshot_header_record import SnapshotHeaderRecord
from ottla.protocol.messages.voters_record import VotersRecord
from ottla.protocol.records.batch import read_header
from ottla.protocol.records.builder import build_batch, build_empty_batch
from ottla.protocol.records.control import (
    ControlRecordType,
    EndTransactionMarker,
    build_end_transaction_marker,
    control_key,
    control_type,
    end_transaction_marker,
)
from ottla.protocol.records.quorum import build_quorum_batch, decode_quorum_record
from ottla.protocol.records.record import Record, records


@pytest.mark.parametrize(("name", "is_commit", "offset"), [("commit", True, 42), ("abort", False, 43)])
def test_markers_are_kafkas(name, is_commit, offset):
    marker = EndTransactionMarker(is_commit, 4, NOW)
    ours = build_end_transaction_marker(
        marker, producer_id=13, producer_epoch=2, base_offset=offset, leader_epoch=9
    )
    assert ours == KAFKA_BATCHES[name]
    assert end_transaction_marker(ours) == marker
    assert read_header(ours).is_control
    assert read_header(ours).is_transactional


def test_a_marker_that_compaction_emptied():
    header = read_header(KAFKA_BATCHES["commit"])
    assert end_transaction_marker(build_empty_batch(header)) is None


@pytest.mark.parametrize(("key", "value"), [
    (control_key(ControlRecordType.LEADER_CHANGE), bytes(6)),
    (b"\0\0\0", bytes(6)),
    (None, bytes(6)),
    (b"\0\0\0\7", bytes(6)),     # an unknown type
    (control_key(ControlRecordType.COMMIT), bytes(5)),
    (control_key(ControlRecordType.COMMIT), None),
    (control_key(ControlRecordType.COMMIT), struct.pack(">hi", -1, 0)),
])  # fmt: skip
def test_what_is_no_marker(key, value):
    with pytest.raises(InvalidRecord):
        end_transaction_marker(build_batch([Record(0, NOW, key, value)], is_control=True))


def test_control_types():
    assert [control_type(control_key(one)) for one in ControlRecordType] == list(ControlRecordType)
    assert control_type(struct.pack(">hh", 3, 1)) is ControlRecordType.COMMIT  # a newer key's version
    assert control_type(struct.pack(">hh", 0, 99)) is None
    with pytest.raises(InvalidRecord):
        control_type(struct.pack(">hh", -1, 1))


def test_leader_change_is_kafkas():
    message = LeaderChangeMessage(
        leader_id=1, voters=[Voter(voter_id=1)], granting_voters=[Voter(voter_id=1)]
    )
    ours = build_quorum_batch([message], base_offset=0, leader_epoch=3, timestamp=NOW)
    assert ours == KAFKA_BATCHES["leader_change"]
    assert [decode_quorum_record(record) for record in records(ours)] == [message]


def test_snapshot_messages_round_trip():
    messages = [
        SnapshotHeaderRecord(last_contained_log_timestamp=NOW),
        KRaftVersionRecord(k_raft_version=1),
        VotersRecord(),
        SnapshotFooterRecord(),
    ]
    batch = build_quorum_batch(messages, base_offset=7, leader_epoch=0, timestamp=NOW)
    assert [record.offset for record in records(batch)] == [7, 8, 9, 10]
    assert [decode_quorum_record(record) for record in records(batch)] == messages


def test_quorum_records_that_are_not_the_quorums():
    assert decode_quorum_record(Record(0, NOW, control_key(ControlRecordType.COMMIT), bytes(6))) is None
    assert decode_quorum_record(Record(0, NOW, struct.pack(">hh", 0, 99), b"")) is None
    with pytest.raises(InvalidRecord):
        decode_quorum_record(Record(0, NOW, control_key(ControlRecordType.KRAFT_VOTERS), b"\0\0\xff"))
    with pytest.raises(InvalidRecord):
        list(records(batch_of(b"\x02")))
