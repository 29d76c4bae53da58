"""Logs for tests of the judge itself, written as texts."""

from collections.abc import Iterator
from dataclasses import dataclass

from ottla.protocol.records.batch import BatchHeader, batches
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.control import EndTransactionMarker, build_end_transaction_marker


@dataclass
class Found:
    """A log from its local start on, one batch a letter: "a" is a transactional record of the first producer, "A" the
    abort of its transaction, "-" an offset that a crash has taken.
    """

    text: str
    start: int = 0

    @property
    def local_log_start_offset(self) -> int:
        return self.start

    @property
    def high_watermark(self) -> int:
        return len(self.text)

    @property
    def reader(self) -> "Found":
        return self

    def records_since(
        self, offset: int, *, end: int | None = None
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        last = len(self.text) if end is None else min(end, len(self.text))
        for position in range(offset, last):
            if self.text[position] == "-":
                continue
            yield from batches(memoryview(batch_of(self.text[position], position)))


def batch_of(letter: str, offset: int) -> bytes:
    producer_id = "abc".index(letter.lower())
    if letter.isupper():
        marker = EndTransactionMarker(is_commit=False, coordinator_epoch=0, timestamp=1)
        return build_end_transaction_marker(
            marker, producer_id=producer_id, producer_epoch=0, base_offset=offset
        )
    return build_batch(
        simple_records([(b"k", b"v")], timestamp=1, base_offset=offset),
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
