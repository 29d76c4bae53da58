"""TransactionLog: keys and values of `__transaction_state` <-> bytes.

A key starts with the number of its kind (int16, always 0), a value with the version of its schema (int16).
"""

from struct import Struct
from typing import Final, NamedTuple

from ottla.protocol.codec import decode_struct, encode_struct
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.transactions.records import TransactionLogKey, TransactionLogValue

_PREFIX = Struct(">h")
_KIND: Final = TransactionLogKey.__api_key__


class TransactionRecord(NamedTuple):
    """One record of `__transaction_state`; without a value it is a tombstone: the id has expired."""

    key: TransactionLogKey
    value: TransactionLogValue | None


class UnknownTransactionRecord(Exception):
    """A record of a kind or version that this broker does not know; a newer broker may have written it."""


def encode(record: TransactionRecord, *, version: int) -> tuple[bytes, bytes | None]:
    """Encode a record to (key, value or None). Kafka writes version 1 if transaction.version is 2, else 0."""
    key = _PREFIX.pack(_KIND) + encode_struct(TransactionLogKey, 0, record.key)
    if record.value is None:
        return key, None
    return key, _PREFIX.pack(version) + encode_struct(TransactionLogValue, version, record.value)


def decode(key: bytes | memoryview | None, value: bytes | memoryview | None) -> TransactionRecord:
    """The record in these bytes. Raises UnknownTransactionRecord, or MalformedMessage for invalid bytes."""
    if key is None:
        raise MalformedMessage("a record of __transaction_state has no key")
    kind, body = _split(key)
    if kind != _KIND:
        raise UnknownTransactionRecord(f"record kind {kind}")
    decoded_key = decode_struct(TransactionLogKey, 0, body)
    if value is None:
        return TransactionRecord(decoded_key, None)
    version, body = _split(value)
    if version not in TransactionLogValue.__versions__:
        raise UnknownTransactionRecord(f"TransactionLogValue version {version}")
    return TransactionRecord(decoded_key, decode_struct(TransactionLogValue, version, body))


def _split(data: bytes | memoryview) -> tuple[int, memoryview]:
    if len(data) < _PREFIX.size:
        raise MalformedMessage("a record of __transaction_state is shorter than its prefix")
    view = memoryview(data)
    return _PREFIX.unpack_from(view)[0], view[_PREFIX.size :]
