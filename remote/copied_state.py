"""The state of a log at the end of a copy: its leader epochs and its producers, as the copy's objects have them.

Both are checked: the epochs against the copy's metadata, the snapshot by its checksum. [any thread]
"""

from itertools import pairwise
from typing import Final

from ottla.remote.errors import IncompleteCopy
from ottla.remote.lineage import without_empty_epochs
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.storage_manager import IndexType, RemoteStorageManager
from ottla.storage import leader_epoch_cache, producer_snapshot
from ottla.storage.checkpoints import CorruptCheckpoint
from ottla.storage.leader_epoch_cache import EpochEntry, LeaderEpochCache
from ottla.storage.producer_snapshot import CorruptSnapshot

#: The largest index that is read, in bytes: the snapshot of 1.6 million producers.
MAX_INDEX_BYTES: Final = 64 * 1024 * 1024


def read_epochs(store: RemoteStorageManager, copy: RemoteLogSegmentMetadata) -> LeaderEpochCache:
    """Return the leader epochs up to the copy's end.

    Raises RemoteStorageError, also if they are not those of the copy.
    """
    try:
        entries = leader_epoch_cache.decode(read_index(store, copy, IndexType.LEADER_EPOCH))
    except CorruptCheckpoint as error:
        raise IncompleteCopy(f"{copy.segment_id}: its leader epochs are corrupt: {error}") from error
    for before, after in pairwise(entries):
        if not (before.epoch < after.epoch and before.start_offset < after.start_offset):
            raise IncompleteCopy(f"{copy.segment_id}: its leader epochs have {before}, then {after}")
    epochs = LeaderEpochCache(entries)
    of_copy = without_empty_epochs(copy.leader_epochs)
    for epoch, start_offset in (*of_copy, EpochEntry(of_copy[-1].epoch, copy.end_offset - 1)):
        if (known := epochs.epoch_for_offset(start_offset)) != epoch:
            raise IncompleteCopy(
                f"{copy.segment_id}: offset {start_offset} is of epoch {known} in its leader epochs, of {epoch} in its "
                "metadata"
            )
    return epochs


def read_snapshot(store: RemoteStorageManager, copy: RemoteLogSegmentMetadata) -> bytes:
    """Return the producer snapshot at the copy's end. Raises RemoteStorageError."""
    data = read_index(store, copy, IndexType.PRODUCER_SNAPSHOT)
    try:
        producer_snapshot.decode(data)
    except CorruptSnapshot as error:
        raise IncompleteCopy(f"{copy.segment_id}: its producer snapshot is corrupt: {error}") from error
    return data


def read_index(store: RemoteStorageManager, copy: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
    """Read one index of a copy completely from the store. Raises RemoteStorageError."""
    chunks: list[bytes] = []
    left = MAX_INDEX_BYTES
    stream = store.fetch_index(copy, index_type)
    try:
        while chunk := stream.read(left + 1):
            chunks.append(chunk)
            left -= len(chunk)
            if left < 0:
                raise IncompleteCopy(
                    f"{copy.segment_id}: its {index_type.value} is larger than {MAX_INDEX_BYTES} bytes"
                )
    finally:
        stream.close()
    return b"".join(chunks)
