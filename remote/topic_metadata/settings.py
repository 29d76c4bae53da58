"""The `rlmm.config.*` settings of the topic-based manager: Kafka's names, defaults and limits.

Settings of Kafka's clients (`remote.log.metadata.common.client.*` and those of producer, consumer and admin)
are accepted and have no effect: the broker's own connections are used.

Source: TopicBasedRemoteLogMetadataManagerConfig of Kafka 4.3.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

_PREFIX: Final = "remote.log.metadata."


@dataclass(slots=True, frozen=True, kw_only=True)
class TopicSettings:
    """The settings with which the topic `__remote_log_metadata` is created."""

    partition_count: int = 50
    replication_factor: int = 3
    min_in_sync_replicas: int = 2
    #: The retention time of records; None: they are never removed.
    retention_ms: int | None = None

    @property
    def configs(self) -> Mapping[str, str]:
        """The configuration with which the topic is created.

        Each record is flushed by all in-sync replicas before it is acknowledged: a local segment is removed
        because of it.
        """
        return MappingProxyType(
            {
                "cleanup.policy": "delete",
                "retention.ms": str(-1 if self.retention_ms is None else self.retention_ms),
                "min.insync.replicas": str(self.min_in_sync_replicas),
                "flush.messages": "1",
                "remote.storage.enable": "false",
            }
        )


@dataclass(slots=True, frozen=True, kw_only=True)
class TopicMetadataSettings:
    """All settings of the topic-based metadata manager."""

    topic: TopicSettings
    #: The directory of `_rlmm_committed_offsets`.
    log_dir: Path
    #: remote.log.metadata.consume.wait.ms: the maximum time until a change is written and read back.
    consume_wait_ms: int = 120_000
    #: remote.log.metadata.initialization.retry.max.timeout.ms: after this time a failure is reported as an error.
    initialization_timeout_ms: int = 120_000
    #: remote.log.metadata.initialization.retry.interval.ms
    initialization_interval_ms: int = 100

    @classmethod
    def from_configs(cls, configs: Mapping[str, object]) -> Self:
        """Parse the settings. Raises ValueError with the name and the value."""
        if not configs.get("log.dir"):
            raise ValueError("log.dir is not set")
        retention_ms = _integer(configs, "topic.retention.ms", -1, at_least=-1)
        if retention_ms == 0:
            raise ValueError(f"{_PREFIX}topic.retention.ms is 0: set it to -1, or to more than 0")
        return cls(
            topic=TopicSettings(
                partition_count=_integer(configs, "topic.num.partitions", 50, at_least=1),
                replication_factor=_integer(configs, "topic.replication.factor", 3, at_least=1),
                min_in_sync_replicas=_integer(configs, "topic.min.isr", 2, at_least=1),
                retention_ms=None if retention_ms == -1 else retention_ms,
            ),
            log_dir=Path(str(configs["log.dir"])),
            consume_wait_ms=_integer(configs, "consume.wait.ms", 120_000, at_least=0),
            initialization_timeout_ms=_integer(
                configs, "initialization.retry.max.timeout.ms", 120_000, at_least=0
            ),
            initialization_interval_ms=_integer(configs, "initialization.retry.interval.ms", 100, at_least=0),
        )


def _integer(configs: Mapping[str, object], name: str, default: int, *, at_least: int) -> int:
    text = str(configs.get(_PREFIX + name, default)).strip()
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{_PREFIX}{name} is {text!r}, not an integer") from None
    if value < at_least:
        raise ValueError(f"{_PREFIX}{name} is {value}: set it to at least {at_least}")
    return value
