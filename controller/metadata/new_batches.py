"""New batches: a decision's records, encoded once, and split into batches that other nodes accept.

    records of a decision --batches_of--> NewBatch, ... --replay--> the state
                                                        '-MetadataLog.append-> the log

Source: appendRecords of QuorumController, and BatchAccumulator of Kafka 4.3.1.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from controller.metadata.log_cleaning import MAX_BATCH_BYTES
from controller.metadata.record_versions import version_of
from protocol.errors import RecordListTooLarge
from protocol.metadata.frame import encode_record
from protocol.metadata.records import MetadataRecord
from protocol.records.batch import HEADER_SIZE_BYTES

#: Largest number of records in a batch; decisions that need not be atomic are split. Kafka's MAX_RECORDS_PER_BATCH.
MAX_RECORDS_PER_BATCH: Final = 10_000
#: Bytes that a batch adds to a record, at most: six numbers, of which lengths and offset may take several bytes.
_RECORD_FRAME_BYTES: Final = 16


class NewBatch(NamedTuple):
    """Records that are appended as one batch, and their values in the log."""

    records: list[MetadataRecord]
    values: list[bytes]


def batches_of(
    records: Iterable[MetadataRecord], *, metadata_version: int, is_atomic: bool = False
) -> list[NewBatch]:
    """The records in batches that other nodes accept: a larger one would stop all of them.

    Raises RecordListTooLarge for a record that no batch holds, and for several batches where `is_atomic`.
    Cost: 1.5 us a record.
    """
    batches: list[NewBatch] = []
    batch = NewBatch([], [])
    room_bytes = 0
    for record in records:
        value = encode_record(record, version_of(record, metadata_version=metadata_version))
        size_bytes = len(value) + _RECORD_FRAME_BYTES
        if size_bytes > room_bytes or len(batch.records) == MAX_RECORDS_PER_BATCH:
            batch = NewBatch([], [])
            batches.append(batch)
            room_bytes = MAX_BATCH_BYTES - HEADER_SIZE_BYTES
        batch.records.append(record)
        batch.values.append(value)
        room_bytes -= size_bytes
        if room_bytes < 0 or (is_atomic and len(batches) > 1):
            raise RecordListTooLarge(
                f"The request needs more metadata records than one atomic batch holds: at most {MAX_RECORDS_PER_BATCH} "
                f"records and {MAX_BATCH_BYTES} bytes. Split it into several requests."
            )
    return batches
