"""LogConfig: the typed configuration of a topic's logs, and the validation of topic configurations.

A log uses a `LogConfig`; the controller calls `validate_topic_configs` before it writes overrides to the
metadata log.
Source: org.apache.kafka.storage.internals.log.LogConfig of Kafka 4.3.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ottla.config.config_def import ConfigValue, InvalidConfigValue
from ottla.config.topic_configs import (
    DAY_MS,
    HOUR_MS,
    MAX_LONG,
    SERVER_SYNONYMS,
    TOPIC_CONFIGS,
    ServerSynonym,
)
from ottla.metadata.leader_preference import NO_PREFERENCE, LeaderPreference
from ottla.protocol.errors import InvalidConfig
from ottla.protocol.records.record import MAX_RECORD_BYTES

__all__ = [
    "SERVER_SYNONYMS", "TOPIC_CONFIGS", "LogConfig", "ServerSynonym", "default_topic_values",
    "validate_topic_configs",
]  # fmt: skip

#: Longest value of one configuration: the metadata record's string length is a 16-bit number.
MAX_VALUE_LENGTH = 2**15 - 1

#: Keys for which a negative number means that there is no bound.
_BOUNDS = (
    "retention.bytes", "retention.ms", "local.retention.ms", "local.retention.bytes",
    "remote.copy.lag.ms", "remote.copy.lag.bytes",
    "leader.election.eligible.local.log.ms", "leader.election.eligible.local.log.bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The configuration of one topic's logs; each field is the key of the same name with dots.

    Sizes are bytes, times milliseconds. A retention without limit is None.
    """

    segment_bytes: int = 2**30
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 2**20
    flush_messages: int = MAX_LONG
    flush_ms: int = MAX_LONG
    retention_bytes: int | None = None
    retention_ms: int | None = 7 * DAY_MS
    max_message_bytes: int = 1048588
    max_decompressed_message_bytes: int = MAX_RECORD_BYTES
    index_interval_bytes: int = 4096
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = MAX_LONG
    file_delete_delay_ms: int = 60_000
    min_cleanable_dirty_ratio: float = 0.5
    cleanup_policy: tuple[str, ...] = ("delete",)
    unclean_leader_election_enable: bool = False
    min_insync_replicas: int = 1
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    preallocate: bool = False
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = MAX_LONG
    message_timestamp_after_max_ms: int = HOUR_MS
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    follower_replication_throttled_replicas: tuple[str, ...] = ()
    remote_storage_enable: bool = False
    #: None: no bound of its own, so that retention_ms applies. -2 has this meaning; -1 is accepted on a
    #: tiered topic only if retention_ms has no limit either. See the `effective_local_` properties.
    local_retention_ms: int | None = None
    local_retention_bytes: int | None = None
    #: None: the effective local retention. See the `effective_` properties.
    remote_copy_lag_ms: int | None = 0
    remote_copy_lag_bytes: int | None = None
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    leader_election_prefer_early_local_log_start_offset: bool = False
    leader_election_local_log_start_offset_threshold: int = 10_000
    leader_election_eligible_local_log_ms: int | None = None
    leader_election_eligible_local_log_bytes: int | None = None

    @classmethod
    def from_values(cls, values: Mapping[str, ConfigValue]) -> Self:
        """Create a configuration from parsed topic configurations; missing keys have Kafka's defaults."""
        fields: dict[str, Any] = {}
        for name, value in values.items():
            if name in _BOUNDS and isinstance(value, int) and value < 0:
                value = None
            fields[name.replace(".", "_")] = value
        if internal := fields.pop("internal_segment_bytes", None):
            fields["segment_bytes"] = internal
        return cls(**fields)

    @classmethod
    def from_overrides(cls, defaults: Mapping[str, ConfigValue], overrides: Mapping[str, str]) -> Self:
        """The effective configuration of a topic: its overrides over the broker's values (BrokerConfig.topic_defaults).

        Overrides were validated when they were set, but perhaps by another version: an unknown
        one is ignored, and one that cannot be parsed raises InvalidConfigValue.
        """
        parsed = {
            name: TOPIC_CONFIGS[name].parse(text) for name, text in overrides.items() if name in TOPIC_CONFIGS
        }
        return cls.from_values({**defaults, **parsed})

    @property
    def is_compacted(self) -> bool:
        """Whether compaction applies; may be true together with `is_deleting`.

        Never to a tiered topic (KIP-405). Its own `cleanup.policy` has no `compact`, but that of the broker
        may become its default. Kafka 4.3.1 then takes the topic for one that is not tiered: its log start
        passes what only the remote tier has, and expiration deletes every copy.
        """
        return "compact" in self.cleanup_policy and not self.remote_storage_enable

    @property
    def is_deleting(self) -> bool:
        """Whether retention deletes old segments (cleanup.policy contains delete)."""
        return "delete" in self.cleanup_policy

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker's time replaces the producer's."""
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def max_segment_ms(self) -> int:
        """Age at which the active segment is rolled; only closed segments are compacted."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def compression_level(self) -> int | None:
        """The level for `compression_type`; None if that has no levels."""
        match self.compression_type:
            case "gzip":
                return self.compression_gzip_level
            case "lz4":
                return self.compression_lz4_level
            case "zstd":
                return self.compression_zstd_level
            case _:
                return None

    @property
    def is_tiered(self) -> bool:
        """Whether closed segments are copied to the remote tier (KIP-405).

        The topic's own configuration decides; there is no broker-wide default.
        """
        return self.remote_storage_enable

    @property
    def total_retention_ms(self) -> int | None:
        """Age at which records expire in both tiers; None is never, as without `cleanup.policy=delete`."""
        return self.retention_ms if self.is_deleting else None

    @property
    def total_retention_bytes(self) -> int | None:
        """Size of both tiers beyond which records expire; None is without limit, as without `cleanup.policy=delete`."""
        return self.retention_bytes if self.is_deleting else None

    @property
    def effective_local_retention_ms(self) -> int | None:
        """Age at which a tiered segment's local copy is removed; None is never."""
        return self.retention_ms if self.local_retention_ms is None else self.local_retention_ms

    @property
    def effective_remote_copy_lag_ms(self) -> int | None:
        """Age from which a closed segment is copied to the remote tier; None: its age is not asked (KIP-1241)."""
        lag_ms = self.remote_copy_lag_ms
        return self.effective_local_retention_ms if lag_ms is None else lag_ms

    @property
    def effective_remote_copy_lag_bytes(self) -> int | None:
        """Bytes of newer local records from which a closed segment is copied; None: they are not asked (KIP-1241)."""
        lag_bytes = self.remote_copy_lag_bytes
        return self.effective_local_retention_bytes if lag_bytes is None else lag_bytes

    @property
    def effective_local_retention_bytes(self) -> int | None:
        """Local size beyond which tiered segments are removed; None is without limit."""
        return self.retention_bytes if self.local_retention_bytes is None else self.local_retention_bytes

    @property
    def leader_preference(self) -> LeaderPreference:
        """The preference of elections for replicas with enough local data; tiered topics only (draft KIP-1303)."""
        if not self.is_tiered:
            return NO_PREFERENCE
        return LeaderPreference(
            prefers_early_start=self.leader_election_prefer_early_local_log_start_offset,
            start_offset_threshold=self.leader_election_local_log_start_offset_threshold,
            eligible_local_ms=self.leader_election_eligible_local_log_ms,
            eligible_local_bytes=self.leader_election_eligible_local_log_bytes,
        )


