"""Records of Kafka's own topics against the bytes that Kafka 4.3.1's generated classes make of them."""

from uuid import UUID

import pytest

from ottla.protocol.codec import encode_struct
from ottla.protocol.coordinator import consumer_group_records as consumer
from ottla.protocol.coordinator import newer_groups, transaction_records
from ottla.protocol.coordinator import share_group_records as share
from ottla.protocol.coordinator import share_state_records as share_state
from ottla.protocol.coordinator import streams_group_records as streams
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.remote import record_codec as remote_codec
from ottla.protocol.remote import records as remote

TOPIC_ID = UUID("01234567-89ab-cdef-1122-334455667788")
SEGMENT_ID = UUID("00000000-0000-0001-0000-000000000002")
PARTITION = remote.TopicIdPartitionEntry(name="orders", id=TOPIC_ID, partition=3)
SEGMENT = remote.RemoteLogSegmentIdEntry(topic_id_partition=PARTITION, id=SEGMENT_ID)
EPOCHS = [remote.SegmentLeaderEpochEntry(leader_epoch=2, offset=5)]

REMOTE = {
    "010000076f72646572730123456789abcdef1122334455667788000000030000000000000000010000000000000002000000000000"
    "000005000000000000000900000001000000000000000b000000000000000c020000000200000000000000050000000063020701010"
    "00101": remote.RemoteLogSegmentMetadataRecord(
        remote_log_segment_id=SEGMENT, start_offset=5, end_offset=9, broker_id=1, max_timestamp_ms=11,
        event_timestamp_ms=12, segment_leader_epochs=EPOCHS, segment_size_in_bytes=99, custom_metadata=b"\7",
        remote_log_segment_state=1, txn_index_empty=True,
    ),
    "010100076f72646572730123456789abcdef11223344556677880000000300000000000000000100000000000000020000000001000"
    "000000000000c000300": remote.RemoteLogSegmentMetadataUpdateRecord(
        remote_log_segment_id=SEGMENT, broker_id=1, event_timestamp_ms=12, remote_log_segment_state=3
    ),
    "010200076f72646572730123456789abcdef1122334455667788000000030000000001000000000000000c0200":
    remote.RemotePartitionDeleteMetadataRecord(
        topic_id_partition=PARTITION, broker_id=1, event_timestamp_ms=12, remote_partition_delete_state=2
    ),
    "010300000000000000000100000000000000020000000000000005000000000000000900000001000000000000000b0000000000000"
    "00c020000000200000000000000050000000063000100": remote.RemoteLogSegmentMetadataSnapshotRecord(
        segment_id=SEGMENT_ID, start_offset=5, end_offset=9, broker_id=1, max_timestamp_ms=11,
        event_timestamp_ms=12, segment_leader_epochs=EPOCHS, segment_size_in_bytes=99, remote_log_segment_state=1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("data", REMOTE, ids=lambda data: type(REMOTE[data]).__name__)
def test_remote_log_metadata_is_kafkas(data):
    assert remote_codec.encode(REMOTE[data]).hex() == data
    assert remote_codec.decode(bytes.fromhex(data)) == REMOTE[data]


@pytest.mark.parametrize("data", REMOTE, ids=lambda data: type(REMOTE[data]).__name__)
def test_remote_log_metadata_that_lies_is_refused(data):
    whole = bytes.fromhex(data)
    for end in range(len(whole)):
        with pytest.raises(MalformedMessage):
            remote_codec.decode(whole[:end])
    with pytest.raises(MalformedMessage, match="too many"):
        remote_codec.decode(whole + b"\0")
    with pytest.raises(MalformedMessage):
        remote_codec.decode(None)


@pytest.mark.parametrize("head", ["020000", "010900", "010001"])
def test_remote_log_metadata_of_newer_software_is_not_known(head):
    with pytest.raises(remote_codec.UnknownRemoteLogMetadata):
        remote_codec.decode(bytes.fromhex(head))


def transaction(version):
    value = transaction_records.TransactionLogValue(
        producer_id=7, producer_epoch=3, transaction_timeout_ms=60_000,
        transaction_status=transaction_records.TransactionStatus.ONGOING,
        transaction_partitions=[transaction_records.TransactionPartitions(topic="a", partition_ids=[0, 2])],
        transaction_last_update_timestamp_ms=20, transaction_start_timestamp_ms=10,
    )  # fmt: skip
    if version == 1:
        value.previous_producer_id = 6
        value.next_producer_id = 8
        value.next_producer_epoch = 0
        value.client_transaction_version = 2
    return value


TRANSACTIONS = [
    (0, transaction(0), ("0000000000000000000700030000ea60010000000100016100000002000000000000000200000000000000140"
                        "00000000000000a")),
    (1, transaction(1), ("0001000000000000000700030000ea6001020261030000000000000002000000000000000014000000000000000"
                        "a0400080000000000000006010800000000000000080202000203020000")),
    (1, transaction_records.TransactionLogValue(producer_id=7, transaction_partitions=None),
     "0001000000000000000700000000000000000000000000000000000000000000000000"),
]  # fmt: skip


@pytest.mark.parametrize(("version", "value", "data"), TRANSACTIONS)
def test_transaction_state_is_kafkas(version, value, data):
    record = transaction_records.TransactionRecord(
        transaction_records.TransactionLogKey(transactional_id="tx"), value
    )
    key, encoded = transaction_records.encode(record, version=version)
    assert (key.hex(), encoded.hex()) == ("000000027478", data)
    assert transaction_records.decode(key, encoded) == record
    assert transaction_records.decode(key, None).value is None
    for end in range(len(encoded)):
        with pytest.raises(MalformedMessage):
            transaction_records.decode(key, encoded[:end])


@pytest.mark.parametrize(("key", "value"), [("00010000", None), ("000000027478", "0002")])
def test_transaction_state_of_newer_software_is_not_known(key, value):
    with pytest.raises(transaction_records.UnknownTransactionRecord):
        transaction_records.decode(bytes.fromhex(key), None if value is None else bytes.fromhex(value))


def test_transaction_state_needs_a_key():
    with pytest.raises(MalformedMessage):
        transaction_records.decode(None, b"")


MEMBER = {
    "client_id": "c", "client_host": "h", "instance_id": "i", "subscribed_topic_names": ["a"],
    "subscribed_topic_regex": "x.*", "rebalance_timeout_ms": 5, "server_assignor": "uniform",
}  # fmt: skip
GROUPS = {
    "00000269000263026802026104782e2a0000000508756e69666f726d0100100100000006020672616e676502010000":
    consumer.ConsumerGroupMemberMetadataValue(
        **MEMBER, rack_id=None,
        classic_member_metadata=consumer.ClassicMemberMetadata(
            session_timeout_ms=6,
            supported_protocols=[consumer.ClassicProtocol(name="range", metadata=b"\1")],
        ),
    ),
    # As Kafka wrote it for a member of the new protocol: null is 0 in a tagged field.
    "00000269000263026802026104782e2a0000000508756e69666f726d01000100":
    consumer.ConsumerGroupMemberMetadataValue(**MEMBER, rack_id=None, classic_member_metadata=None),
    "0000000000040000000301020123456789abcdef1122334455667788020000000101000502000000040100":
    consumer.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=4, previous_member_epoch=3, state=1, assigned_partitions=[
            consumer.TopicPartitions(topic_id=TOPIC_ID, partitions=[1], assignment_epochs=[4])
        ],
    ),
    "0000000000040100080000000000000009": consumer.ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=4, assignment_timestamp=9
    ),
    "0000020123456789abcdef11223344556677880261000000010200000000020272000000":
    consumer.ConsumerGroupPartitionMetadataValue(topics=[
        consumer.TopicMetadata(topic_id=TOPIC_ID, topic_name="a", num_partitions=1, partition_metadata=[
            consumer.PartitionMetadata(partition=0, racks=["r"])
        ])
    ]),
    "00000202610000000000000003000000000000000400": consumer.ConsumerGroupRegularExpressionValue(
        topics=["a"], version=3, timestamp=4
    ),
    "000001020123456789abcdef11223344556677880261020000000100020123456789abcdef112233445566778802620000":
    share.ShareGroupStatePartitionMetadataValue(
        initialized_topics=[
            share.TopicPartitionsInfo(topic_id=TOPIC_ID, topic_name="a", partitions=[1])
        ],
        deleting_topics=[share.TopicInfo(topic_id=TOPIC_ID, topic_name="b")],
    ),
    "000002720263026802026100": share.ShareGroupMemberMetadataValue(
        rack_id="r", client_id="c", client_host="h", subscribed_topic_names=["a"]
    ),
    "000000000002000000000000000502000400000001010602026b027600": streams.StreamsGroupMetadataValue(
        epoch=2, metadata_hash=5, validated_topology_epoch=1,
        last_assignment_configs=[streams.LastAssignmentConfig(key="k", value="v")],
    ),
    "0000010102630268ffffffff000000000270010268ffff0002026b02760000": streams.StreamsGroupMemberMetadataValue(
        instance_id="", rack_id="", client_id="c", client_host="h", process_id="p",
        user_endpoint=streams.Endpoint(host="h", port=65535),
        client_tags=[streams.KeyValue(key="k", value="v")],
    ),
    "000000000001000000000002023002000000010100050200000001010101010100":
    streams.StreamsGroupCurrentMemberAssignmentValue(member_epoch=1, active_tasks=[
        streams.AssignedTaskIds(subtopology_id="0", partitions=[1], assignment_epochs=[1])
    ]),
    "0000000000010202300202610102027300000000000002026b027600000101020200000101000000":
    streams.StreamsGroupTopologyValue(epoch=1, subtopologies=[
        streams.Subtopology(
            subtopology_id="0", source_topics=["a"],
            state_changelog_topics=[
                streams.TopicInfo(name="s", topic_configs=[streams.TopicConfig(key="k", value="v")])
            ],
            copartition_groups=[streams.CopartitionGroup(source_topics=[0])],
        )
    ]),
}  # fmt: skip


