"""When this node writes a snapshot of the metadata: after so many bytes of the log, or after so long (KIP-630).

Every node does it by itself, brokers too, each for its own log. What is written is the image of a follower of the
log: the active controller's own image is ahead of what is committed.
Source: SnapshotGenerator and SnapshotEmitter of Kafka 4.3.1.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from controller.log_cleaning import MetadataLogSettings, SnapshotTrigger
from controller.raft.quorum import Quorum
from controller.raft.types import LeaderAndEpoch, OffsetAndEpoch
from protocol.metadata.image import InvalidMetadata, MetadataImage
from protocol.metadata.records import MetadataRecord

logger: Final = logging.getLogger(__name__)


class Snapshotter:
    """A listener that has snapshots written. Subscribed behind the one that keeps the image up to date."""

    def __init__(
        self,
        quorum: Quorum,
        *,
        image: Callable[[], MetadataImage],
        settings: MetadataLogSettings,
        now_ms: Callable[[], int],
    ) -> None:
        self._quorum = quorum
        self._image = image
        self._now_ms = now_ms
        self._trigger = SnapshotTrigger(settings, now_ms=now_ms())
        self._seen_bytes = 0

    def on_commit(self, records: Sequence[MetadataRecord], base_offset: int, end_offset: int) -> None:
        """Begin to write a snapshot if it is time, and no other one is being written."""
        size_bytes, self._seen_bytes = self._quorum.told_bytes - self._seen_bytes, self._quorum.told_bytes
        reason = self._trigger.committed(size_bytes, self._now_ms())
        if reason is None or self._image().metadata_version is None:
            return  # before the first records a snapshot would say nothing, and in no version
        try:
            if not self._quorum.write_snapshot(lambda: self._image().copy()):
                return
            logger.info("writing a snapshot of the metadata before offset %d: %s", end_offset, reason)
        except (OSError, InvalidMetadata) as error:
            # Later again, not with every record from here on.
            logger.error("a snapshot of the metadata cannot be written: %r", error)
        self._trigger.reset(self._now_ms())

    def on_snapshot(self, chunks: Iterable[list[MetadataRecord]], snapshot: OffsetAndEpoch) -> None:
        """There is one already."""
        self._trigger.reset(self._now_ms())

    def on_leader(self, leader: LeaderAndEpoch) -> None:
        """Snapshots are everybody's own."""
