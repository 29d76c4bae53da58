"""Decoders of the records of Kafka's internal topics: key and value as messages.

A decoder converts the bytes of key and value to plain values. It raises KafkaError for invalid bytes, and
NotKnown for records of newer software.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final

from ottla.broker.cli.output import json_value
from ottla.metadata.frame import UnknownMetadataRecord, decode_record
from ottla.metadata.image import InvalidMetadata
from ottla.protocol.codec import decode_struct
from ottla.protocol.coordinator import newer_groups, share_state_records, transaction_records
from ottla.protocol.coordinator import record_codec as group_codec
from ottla.protocol.coordinator.group_records import GroupMetadataValue
from ottla.protocol.coordinator.transaction_records import TransactionStatus
from ottla.protocol.errors import KafkaError, MalformedMessage
from ottla.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from ottla.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from ottla.protocol.records.control import control_type, end_transaction_marker
from ottla.protocol.records.quorum import decode_quorum_record
from ottla.protocol.records.record import Record
from ottla.protocol.remote import record_codec as remote_codec
from ottla.protocol.remote.records import (
    RemoteLogMetadataRecord,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
)
from ottla.protocol.schema import Message

#: Key and value of a record, decoded.
Decoded = dict[str, Any]
Decoder = Callable[[bytes | None, bytes | None], Decoded]


class NotKnown(Exception):
    """A record of a kind or version that this software does not know."""


def _named(message: object, **names: str) -> Decoded:
    """A message as plain values with its type; `names` replaces numeric fields by names."""
    return {"type": type(message).__name__, **json_value(message), **names}


def consumer_offsets(key: bytes | None, value: bytes | None) -> Decoded:
    """`__consumer_offsets`: a group's generation or a committed offset."""
    try:
        record = group_codec.decode(key, value)
    except group_codec.UnknownRecordKind as error:
        newer = None if key is None else newer_groups.decode(key, value)
        if newer is None:
            raise NotKnown(str(error)) from error
        name = newer_groups.VALUES[newer.kind].__name__.removesuffix("Value") + "Key"
        return {
            "key": {**_named(newer.key), "type": name},
            "value": None if newer.value is None else _named(newer.value),
        }
    decoded = None if record.value is None else _named(record.value)
    if decoded is not None and isinstance(record.value, GroupMetadataValue):
        for member, row in zip(record.value.members, decoded["members"], strict=True):
            if record.value.protocol_type == "consumer":
                # Messages of the clients; bytes that cannot be decoded stay bytes.
                with suppress(KafkaError):
                    row["subscription"] = _of_client(ConsumerProtocolSubscription, member.subscription)
                    row["assignment"] = _of_client(ConsumerProtocolAssignment, member.assignment)
    return {"key": _named(record.key), "value": decoded}


def _of_client(cls: type[Message], data: bytes) -> Decoded | None:
    """A message of the embedded consumer protocol, which begins with its version; None for no bytes."""
    if not data:
        return None
    version = int.from_bytes(data[:2], "big", signed=True)
    last = cls.__versions__.last or 0
    if version < 0:
        raise MalformedMessage(f"version {version}")
    return {"version": version, **json_value(decode_struct(cls, min(version, last), data[2:]))}


def transaction_state(key: bytes | None, value: bytes | None) -> Decoded:
    """`__transaction_state`: a transactional id and its transaction."""
    try:
        record = transaction_records.decode(key, value)
    except transaction_records.UnknownTransactionRecord as error:
        raise NotKnown(str(error)) from error
    if record.value is None:
        return {"key": _named(record.key), "value": None}
    status = _name_of(TransactionStatus, record.value.transaction_status)
    return {"key": _named(record.key), "value": _named(record.value, transaction_status=status)}


def share_group_state(key: bytes | None, value: bytes | None) -> Decoded:
    """`__share_group_state`: the delivery state of a share group's partition (KIP-932)."""
    try:
        record = share_state_records.decode(key, value)
    except share_state_records.UnknownShareStateRecord as error:
        raise NotKnown(str(error)) from error
    return {
        "key": {**_named(record.key), "type": record.kind},
        "value": None if record.value is None else _named(record.value),
    }


def cluster_metadata(key: bytes | None, value: bytes | None) -> Decoded:
    """`__cluster_metadata` and its snapshots: one change of the cluster."""
    try:
        return {"key": json_value(key), "value": _named(decode_record(value or b""))}
    except UnknownMetadataRecord as error:
        raise NotKnown(str(error)) from error
    except InvalidMetadata as error:
        raise MalformedMessage(str(error)) from error


def remote_log_metadata(key: bytes | None, value: bytes | None) -> Decoded:
    """`__remote_log_metadata`: the state of a segment in the remote tier."""
    try:
        record = remote_codec.decode(value)
    except remote_codec.UnknownRemoteLogMetadata as error:
        raise NotKnown(str(error)) from error
    return {"key": json_value(key), "value": _named(record, **_states_of(record))}


def _states_of(record: RemoteLogMetadataRecord) -> dict[str, str]:
    """The names of the states that the record holds as numbers."""
    names: dict[str, type[IntEnum]] = {
        "remote_log_segment_state": RemoteLogSegmentState,
        "remote_partition_delete_state": RemotePartitionDeleteState,
    }
    return {
        field: _name_of(states, getattr(record, field))
        for field, states in names.items()
        if hasattr(record, field)
    }


def _name_of(states: type[IntEnum], number: int) -> str:
    return next((state.name for state in states if state == number), f"unknown state {number}")


def control_record(batch: memoryview, record: Record) -> Decoded:
    """A control record: the end marker of a transaction, or a control record of Raft. Raises KafkaError."""
    record_type = control_type(record.key)
    if record_type is None:
        raise NotKnown(f"control record {record.key!r}")
    message = decode_quorum_record(record)
    if message is not None:
        return {"type": record_type.name, "value": json_value(message)}
    marker = end_transaction_marker(batch)
    return {"type": record_type.name, "coordinator_epoch": marker.coordinator_epoch if marker else None}


#: By the name of the option `--decoder`.
DECODERS: Final[Mapping[str, Decoder]] = MappingProxyType(
    {
        "consumer-offsets": consumer_offsets,
        "transaction-state": transaction_state,
        "share-group-state": share_group_state,
        "cluster-metadata": cluster_metadata,
        "remote-log-metadata": remote_log_metadata,
    }
)

_BY_TOPIC: Final[Mapping[str, Decoder]] = MappingProxyType(
    {f"__{name.replace('-', '_')}": decoder for name, decoder in DECODERS.items()}
)


def decoder_of_topic(topic: str) -> Decoder | None:
    """The decoder of one of Kafka's internal topics; None for other topics."""
    return _BY_TOPIC.get(topic)
