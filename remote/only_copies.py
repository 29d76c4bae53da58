"""Unfinished copies that may be the only ones of their records, since the record that they are finished may be lost.

`__remote_log_metadata` may lose its last records: in a power cut of all its replicas, or of its only one. A
local segment that was removed before does not come back. So a copy in COPY_SEGMENT_STARTED is deleted only if
the leader's log shows that no reader needs it; else its objects are verified, and it is finished if they are complete.

    log start      local log start
        |                 |
        [== remote only ==|== local segments ===
      [a]  [b]  [c]      [d]
           [F]
    a   before the log start       deleted
    b   F is finished, and has it  deleted
    c   no other copy has it       verified, and finished or left as it is; so is a copy that begins before the
                                   local log start, as far as it is of this log's lineage
    d   the local log has it       deleted: it is copied again
"""

from collections.abc import Sequence
from contextlib import closing

from ottla.protocol.kafka_uuid import to_text
from ottla.remote.checked_copies import check_batches
from ottla.remote.copied_state import read_epochs, read_index, read_snapshot
from ottla.remote.errors import IncompleteCopy
from ottla.remote.lineage import common_ranges
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.storage_manager import IndexType, RemoteStorageManager
from ottla.storage.leader_epoch_cache import EpochEntry


def may_be_only_copy(
    copy: RemoteLogSegmentMetadata,
    copies: RemoteLogMetadataCache,
    *,
    lineage: Sequence[EpochEntry],
    log_start_offset: int,
    local_log_start_offset: int,
) -> bool:
    """Whether an unfinished copy has records of this log that neither its local segments nor finished copies have.

    `lineage` is not empty, and has no empty epochs. Where it does not begin at the log start, older epochs
    count as its own. Cost: O(epochs of the copy, and finished copies within it).
    """
    for epoch, start, of_log in common_ranges(copy, lineage, log_start_offset=log_start_offset):
        end = min(of_log, local_log_start_offset)
        if start < end and copies.covered_until(epoch=epoch, offset=start) < end:
            return True
    return False


def verify_copy(store: RemoteStorageManager, copy: RemoteLogSegmentMetadata) -> None:
    """Read all objects of a copy, and compare them with its metadata; return if the copy is complete. [any thread]

    Memory: a MiB, one batch, or one index. Raises IncompleteCopy, DamagedSegment or RemoteResourceNotFound if it is not
    complete, and other errors of the store.
    """
    read_epochs(store, copy)
    read_snapshot(store, copy)
    read_index(store, copy, IndexType.OFFSET)
    read_index(store, copy, IndexType.TIMESTAMP)
    if not copy.is_transaction_index_empty:
        read_index(store, copy, IndexType.TRANSACTION)
    if not copy.segment_size_bytes:
        raise IncompleteCopy(f"{copy.segment_id}: its log has no batches")
    with closing(store.fetch_log_segment(copy, start_position=0)) as stream:
        check_batches(copy, lambda size, _: stream.read(size), of=f"the copy {to_text(copy.segment_id.id)}")
        if stream.read(1):
            raise IncompleteCopy(f"{copy.segment_id}: its log is longer than {copy.segment_size_bytes} bytes")