def default_topic_values() -> dict[str, ConfigValue]:
    """Kafka's own defaults, for keys that the broker's properties do not set."""
    return {name: key.default for name, key in TOPIC_CONFIGS.items() if not key.is_internal}


def validate_topic_configs(
    overrides: Mapping[str, str | None],
    *,
    defaults: Mapping[str, ConfigValue] | None = None,
    existing: Mapping[str, str] | None = None,
    is_remote_storage_system_enabled: bool = False,
) -> None:
    """Validate all overrides that a topic would have, not only the changed ones.

    `defaults` are the broker's values, `existing` the current overrides. Raises InvalidConfig for
    unknown keys, nulls and values that contradict each other, InvalidConfigValue for single values.
    Source: LogConfig.validate and ControllerConfigurationValidator.
    """
    values = dict(default_topic_values() if defaults is None else defaults)
    if nulls := [name for name, text in overrides.items() if text is None]:
        raise InvalidConfig(f"Null value not supported for topic configs: {','.join(nulls)}")
    for name, text in overrides.items():
        if name not in TOPIC_CONFIGS:
            raise InvalidConfig(f"Unknown topic config name: {name}")
        assert text is not None
        if len(text) > MAX_VALUE_LENGTH:
            raise InvalidConfig(f"The value of {name} is longer than {MAX_VALUE_LENGTH} characters.")
        values[name] = TOPIC_CONFIGS[name].parse(text)
    check_topic_values(values)
    if values["remote.storage.enable"]:
        _check_tiered(values, is_remote_storage_system_enabled)
    elif _was_tiered(existing or {}) and not values["remote.log.delete.on.disable"]:
        raise InvalidConfig(
            "Disabling remote storage would leave its data behind. To keep the data readable set "
            "remote.storage.enable=true and remote.log.copy.disable=true; to delete it set "
            "remote.storage.enable=false and remote.log.delete.on.disable=true."
        )


