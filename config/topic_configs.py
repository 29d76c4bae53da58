"""Every topic configuration of Kafka 4.4.0, those of the draft KIP-1303, and their broker-wide defaults.

Source: org.apache.kafka.storage.internals.log.LogConfig and ServerTopicConfigSynonyms.
"""

from typing import NamedTuple

from ottla.config.config_def import ConfigDef, ConfigKey, ConfigType
from ottla.config.config_values import Between, Distinct, GzipLevel, OneOf, ThrottledReplicas
from ottla.protocol.records.record import MAX_RECORD_BYTES

__all__ = ["LEADER_PREFERENCE_CONFIGS", "SERVER_SYNONYMS", "TOPIC_CONFIGS", "ServerSynonym"]

MAX_LONG = 2**63 - 1
HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS

_AT_LEAST_0 = Between(0)
_AT_LEAST_1 = Between(1)
_BOOLEAN, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")

_KEYS = (
    ("segment.bytes", _INT, 2**30, Between(2**20), "Size at which a segment is closed and a new one begun."),
    ("segment.ms", _LONG, 7 * DAY_MS, _AT_LEAST_1, "Age at which a segment is closed even if it is not full."),
    ("segment.jitter.ms", _LONG, 0, _AT_LEAST_0,
     "Maximum random time subtracted from segment.ms, so that partitions do not all roll at once."),
    ("segment.index.bytes", _INT, 10 * 2**20, Between(4), "Maximum size of each offset index and time index."),
    ("flush.messages", _LONG, MAX_LONG, _AT_LEAST_1, "Number of records after which the log is flushed."),
    ("flush.ms", _LONG, MAX_LONG, _AT_LEAST_0, "Time after which the log is flushed."),
    ("retention.bytes", _LONG, -1, None,
     "Size of a partition beyond which its oldest segments are deleted; -1 is no limit."),
    ("retention.ms", _LONG, 7 * DAY_MS, Between(-1), "Age at which segments are deleted; -1 keeps them without limit."),
    ("max.message.bytes", _INT, 1048588, _AT_LEAST_0, "Size of the largest record batch accepted, as it is stored."),
    ("max.decompressed.message.bytes", _INT, MAX_RECORD_BYTES, Between(1, MAX_RECORD_BYTES),
     "Size of the largest record accepted in a compressed batch, decompressed (Kafka 4.4)."),
    ("index.interval.bytes", _INT, 4096, _AT_LEAST_0, "Bytes of log between two entries of the offset index."),
    ("delete.retention.ms", _LONG, DAY_MS, _AT_LEAST_0, "How long a compacted log keeps a deleted key's tombstone."),
    ("min.compaction.lag.ms", _LONG, 0, _AT_LEAST_0, "Minimum age at which compaction may remove a record."),
    ("max.compaction.lag.ms", _LONG, MAX_LONG, _AT_LEAST_1,
     "Age at which a record makes its log due for compaction, however small the dirty part is."),
    ("file.delete.delay.ms", _LONG, 60_000, _AT_LEAST_0,
     "Pause between a segment's removal from the log and from the disk."),
    ("min.cleanable.dirty.ratio", ConfigType.DOUBLE, 0.5, Between(0, 1),
     "Share of not yet compacted bytes that makes a log due for compaction."),
    ("cleanup.policy", ConfigType.LIST, ("delete",), Distinct(("compact", "delete")),
     "What happens to old segments: delete removes them, compact keeps each key's last record."),
    ("unclean.leader.election.enable", _BOOLEAN, False, None,
     "Whether a replica outside the ISR may be elected if no other can lead; records may be lost."),
    ("min.insync.replicas", _INT, 1, _AT_LEAST_1, "In-sync replicas that a write with acks=all needs to be accepted."),
    ("compression.type", ConfigType.STRING, "producer", OneOf(COMPRESSION_TYPES),
     "Codec that batches are stored in; producer keeps what was sent."),
    ("compression.gzip.level", _INT, -1, GzipLevel(), "Effort of gzip, where the broker compresses."),
    ("compression.lz4.level", _INT, 9, Between(1, 17), "Effort of lz4, where the broker compresses."),
    ("compression.zstd.level", _INT, 3, Between(-131072, 22), "Effort of zstd, where the broker compresses."),
    ("preallocate", _BOOLEAN, False, None, "Whether a new segment's file is preallocated."),
    ("message.timestamp.type", ConfigType.STRING, "CreateTime", OneOf(TIMESTAMP_TYPES),
     "Timestamp of a record: the producer's, or the broker's when it appends."),
    ("message.timestamp.before.max.ms", _LONG, MAX_LONG, _AT_LEAST_0,
     "How far a producer's timestamp may be before the broker's clock."),
    ("message.timestamp.after.max.ms", _LONG, HOUR_MS, _AT_LEAST_0,
     "How far a producer's timestamp may be after the broker's clock."),
    ("leader.replication.throttled.replicas", ConfigType.LIST, (), ThrottledReplicas(),
     "Replicas that leaders serve within the throttled rate, as partition:broker pairs or * for all."),
    ("follower.replication.throttled.replicas", ConfigType.LIST, (), ThrottledReplicas(),
     "Replicas that fetch within the throttled rate, as partition:broker pairs or * for all."),
    ("remote.storage.enable", _BOOLEAN, False, None,
     "Whether closed segments are copied to the remote tier (KIP-405)."),
    ("local.retention.ms", _LONG, -2, Between(-2),
     "Age at which a tiered segment's local copy is deleted; -2 follows retention.ms."),
    ("local.retention.bytes", _LONG, -2, Between(-2),
     "Size of local segments beyond which tiered ones are deleted; -2 follows retention.bytes."),
    ("remote.copy.lag.ms", _LONG, 0, Between(-1),
     "Age from which a closed segment is copied; 0 is at once, -1 follows local.retention.ms (KIP-1241)."),
    ("remote.copy.lag.bytes", _LONG, -1, Between(-1),
     "Newer bytes from which it is copied, too; 0 is at once, -1 follows local.retention.bytes (KIP-1241)."),
    ("remote.log.copy.disable", _BOOLEAN, False, None,
     "Stops copying to the remote tier; what is there stays readable (KIP-950)."),
    ("remote.log.delete.on.disable", _BOOLEAN, False, None,
     "Whether the records in the remote tier are deleted when tiering is disabled (KIP-950)."),
    ("leader.election.prefer.early.local.log.start.offset", _BOOLEAN, False, None,
     "Whether elections prefer replicas with an early local log start; tiered topics only (draft KIP-1303)."),
    ("leader.election.local.log.start.offset.threshold", _LONG, 10_000, _AT_LEAST_0,
     ("Difference of local log starts from which an election that prefers early ones distinguishes replicas "
      "(draft KIP-1303).")),
    ("leader.election.eligible.local.log.ms", _LONG, -1, Between(-1),
     ("Age of a replica's oldest local record from which elections prefer it; tiered topics only, -1 is off "
      "(draft KIP-1303).")),
    ("leader.election.eligible.local.log.bytes", _LONG, -1, Between(-1),
     "Size of a replica's local log from which elections prefer it; tiered topics only, -1 is off (draft KIP-1303)."),
)  # fmt: skip

