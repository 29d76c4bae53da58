"""Metadata log cleaning: when a snapshot is taken, and when the oldest one and the log before it are deleted.

    20 MiB of new records, or an hour ---> a snapshot; each replaces the log before it
    more than 100 MiB, or a week old ----> the oldest snapshot is deleted, and the log up to the next one

Rules only, no I/O. The newest snapshot is always kept, regardless of its size and age: it is what allows the log
before it to be deleted.
Source: KIP-630; SnapshotGenerator, MetadataLogConfig and KafkaRaftLog.maybeClean of Kafka 4.3.1.
"""

from dataclasses import dataclass
from typing import Final

_HOUR_MS: Final = 3_600_000
_WEEK_MS: Final = 7 * 24 * _HOUR_MS

#: How often to check whether something may be deleted; Kafka's.
CLEAN_INTERVAL_MS: Final = 60_000
#: Deleted files stay on the disk for so long, for their readers; the default of log.segment.delete.delay.ms.
DELETE_DELAY_MS: Final = 60_000
#: The largest batch of records, in the log and in snapshots; Kafka's MAX_BATCH_SIZE_BYTES.
MAX_BATCH_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataLogSettings:
    """The configuration of the metadata log: Kafka's `metadata.log.*` and `metadata.max.*` keys and defaults."""

    log_segment_bytes: int = 2**30
    log_segment_ms: int = _WEEK_MS
    #: Log and snapshots together; None: no bound.
    max_retention_bytes: int | None = 100 * 1024 * 1024
    #: Age of a snapshot's last record; None: no bound.
    max_retention_ms: int | None = _WEEK_MS
    max_record_bytes_between_snapshots: int = 20 * 1024 * 1024
    #: 0: no snapshot is taken because of age.
    max_snapshot_interval_ms: int = _HOUR_MS


def is_oversized(settings: MetadataLogSettings, *, log_bytes: int, snapshot_bytes: int) -> bool:
    """Whether the oldest of several snapshots must be deleted because of the total size."""
    bound = settings.max_retention_bytes
    return bound is not None and log_bytes + snapshot_bytes > bound


def is_expired(settings: MetadataLogSettings, *, last_timestamp_ms: int, now_ms: int) -> bool:
    """Whether the oldest of several snapshots must be deleted because of its age, which is that of its last record."""
    bound = settings.max_retention_ms
    return bound is not None and now_ms - last_timestamp_ms > bound


class SnapshotTrigger:
    """Decides when another snapshot is due. Times are of any clock that advances."""

    def __init__(self, settings: MetadataLogSettings, *, now_ms: int) -> None:
        self._settings = settings
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        """A snapshot is being taken, or was loaded."""
        self._bytes = 0
        self._since_ms = now_ms

    def committed(self, size_bytes: int, now_ms: int) -> str | None:
        """A committed batch was replayed: the reason to take a snapshot now, or None.

        No snapshot is due while nothing is committed: an idle log does not grow.
        """
        settings = self._settings
        self._bytes += size_bytes
        if self._bytes >= settings.max_record_bytes_between_snapshots:
            return f"there are {self._bytes} bytes of records since the last one"
        age_ms = now_ms - self._since_ms
        if 0 < settings.max_snapshot_interval_ms <= age_ms:
            return f"the last one is {age_ms // 1000} s old"
        return None