@pytest.mark.parametrize("data", GROUPS, ids=lambda data: type(GROUPS[data]).__name__)
def test_records_of_newer_groups_are_kafkas(data):
    value = GROUPS[data]
    kind = type(value).__api_key__.to_bytes(2, "big")
    assert "0000" + encode_struct(type(value), 0, value).hex() == data
    decoded = newer_groups.decode(kind + b"\0\1g\0\1m", bytes.fromhex(data))
    assert decoded is not None
    assert decoded.value == value
    assert decoded.key.group_id == "g"
    assert newer_groups.decode(kind + b"\0\1g\0\1m", None).value is None
    with pytest.raises(MalformedMessage):
        newer_groups.decode(kind + b"\0\1g\0\1m", bytes.fromhex(data)[:-1])


@pytest.mark.parametrize(("key", "value"), [(b"\0\x09", None), (b"\0\3\0\1g", b"\0\1")])
def test_newer_groups_of_still_newer_software_are_not_known(key, value):
    assert newer_groups.decode(key, value) is None


SHARE_KEY = "67" + TOPIC_ID.hex + "00000003"
SHARE_BATCHES = [share_state.StateBatch(first_offset=5, last_offset=9, delivery_state=2, delivery_count=3)]
SHARE_STATE = {
    "0000000000010000000200000003000000000000000400000000000000050000000000000006020000000000000005000000000000000902"
    "00030001000400000007": share_state.ShareSnapshotValue(
        snapshot_epoch=1, state_epoch=2, leader_epoch=3, start_offset=4, delivery_complete_count=7,
        create_timestamp=5, write_timestamp=6, state_batches=SHARE_BATCHES,
    ),
    "00000000000100000003ffffffffffffffff02000000000000000500000000000000090200030000":
    share_state.ShareUpdateValue(
        snapshot_epoch=1, leader_epoch=3, start_offset=-1, state_batches=SHARE_BATCHES
    ),
}  # fmt: skip


@pytest.mark.parametrize("data", SHARE_STATE, ids=lambda data: type(SHARE_STATE[data]).__name__)
def test_share_state_is_kafkas(data):
    value = SHARE_STATE[data]
    key = bytes.fromhex(f"{type(value).__api_key__:04x}0001{SHARE_KEY}")
    assert "0000" + encode_struct(type(value), 0, value).hex() == data
    decoded = share_state.decode(key, bytes.fromhex(data))
    assert decoded.kind == type(value).__name__.replace("Value", "Key")
    assert decoded.key == share_state.SharePartitionKey(group_id="g", topic_id=TOPIC_ID, partition=3)
    assert decoded.value == value
    assert share_state.decode(key, None).value is None
    for wrong in ((None, None), (b"\0", None), (key[:-1], None), (key, bytes.fromhex(data)[:-1])):
        with pytest.raises(MalformedMessage):
            share_state.decode(*wrong)
    for newer in ((b"\0\2" + key[2:], None), (key, b"\0\1")):
        with pytest.raises(share_state.UnknownShareStateRecord):
            share_state.decode(*newer)
