"""Snapshot generation: this node writes one after a number of bytes of the log, or after an interval (KIP-630).

Every node, brokers included, writes snapshots of its own log. The image is that of a listener of committed records:
the active controller's own image is ahead of what is committed.
Source: SnapshotGenerator and SnapshotEmitter of Kafka 4.3.1.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ottla.controller.metadata_log.log_cleaning import MetadataLogSettings, SnapshotTrigger
from ottla.controller.quorum.raft_client import RaftClient
from ottla.controller.raft.types import LeaderAndEpoch, OffsetAndEpoch
from ottla.metadata.image import InvalidMetadata, MetadataImage
from ottla.metadata.records import MetadataRecord
from ottla.runtime import Runtime

logger: Final = logging.getLogger(__name__)


class SnapshotGenerator:
    """A listener that starts snapshots. To be subscribed after the listener that updates the image."""

    def __init__(
        self,
        quorum: RaftClient,
        *,
        image: Callable[[], MetadataImage],
        settings: MetadataLogSettings,
        runtime: Runtime,
    ) -> None:
        self._quorum = quorum
        self._image = image
        self._runtime = runtime
        self._trigger = SnapshotTrigger(settings, now_ms=_now_ms(runtime))
        self._seen_bytes = 0

    def on_commit(self, records: Sequence[MetadataRecord], base_offset: int, end_offset: int) -> None:
        """Begin to write a snapshot if it is time, and no other one is being written."""
        size_bytes, self._seen_bytes = (
            self._quorum.applied_bytes - self._seen_bytes,
            self._quorum.applied_bytes,
        )
        reason = self._trigger.committed(size_bytes, _now_ms(self._runtime))
        if reason is None or self._image().metadata_version is None:
            return  # before the first records there is nothing to write, and no version to write it in
        try:
            if not self._quorum.write_snapshot(lambda: self._image().copy()):
                return
            logger.info("writing a snapshot of the metadata log up to offset %d: %s", end_offset, reason)
        except (OSError, InvalidMetadata) as error:
            # Retried when the next one is due, not with every record.
            logger.error("a snapshot of the metadata log cannot be started: %r", error)
        self._trigger.reset(_now_ms(self._runtime))

    def on_snapshot(self, batches: Iterable[list[MetadataRecord]], snapshot: OffsetAndEpoch) -> None:
        """Restart the count of bytes and the interval after a snapshot was loaded."""
        self._trigger.reset(_now_ms(self._runtime))

    def on_leader(self, leader: LeaderAndEpoch) -> None:
        """Nothing to do: leaders and followers write snapshots alike."""


def _now_ms(runtime: Runtime) -> int:
    """The time on the monotonic clock: a wall clock that steps back would put off the next snapshot."""
    return round(runtime.monotonic() * 1000)
