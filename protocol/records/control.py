"""Control records: transaction markers and KRaft's records, which brokers write into logs for each other.

The key is a version and a type, both int16. The value of a transaction marker is a version (int16) and the
coordinator epoch (int32); the values of the quorum's records are messages with Kafka's schemas (`quorum`).
Source: Kafka's ControlRecordType, EndTransactionMarker and ControlRecordUtils.
"""

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from ottla.protocol.errors import InvalidRecord
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.record import OF_MARKERS, Record, records

_KEY = Struct(">hh")
_END_TXN_VALUE = Struct(">hi")


class ControlRecordType(IntEnum):
    """The types of Kafka 4.3.1; readers skip other types."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


def control_key(record_type: ControlRecordType) -> bytes:
    """The key of a control record."""
    return _KEY.pack(0, record_type)


def control_type(key: bytes | None) -> ControlRecordType | None:
    """The type of a control record; None for an unknown type, of newer software.

    Raises InvalidRecord if `key` is not the key of a control record.
    """
    if key is None or len(key) < _KEY.size:
        raise InvalidRecord(f"Not the key of a control record: {key!r}")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise InvalidRecord(f"A control record's key of version {version}")
    try:
        return ControlRecordType(number)
    except ValueError:
        return None


class EndTransactionMarker(NamedTuple):
    """The end of one producer's transaction in one partition (KIP-98)."""

    is_commit: bool
    #: Epoch of the transaction coordinator that wrote it; markers of an older epoch are fenced.
    coordinator_epoch: int
    timestamp: int


def end_transaction_marker(batch: memoryview | bytes) -> EndTransactionMarker | None:
    """The marker in a control batch; None if compaction has removed the record.

    Raises InvalidRecord if the batch has anything else: no other control record belongs to a producer.
    """
    record = next(records(batch, OF_MARKERS), None)
    if record is None:
        return None
    record_type = control_type(record.key)
    if record_type not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        raise InvalidRecord(f"Not the end of a transaction: {record_type!r}")
    if record.value is None or len(record.value) < _END_TXN_VALUE.size:
        raise InvalidRecord(f"Not the value of a transaction marker: {record.value!r}")
    version, coordinator_epoch = _END_TXN_VALUE.unpack_from(record.value)
    if version < 0:
        raise InvalidRecord(f"A transaction marker of version {version}")
    return EndTransactionMarker(record_type is ControlRecordType.COMMIT, coordinator_epoch, record.timestamp)


def build_end_transaction_marker(
    marker: EndTransactionMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The control batch that ends a transaction."""
    # Readers would take it for a control batch of the quorum, and the transaction would stay open.
    assert producer_id >= 0, f"{producer_id=}"
    assert producer_epoch >= 0, f"{producer_epoch=}"
    record_type = ControlRecordType.COMMIT if marker.is_commit else ControlRecordType.ABORT
    value = _END_TXN_VALUE.pack(0, marker.coordinator_epoch)
    return build_batch(
        [Record(base_offset, marker.timestamp, control_key(record_type), value)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_control=True,
        is_transactional=True,
    )
