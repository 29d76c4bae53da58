"""LostFinishes: finishes complete copies whose COPY_SEGMENT_FINISHED is lost (`ottla.remote.only_copies`).

A copy that is not complete stays as it is, and is reported: `ottla tier verify` lists it, and its records are
in no tier.
"""

from collections.abc import Sequence
from logging import getLogger
from typing import Final

from ottla.protocol.kafka_uuid import to_text
from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.errors import DamagedSegment, IncompleteCopy, RemoteResourceNotFound
from ottla.remote.log_manager.metadata_changes import MetadataChanges
from ottla.remote.log_manager.partition_state import PartitionState
from ottla.remote.log_manager.segment_transfers import SegmentTransfers
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata

_LOG: Final = getLogger(__name__)


class LostFinishes:
    """Stores COPY_SEGMENT_FINISHED for unfinished copies whose objects are complete in the store."""

    def __init__(self, *, changes: MetadataChanges, transfers: SegmentTransfers) -> None:
        self._changes = changes
        self._transfers = transfers

    async def settle(self, state: PartitionState, copies: Sequence[RemoteLogSegmentMetadata]) -> None:
        """Verify each copy, and finish it or leave it. Raises errors that may be different next time."""
        for copy in copies:
            if not state.leads:
                return
            assert copy.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED, copy
            try:
                await self._transfers.verify(copy)
            except (RemoteResourceNotFound, IncompleteCopy, DamagedSegment) as error:
                state.left.add(copy.segment_id.id)
                _LOG.error(
                    "%s: the copy %s of [%d, %d) may be the only one of its records, and is not complete; "
                    "it is left as it is: %s",
                    state.id.topic_partition, to_text(copy.segment_id.id), copy.start_offset, copy.end_offset, error,
                )  # fmt: skip
                continue
            await self._changes.change(copy, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
            _LOG.warning(
                "%s: the copy %s of [%d, %d) is complete, and the record that it is finished was lost: "
                "it is finished now",
                state.id.topic_partition, to_text(copy.segment_id.id), copy.start_offset, copy.end_offset,
            )  # fmt: skip
