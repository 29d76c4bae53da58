"""The first offset of a history whose record is not older than a time, as ListOffsets finds it (KIP-79, KIP-405)."""

from ottla.remote.history.copy_batches import CopyBatches
from ottla.remote.history.partition_history import PartitionHistory


def first_offset_at(history: PartitionHistory, batches: CopyBatches, timestamp_ms: int) -> int | None:
    """Return the first offset whose record is not older than `timestamp_ms`; None: all records are older.

    Reads two indexes and a part of one copy. Raises RemoteStorageError.
    """
    for piece in history.pieces:
        if piece.copy.max_timestamp_ms < timestamp_ms:
            continue
        found = batches.first_offset_at(
            piece.copy, timestamp_ms, start_offset=piece.start_offset, end_offset=piece.end_offset
        )
        if found is not None:
            return found
    return None
