"""The aborted transactions of a part of a history (KIP-98): those with records in a range of offsets.

A transaction index has the transactions whose markers are in its segment, so those of later segments count,
too, up to the first entry that says that no later transaction begins before the end of the range. What a copy
has behind its piece is of another branch. Source: RemoteLogManager.collectAbortedTransactions of Kafka 4.3.1.
"""

from collections.abc import Callable, Iterable

from ottla.remote.history.partition_history import Piece
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.storage.transaction_index import AbortedTransaction

#: The entries of a copy's transaction index.
ReadIndex = Callable[[RemoteLogSegmentMetadata], Iterable[AbortedTransaction]]


def aborted_in(
    pieces: Iterable[Piece], read_index: ReadIndex, *, start_offset: int, end_offset: int
) -> tuple[AbortedTransaction, ...]:
    """Return the aborted transactions with records in [start_offset, end_offset), by their first offset.

    Raises RemoteStorageError.
    """
    found: set[AbortedTransaction] = set()
    for piece in pieces:
        if piece.end_offset <= start_offset or piece.copy.is_transaction_index_empty:
            continue
        for entry in read_index(piece.copy):
            if entry.last_offset >= piece.end_offset:
                break
            if entry.last_offset < max(start_offset, piece.start_offset):
                continue
            if entry.first_offset < end_offset:
                found.add(entry)
            if entry.last_stable_offset >= end_offset:
                return _sorted(found)
    return _sorted(found)


def _sorted(found: Iterable[AbortedTransaction]) -> tuple[AbortedTransaction, ...]:
    return tuple(sorted(found, key=lambda each: (each.first_offset, each.producer_id)))
