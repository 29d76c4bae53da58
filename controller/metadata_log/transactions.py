"""Metadata transactions: records that take effect together although they are in several batches (KIP-868).

    (none) --BeginTransaction--> holding --EndTransaction--> all of them take effect, (none)
                                 holding --AbortTransaction--> none of them does, (none)

This controller writes one around the bootstrap records of a cluster, and around configurations that clear more
ELRs than fit in one batch; Kafka's may write others.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from ottla.metadata.image import InvalidMetadata
from ottla.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
)

TRANSACTION_MARKERS: Final = (BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord)

#: A record and its offset.
Located = tuple[int, MetadataRecord]


class TransactionFilter:
    """Holds the records of an open transaction back until it is known whether they take effect."""

    def __init__(self) -> None:
        self._held: list[Located] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a transaction has begun and not ended."""
        return self._held is not None

    def apply(self, located: Iterable[Located]) -> Iterator[Located]:
        """The records that take effect now. Raises InvalidMetadata if transactions overlap or lack their begin."""
        for offset, record in located:
            match record:
                case BeginTransactionRecord():
                    if self._held is not None:
                        raise InvalidMetadata(
                            f"a metadata transaction begins within another one at offset {offset}"
                        )
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
            raise InvalidMetadata(f"a metadata transaction ends at offset {offset}, but none has begun")
        held, self._held = self._held, None
        return held
