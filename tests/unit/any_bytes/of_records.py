"""Entry points of record batches, and of the records of internal topics."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from struct import Struct

from ottla.broker.cli.files.decoders import DECODERS, NotKnown
from ottla.broker.groups.config import GroupConfig
from ottla.broker.groups.group import subscribed_topics
from ottla.broker.groups.group_metadata import group_from_value, group_value
from ottla.broker.groups.offsets import offset_from_value
from ottla.broker.reports.assignments import assigned_partitions
from ottla.config.log_config import LogConfig
from ottla.controller.metadata_log.snapshot_writer import records_of
from ottla.controller.raft.voters import VoterSet
from ottla.metadata import frame as metadata_frame
from ottla.metadata.image import InvalidMetadata, MetadataImage
from ottla.protocol.codec import encode_struct
from ottla.protocol.coordinator import newer_groups, share_state_records, transaction_records
from ottla.protocol.coordinator import record_codec as group_codec
from ottla.protocol.coordinator.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.protocol.coordinator.transaction_records import TransactionLogKey, TransactionLogValue
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.k_raft_version_record import KRaftVersionRecord
from ottla.protocol.messages.leader_change_message import LeaderChangeMessage
from ottla.protocol.messages.voters_record import VotersRecord
from ottla.protocol.records.batch import batches
from ottla.protocol.records.control import (
    end_transaction_marker,
)
from ottla.protocol.records.quorum import build_quorum_batch, decode_quorum_record
from ottla.protocol.records.record import keys_of, records, values_of
from ottla.protocol.remote import record_codec as remote_codec
from ottla.protocol.remote.records import RECORD_CLASSES as REMOTE_CLASSES
from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.protocol.schema import Message
from ottla.remote.topic_metadata import records as topic_records
from ottla.storage import validation
from tests.harness.loop_turns import OneTurn
from tests.unit.any_bytes.entry_point import (
    BOUNDS,
    NOW_MS,
    entry_point,
    metadata_records,
    valid_batches,
    versions_of,
    with_checksums,
)
from tests.unit.any_bytes.filled import filled
from tests.unit.remote.remote_support import copy_of, to


@entry_point(KafkaError, seeds=valid_batches)
def opened_batches(data: bytes) -> None:
    """Batches of all versions and codecs, opened in each way."""
    for _, batch in batches(memoryview(with_checksums(data))):
        for opened in (records, keys_of, values_of):
            with suppress(KafkaError):
                list(opened(batch, BOUNDS))
        with suppress(KafkaError):
            end_transaction_marker(batch)
        with suppress(KafkaError):
            for record in records(batch, BOUNDS):
                with suppress(KafkaError):
                    decode_quorum_record(record)


_CONFIGS = (
    LogConfig(),
    LogConfig(cleanup_policy=("compact",)),
    LogConfig(compression_type="zstd"),
    LogConfig(message_timestamp_type="LogAppendTime"),
)


@entry_point(KafkaError, validation.NeedsThread, seeds=valid_batches)
def produced_batches(data: bytes) -> None:
    """The batches that a Produce appends."""
    data = with_checksums(data)
    for config in _CONFIGS:
        for turns in (None, OneTurn(), OneTurn(is_spent=True)):
            with suppress(KafkaError, validation.NeedsThread):
                validation.validate(
                    bytearray(data),
                    first_offset=10,
                    now_ms=NOW_MS,
                    config=config,
                    leader_epoch=3,
                    turns=turns,
                )


_SIZE = Struct(">H")


def key_and_value(data: bytes) -> tuple[bytes | None, bytes | None]:
    """A key behind its size (65535: there is none), and a value (a size of 65534: there is none)."""
    if len(data) < 2:
        return None, None
    (size,) = _SIZE.unpack_from(data)
    rest = data[2:]
    if size == 0xFFFF:
        return None, rest
    if size == 0xFFFE:
        return rest, None
    return rest[:size], rest[size:]


def _pairs(pairs: Sequence[tuple[bytes | None, bytes | None]]) -> Sequence[bytes]:
    return [
        _SIZE.pack(0xFFFF) + (value or b"")
        if key is None
        else _SIZE.pack(0xFFFE) + key
        if value is None
        else _SIZE.pack(len(key)) + key + value
        for key, value in pairs
    ]


_KIND = Struct(">h")


def _keyed(kind: int, key: type[Message], value: type[Message]) -> Iterator[tuple[bytes, bytes]]:
    for version in versions_of(value):
        yield (
            _KIND.pack(kind) + encode_struct(key, 0, filled(key, 0)),
            _KIND.pack(version) + encode_struct(value, version, filled(value, version)),
        )


def _group_records() -> Sequence[bytes]:
    pairs: list[tuple[bytes | None, bytes | None]] = []
    for kind, key, value in (
        (1, OffsetCommitKey, OffsetCommitValue),
        (2, GroupMetadataKey, GroupMetadataValue),
        *((kind, newer_groups.KEYS[cls], cls) for kind, cls in newer_groups.VALUES.items()),
    ):
        pairs += _keyed(kind, key, value)
    return _pairs(pairs)


@entry_point(KafkaError, group_codec.UnknownRecordKind, NotKnown, seeds=_group_records)
def consumer_offsets(data: bytes) -> None:
    """`__consumer_offsets`: a coordinator loads it, a tool shows it."""
    key, value = key_and_value(data)
    with suppress(KafkaError, NotKnown):
        DECODERS["consumer-offsets"](key, value)
    record = group_codec.decode(key, value)
    group_codec.encode(record)
    if isinstance(record.value, GroupMetadataValue):
        group = group_from_value("g", record.value, GroupConfig())
        assignments = {member.member_id: member.assignment for member in group.members.values()}
        group_value(group, assignments)
        for member in record.value.members:
            assigned_partitions(member.assignment)
    elif isinstance(record.value, OffsetCommitValue):
        offset_from_value(record.value, record_offset=1)


@entry_point(seeds=lambda: [bytes.fromhex("0001 00000001 0003") + b"fox" + bytes(4)])
def subscriptions(data: bytes) -> None:
    """A member's subscription, which its client wrote."""
    subscribed_topics(data)


