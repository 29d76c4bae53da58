"""TransactionLog: keys and values of `__transaction_state` <-> messages (KIP-98, KIP-890).

    key     kind (int16), always 0 | transactional id
    value   version (int16) | the state of the transactional id

Source: the coordinator-key and coordinator-value schemas of Kafka 4.3.1's transaction coordinator.
"""

from dataclasses import field
from enum import IntEnum
from typing import ClassVar, Final, NamedTuple

from ottla.protocol.codec import decode_struct, encode_struct
from ottla.protocol.coordinator import PREFIX, split_prefix
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.schema import Record, Versions
from ottla.protocol.schema_class import schema_class


class TransactionStatus(IntEnum):
    """The state of a transaction (Kafka's TransactionState); the value is the number in the record."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


@schema_class
class TransactionLogKey(Record):
    """The key of a record in `__transaction_state`: the transactional id."""

    __api_key__: ClassVar[int] = 0
    __versions__: ClassVar[Versions] = Versions(0, 0)

    transactional_id: str = field(default="", metadata={"kafka_type": "string"})


@schema_class
class TransactionPartitions:
    """Partitions of one topic that take part in a transaction."""

    topic: str = field(default="", metadata={"kafka_type": "string"})
    partition_ids: list[int] = field(default_factory=list, metadata={"kafka_type": "int32"})


@schema_class
class TransactionLogValue(Record):
    """The state of a transactional id. Producer ids, epochs and the start are -1 if there is none."""

    __api_key__: ClassVar[int] = 0
    __versions__: ClassVar[Versions] = Versions(0, 1)
    __flexible_from__: ClassVar[int | None] = 1

    producer_id: int = field(default=0, metadata={"kafka_type": "int64"})
    #: Of the previous transaction: a client that retries may still send it (KIP-890).
    previous_producer_id: int = field(
        default=-1, metadata={"kafka_type": "int64", "versions": "1+", "tag": 0, "tag_versions": "1+"}
    )
    #: The producer id to use once the epochs of `producer_id` are exhausted.
    next_producer_id: int = field(
        default=-1, metadata={"kafka_type": "int64", "versions": "1+", "tag": 1, "tag_versions": "1+"}
    )
    producer_epoch: int = field(default=0, metadata={"kafka_type": "int16"})
    next_producer_epoch: int = field(
        default=-1, metadata={"kafka_type": "int16", "versions": "1+", "tag": 3, "tag_versions": "1+"}
    )
    transaction_timeout_ms: int = field(default=0, metadata={"kafka_type": "int32"})
    #: A TransactionStatus.
    transaction_status: int = field(default=0, metadata={"kafka_type": "int8"})
    #: None once the transaction is complete.
    transaction_partitions: list[TransactionPartitions] | None = field(
        default_factory=list, metadata={"nullable": "0+"}
    )
    transaction_last_update_timestamp_ms: int = field(default=0, metadata={"kafka_type": "int64"})
    transaction_start_timestamp_ms: int = field(default=0, metadata={"kafka_type": "int64"})
    #: The level of the feature transaction.version that the client's requests use.
    client_transaction_version: int = field(
        default=0, metadata={"kafka_type": "int16", "versions": "1+", "tag": 2, "tag_versions": "1+"}
    )


_TOPIC: Final = "__transaction_state"
_KIND: Final = TransactionLogKey.__api_key__


class TransactionRecord(NamedTuple):
    """One record of `__transaction_state`; without a value it is a tombstone: the id has expired."""

    key: TransactionLogKey
    value: TransactionLogValue | None


class UnknownTransactionRecord(Exception):
    """A record of a kind or version that this broker does not know; a newer broker may have written it."""


def encode(record: TransactionRecord, *, version: int) -> tuple[bytes, bytes | None]:
    """Encode a record to (key, value or None). Kafka writes version 1 if transaction.version is 2, else 0."""
    key = PREFIX.pack(_KIND) + encode_struct(TransactionLogKey, 0, record.key)
    if record.value is None:
        return key, None
    return key, PREFIX.pack(version) + encode_struct(TransactionLogValue, version, record.value)


def decode(key: bytes | memoryview | None, value: bytes | memoryview | None) -> TransactionRecord:
    """The record in these bytes. Raises UnknownTransactionRecord, or MalformedMessage for invalid bytes."""
    if key is None:
        raise MalformedMessage(f"a record of {_TOPIC} has no key")
    kind, body = split_prefix(key, _TOPIC)
    if kind != _KIND:
        raise UnknownTransactionRecord(f"record kind {kind}")
    decoded_key = decode_struct(TransactionLogKey, 0, body)
    if value is None:
        return TransactionRecord(decoded_key, None)
    version, body = split_prefix(value, _TOPIC)
    if version not in TransactionLogValue.__versions__:
        raise UnknownTransactionRecord(f"TransactionLogValue version {version}")
    return TransactionRecord(decoded_key, decode_struct(TransactionLogValue, version, body))
