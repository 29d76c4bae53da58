"""TransactionLogKey and -Value, the only kind of record in `__transaction_state`: a transactional id and its state.

Source: the coordinator-key and coordinator-value schemas of Kafka 4.3.1's transaction coordinator.
"""

from dataclasses import field
from enum import IntEnum
from typing import ClassVar

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