#: What `LeaderPreference` is made of. The broker's keys have the same names.
LEADER_PREFERENCE_CONFIGS = (
    "leader.election.prefer.early.local.log.start.offset",
    "leader.election.local.log.start.offset.threshold",
    "leader.election.eligible.local.log.ms",
    "leader.election.eligible.local.log.bytes",
)

#: All topic configurations, with the defaults for keys that the broker's properties do not set.
TOPIC_CONFIGS = ConfigDef(
    [
        *(ConfigKey(name, type_, default, text, check=check) for name, type_, default, check, text in _KEYS),
        ConfigKey(
            "internal.segment.bytes",
            _INT,
            None,
            "Segment size without a lower bound, for tests.",
            is_internal=True,
        ),
    ]
)


class ServerSynonym(NamedTuple):
    """A broker key that may give a topic's default; its number times `factor` is the topic's."""

    name: str
    factor: int = 1


def _of(*names: str) -> tuple[ServerSynonym, ...]:
    return tuple(
        ServerSynonym(
            name, HOUR_MS if name.endswith(".hours") else 60_000 if name.endswith(".minutes") else 1
        )
        for name in names
    )


#: For each topic configuration, its broker keys: the first one that is set applies.
SERVER_SYNONYMS: dict[str, tuple[ServerSynonym, ...]] = {
    "segment.bytes": _of("log.segment.bytes"),
    "segment.ms": _of("log.roll.ms", "log.roll.hours"),
    "segment.jitter.ms": _of("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "segment.index.bytes": _of("log.index.size.max.bytes"),
    "flush.messages": _of("log.flush.interval.messages"),
    "flush.ms": _of("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    "retention.bytes": _of("log.retention.bytes"),
    "retention.ms": _of("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "max.message.bytes": _of("message.max.bytes"),
    "max.decompressed.message.bytes": _of("max.decompressed.message.bytes"),
    "index.interval.bytes": _of("log.index.interval.bytes"),
    "delete.retention.ms": _of("log.cleaner.delete.retention.ms"),
    "min.compaction.lag.ms": _of("log.cleaner.min.compaction.lag.ms"),
    "max.compaction.lag.ms": _of("log.cleaner.max.compaction.lag.ms"),
    "file.delete.delay.ms": _of("log.segment.delete.delay.ms"),
    "min.cleanable.dirty.ratio": _of("log.cleaner.min.cleanable.ratio"),
    "cleanup.policy": _of("log.cleanup.policy"),
    "unclean.leader.election.enable": _of("unclean.leader.election.enable"),
    "min.insync.replicas": _of("min.insync.replicas"),
    "compression.type": _of("compression.type"),
    "compression.gzip.level": _of("compression.gzip.level"),
    "compression.lz4.level": _of("compression.lz4.level"),
    "compression.zstd.level": _of("compression.zstd.level"),
    "preallocate": _of("log.preallocate"),
    "message.timestamp.type": _of("log.message.timestamp.type"),
    "message.timestamp.before.max.ms": _of("log.message.timestamp.before.max.ms"),
    "message.timestamp.after.max.ms": _of("log.message.timestamp.after.max.ms"),
    "local.retention.ms": _of("log.local.retention.ms"),
    "local.retention.bytes": _of("log.local.retention.bytes"),
    "remote.copy.lag.ms": _of("log.remote.copy.lag.ms"),
    "remote.copy.lag.bytes": _of("log.remote.copy.lag.bytes"),
    **{name: _of(name) for name in LEADER_PREFERENCE_CONFIGS},
}
