"""Topics and their partitions, as `ottla topics list` and `ottla topics describe` show them. Values only."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.broker.cli.output import Row, table
from ottla.broker.cluster_client.topics import is_internal
from ottla.broker.reports.health import LEADERLESS, UNDER_REPLICATED, partition_state
from ottla.protocol import kafka_uuid
from ottla.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic
from ottla.protocol.types import TopicPartition

UNKNOWN: Final = "-"


@dataclass(slots=True, frozen=True, kw_only=True)
class LogRange:
    """The offsets [start, end) of a partition's log in both tiers; None: its leader does not report them."""

    start: int | None = None
    end: int | None = None

    @property
    def count(self) -> int | None:
        """The number of offsets, which is that of records unless the log is compacted or has transactions."""
        return None if self.start is None or self.end is None else self.end - self.start


def state_of(partition: MetadataResponsePartition, *, min_isr: int | None = None) -> str:
    """The worst that can be said of a partition: leaderless, under min.insync.replicas, or under-replicated.

    >>> state_of(MetadataResponsePartition(leader_id=1, replica_nodes=[1, 2], isr_nodes=[1]))
    'under-replicated'
    """
    return partition_state(
        has_leader=partition.leader_id >= 0,
        replica_count=len(partition.replica_nodes),
        isr_count=len(partition.isr_nodes),
        min_isr=min_isr,
    )


def replication_factor(topic: MetadataResponseTopic) -> int:
    """The largest number of replicas of a partition; they differ while replicas are moved."""
    return max((len(each.replica_nodes) for each in topic.partitions), default=0)


def topic_row(topic: MetadataResponseTopic) -> Row:
    """One topic of `ottla topics list --json`."""
    states = [state_of(each) for each in topic.partitions]
    return {
        "kind": "topic",
        "topic": topic.name,
        "topic_id": kafka_uuid.to_text(topic.topic_id),
        "partitions": len(topic.partitions),
        "replication_factor": replication_factor(topic),
        "internal": is_internal(topic),
        "leaderless": states.count(LEADERLESS),
        "under_replicated": states.count(UNDER_REPLICATED),
    }


def list_lines(topics: Sequence[MetadataResponseTopic]) -> list[str]:
    """The table of `ottla topics list`.

    >>> list_lines([MetadataResponseTopic(name="orders", partitions=[MetadataResponsePartition(
    ...     leader_id=1, replica_nodes=[1], isr_nodes=[1])])])
    ['TOPIC   STATE    PARTITIONS  REPLICAS', 'orders  in sync           1         1']
    """
    rows = [
        (row["topic"], _state_text(row), str(row["partitions"]), str(row["replication_factor"]))
        for row in map(topic_row, topics)
    ]
    return table(("TOPIC", "STATE", "PARTITIONS", "REPLICAS"), rows, words=2)


def _state_text(row: Row) -> str:
    parts = [
        f"{row[key]} {name}"
        for key, name in (("leaderless", LEADERLESS), ("under_replicated", UNDER_REPLICATED))
        if row[key]
    ]
    return ", ".join(parts) or "in sync"


def partition_row(
    name: str, partition: MetadataResponsePartition, log: LogRange, *, min_isr: int | None
) -> Row:
    """One partition of `ottla topics describe --json`."""
    return {
        "partition": partition.partition_index,
        "leader": partition.leader_id if partition.leader_id >= 0 else None,
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replica_nodes),
        "isr": list(partition.isr_nodes),
        "offline": list(partition.offline_replicas),
        "state": state_of(partition, min_isr=min_isr),
        "log_start_offset": log.start,
        "log_end_offset": log.end,
    }


def described_row(
    topic: MetadataResponseTopic, configs: Mapping[str, str | None], logs: Mapping[TopicPartition, LogRange],
    *, min_isr: int | None,
) -> Row:  # fmt: skip
    """One topic of `ottla topics describe --json`, with its partitions."""
    name = topic.name or ""
    return topic_row(topic) | {
        "configs": dict(configs),
        "rows": [
            partition_row(
                name, each, logs.get(TopicPartition(name, each.partition_index), LogRange()), min_isr=min_isr
            )
            for each in sorted(topic.partitions, key=lambda row: row.partition_index)
        ],
    }


def described_lines(row: Row) -> Iterator[str]:
    """The lines of one topic of `ottla topics describe`."""
    yield (
        f"{row['topic']}  id {row['topic_id']}, partitions {row['partitions']}, "
        f"replicas {row['replication_factor']}" + (", internal" if row["internal"] else "")
    )
    for key, value in sorted(row["configs"].items()):
        yield f"  {key}={'(sensitive)' if value is None else value}"
    head = ("PARTITION", "STATE", "LEADER", "REPLICAS", "ISR", "LOG START", "LOG END", "OFFSETS")
    cells = [
        (
            str(each["partition"]),
            each["state"],
            _text(each["leader"]),
            _ids(each["replicas"]),
            _ids(each["isr"]),
            _text(each["log_start_offset"]),
            _text(each["log_end_offset"]),
            _text(LogRange(start=each["log_start_offset"], end=each["log_end_offset"]).count),
        )
        for each in row["rows"]
    ]
    yield from (f"  {line}" for line in table(head, cells, words=5))
    yield ""


def _text(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _ids(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids)) or UNKNOWN