def _transactions() -> Sequence[bytes]:
    return _pairs([*_keyed(0, TransactionLogKey, TransactionLogValue)])


@entry_point(KafkaError, transaction_records.UnknownTransactionRecord, seeds=_transactions)
def transaction_state(data: bytes) -> None:
    """The records of `__transaction_state`."""
    key, value = key_and_value(data)
    with suppress(KafkaError, NotKnown):
        DECODERS["transaction-state"](key, value)
    record = transaction_records.decode(key, value)
    transaction_records.encode(record, version=1)


def _share_states() -> Sequence[bytes]:
    return _pairs([*_keyed(0, share_state_records.SharePartitionKey, share_state_records.ShareSnapshotValue)])


@entry_point(KafkaError, NotKnown, seeds=_share_states)
def share_group_state(data: bytes) -> None:
    """The records of `__share_group_state`, which tools show."""
    DECODERS["share-group-state"](*key_and_value(data))


@entry_point(
    KafkaError,
    remote_codec.UnknownRemoteLogMetadata,
    seeds=lambda: [
        remote_codec.encode(filled(cls, version), version=version)
        for cls in REMOTE_CLASSES.values()
        for version in versions_of(cls)
    ],
)
def remote_log_metadata(data: bytes) -> None:
    """`__remote_log_metadata`, as a tool shows it and a broker reads it."""
    with suppress(KafkaError, NotKnown):
        DECODERS["remote-log-metadata"](None, data)
    remote_codec.encode(remote_codec.decode(data))


@entry_point(InvalidMetadata, seeds=metadata_records)
def cluster_metadata(data: bytes) -> None:
    """The records of `__cluster_metadata`, one at a time."""
    record = metadata_frame.decode_record(data)
    with suppress(ValueError):  # a version that lacks a field of the record
        metadata_frame.encode_record(record, record.__versions__.last or 0)
    MetadataImage().replay_all([record])


def _replayed() -> Sequence[bytes]:
    framed = [_SIZE.pack(len(record)) + record for record in metadata_records()]
    return [b"".join(framed), b"".join(framed[::-1]), *framed]


@entry_point(InvalidMetadata, seeds=_replayed)
def metadata_image(data: bytes) -> None:
    """The image after the replay of many records of `__cluster_metadata`."""
    image, at = MetadataImage(), 0
    while at + 2 <= len(data):
        (size,) = _SIZE.unpack_from(data, at)
        record = data[at + 2 : at + 2 + size]
        at += 2 + size
        with suppress(InvalidMetadata):
            image.replay_all([metadata_frame.decode_record(record)])
    with suppress(InvalidMetadata):
        list(records_of(image, metadata_version=image.metadata_version or 20))


def _changes() -> Sequence[bytes]:
    copy = copy_of(1, 0, 10, (0, 0), (2, 5))
    return [
        topic_records.to_value(change)
        for change in (copy, to(1, RemoteLogSegmentState.COPY_SEGMENT_FINISHED))
    ]


@entry_point(KafkaError, remote_codec.UnknownRemoteLogMetadata, seeds=_changes)
def remote_log_changes(data: bytes) -> None:
    """`__remote_log_metadata`, as a broker understands it: what it means is written again as it was."""
    change = topic_records.from_value(data)
    topic_records.to_value(change)
    topic_records.user_partition_of(change)


def _voters() -> Sequence[bytes]:
    # They begin with their version.
    messages = [
        replace(filled(cls, 0), version=0) for cls in (KRaftVersionRecord, VotersRecord, LeaderChangeMessage)
    ]
    return [bytes(build_quorum_batch(messages, base_offset=0, leader_epoch=1, timestamp=NOW_MS))]


@entry_point(KafkaError, seeds=_voters)
def quorum_records(data: bytes) -> None:
    """`__cluster_metadata`: control records, from which the voters follow."""
    for _, batch in batches(memoryview(with_checksums(data))):
        for record in records(batch, BOUNDS):
            message = decode_quorum_record(record)
            if isinstance(message, VotersRecord):
                VoterSet.of_record(message).to_record()