def check_topic_values(values: Mapping[str, ConfigValue]) -> None:
    """Check relations between values that hold with and without tiering, for topics and for a broker's defaults."""
    min_lag, max_lag = _number(values, "min.compaction.lag.ms"), _number(values, "max.compaction.lag.ms")
    if min_lag > max_lag:
        raise InvalidConfig(
            f"min.compaction.lag.ms ({min_lag}) must not be above max.compaction.lag.ms ({max_lag})."
        )


def check_local_retention(values: Mapping[str, ConfigValue], *, prefix: str = "") -> None:
    """Check that an explicit local retention is within the whole retention (KIP-405).

    `prefix` is prepended to the keys in error messages: `log.` for a broker's own configuration.
    """
    for whole_name in ("retention.bytes", "retention.ms"):
        whole, local = _number(values, whole_name), _number(values, f"local.{whole_name}")
        if whole >= 0 and local != -2 and not 0 <= local <= whole:
            allowed = f"between 0 and {prefix}{whole_name} ({whole}), or -2"
            raise InvalidConfigValue(f"{prefix}local.{whole_name}", local, allowed)


def check_copy_lag(values: Mapping[str, ConfigValue], *, prefix: str = "") -> None:
    """Check that segments are copied before they are due for removal from the local tier (KIP-1241).

    `prefix` is prepended to the keys in error messages: `log.` for a broker's own configuration.
    Source: LogConfig.validateRemoteCopyLagTime and validateRemoteCopyLagSize.
    """
    for unit in ("ms", "bytes"):
        name, lag = f"remote.copy.lag.{unit}", _number(values, f"remote.copy.lag.{unit}")
        local = _number(values, f"local.retention.{unit}")
        if local == -2:
            local = _number(values, f"retention.{unit}")
        if lag > 0 and 0 <= local < lag:
            allowed = f"at most local.retention.{unit} (effective value: {local}), 0 or -1"
            raise InvalidConfigValue(f"{prefix}{name}", lag, allowed)


def _check_tiered(values: Mapping[str, ConfigValue], is_system_enabled: bool) -> None:
    if not is_system_enabled:
        raise InvalidConfig(
            "remote.storage.enable=true needs a broker with remote.log.storage.system.enable=true: "
            "Tiered Storage functionality is disabled in the broker."
        )
    if values["cleanup.policy"] not in ((), ("delete",)):
        raise InvalidConfig("remote.storage.enable=true needs cleanup.policy to be delete, or empty.")
    check_local_retention(values)
    check_copy_lag(values)
    if values["remote.log.copy.disable"]:
        for whole_name in ("retention.bytes", "retention.ms"):
            local = values[f"local.{whole_name}"]
            if local not in (-2, values[whole_name]):
                raise InvalidConfig(
                    f"remote.log.copy.disable=true needs local.{whole_name} ({local}) to be {whole_name} "
                    f"({values[whole_name]}) or -2, since nothing more is copied to the remote tier."
                )


def _was_tiered(existing: Mapping[str, str]) -> bool:
    """Whether a topic with these overrides is tiered; one that is not boolean was never in effect."""
    try:
        return TOPIC_CONFIGS["remote.storage.enable"].parse(existing["remote.storage.enable"]) is True
    except (KeyError, InvalidConfigValue):
        return False


def _number(values: Mapping[str, ConfigValue], name: str) -> int:
    value = values[name]
    assert isinstance(value, int), (name, value)
    return value
