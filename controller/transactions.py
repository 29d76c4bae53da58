"""Metadata transactions: records that take effect together although they stand in several batches (KIP-868).

    (none) --BeginTransaction--> holding --EndTransaction--> all of them take effect, (none)
                                 holding --AbortTransaction--> none of them does, (none)

This controller writes one around the records that a cluster begins with, and around configurations that make more
ELRs void than fit in one batch; Kafka's may write others.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from protocol.metadata.image import InvalidMetadata
from protocol.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
)

TRANSACTION_MARKERS: Final = (BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord)

#: A record and the offset at which it stands.
Located = tuple[int, MetadataRecord]


class TransactionFilter:
    """Lets records through once it is known that they take effect."""

    def __init__(self) -> None:
        self._held: list[Located] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the end of a transaction is still to come."""
        return self._held is not None

    def take(self, located: Iterable[Located]) -> Iterator[Located]:
        """The records that take effect now. Raises InvalidMetadata if transactions overlap or lack their begin."""
        for offset, record in located:
            match record:
                case BeginTransactionRecord():
                    if self._held is not None:
                        raise InvalidMetadata(f"a transaction begins within another at offset {offset}")
                    self._held = []
                case EndTransactionRecord():
                    yield from self._close(offset)
                case AbortTransactionRecord():
                    self._close(offset)
                case _ if self._held is None:
                    yield offset, record
                case _:
                    self._held.append((offset, record))

    def _close(self, offset: int) -> list[Located]:
        if self._held is None:
            raise InvalidMetadata(f"a transaction ends at offset {offset}, but none has begun")
        held, self._held = self._held, None
        return held
