"""New batches: a decision's records, encoded once, and split into batches that other nodes accept.

    records of a decision --batches_of--> NewBatch, ... --replay--> the state
                                                        '-MetadataLog.append-> the log

Source: appendRecords of QuorumController, and BatchAccumulator of Kafka 4.3.1.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ottla.controller.metadata_log.log_cleaning import MAX_BATCH_BYTES
from ottla.controller.metadata_log.record_versions import version_of
from ottla.metadata.frame import encode_record
from ottla.metadata.records import MetadataRecord
from ottla.protocol.errors import RecordListTooLarge
from ottla.protocol.records.batch import HEADER_SIZE_BYTES
from ottla.protocol.records.builder import payload_of_values

#: Largest number of records in a batch; decisions that need not be atomic are split. Kafka's MAX_RECORDS_PER_BATCH.
MAX_RECORDS_PER_BATCH: Final = 10_000
#: Bytes that a batch adds to a record, at most: six numbers, of which lengths and offset may take several bytes.
_RECORD_FRAME_BYTES: Final = 16


#: Encoded, or replayed, without a pause: a quarter of a millisecond.
RECORDS_OF_STEP: Final = 100


class NewBatch(NamedTuple):
    """Records that are appended as one batch, and their bytes in the log (`payload_of_values`)."""

    records: list[MetadataRecord]
    payload: bytes


def batches_of(
    records: Iterable[MetadataRecord], *, metadata_version: int, is_atomic: bool = False
) -> list[NewBatch]:
    """The records in batches that other nodes accept: a larger one would stop all of them.

    Raises RecordListTooLarge for a record that no batch holds, and for several batches where `is_atomic`.
    Cost: 2 us a record.
    """
    batches: list[NewBatch] = []
    for _ in batching(records, metadata_version=metadata_version, is_atomic=is_atomic, batches=batches):
        pass
    return batches


def batching(
    records: Iterable[MetadataRecord],
    *,
    metadata_version: int,
    is_atomic: bool,
    batches: list[NewBatch],
) -> Iterator[None]:
    """Encode the records, in steps of a few, and add them to `batches` in batches that other nodes accept.

    Raises RecordListTooLarge, as `batches_of`.
    """
    accumulated = _Accumulator()
    for number, record in enumerate(records, start=1):
        value = encode_record(record, version_of(record, metadata_version=metadata_version))
        if accumulated.records and not is_atomic and not accumulated.has_room_for(value):
            batches.append(accumulated.batch())
            accumulated = _Accumulator()
        if not accumulated.has_room_for(value):
            raise RecordListTooLarge(
                f"The request needs more metadata records than one atomic batch holds: at most {MAX_RECORDS_PER_BATCH} "
                f"records and {MAX_BATCH_BYTES} bytes. Split it into several requests."
            )
        accumulated.add(record, value)
        if number % RECORDS_OF_STEP == 0:
            accumulated.write()
            yield
    if accumulated.records:
        batches.append(accumulated.batch())


class _Accumulator:
    """The batch that is being encoded, to which further records are added."""

    def __init__(self) -> None:
        self.records: list[MetadataRecord] = []
        self._payload = bytearray()
        self._room_bytes = MAX_BATCH_BYTES - HEADER_SIZE_BYTES
        #: Values of the last records, which are not in the payload yet.
        self._values: list[bytes] = []

    def has_room_for(self, value: bytes) -> bool:
        return (
            len(value) + _RECORD_FRAME_BYTES <= self._room_bytes and len(self.records) < MAX_RECORDS_PER_BATCH
        )

    def add(self, record: MetadataRecord, value: bytes) -> None:
        self.records.append(record)
        self._values.append(value)
        self._room_bytes -= len(value) + _RECORD_FRAME_BYTES

    def write(self) -> None:
        values, self._values = self._values, []
        self._payload += payload_of_values(values, first_delta=len(self.records) - len(values))

    def batch(self) -> NewBatch:
        self.write()
        return NewBatch(self.records, bytes(self._payload))
