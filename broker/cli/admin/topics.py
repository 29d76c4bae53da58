"""Requests of `ottla topics`: what is asked of a cluster, and the sentences of its refusals."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.broker.cli.admin.configs import Change, Resource, altered, described, overrides
from ottla.broker.cli.admin.topic_rows import LogRange, described_row
from ottla.broker.cli.bootstrap import existing_topics
from ottla.broker.cli.output import Row
from ottla.broker.cli.similar import similar
from ottla.broker.cluster_client.client import ClusterClient
from ottla.broker.cluster_client.errors import ClusterError, error_name
from ottla.broker.cluster_client.topics import is_internal, leaders_of
from ottla.broker.reports.words import counted
from ottla.config.config_def import ConfigSource
from ottla.config.topic_configs import TOPIC_CONFIGS
from ottla.metadata.image import ConfigResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from ottla.protocol.special_timestamps import EARLIEST, LATEST
from ottla.protocol.types import TopicPartition

#: The number of partitions, or of replicas, that the broker's own defaults determine.
_DEFAULT: Final = -1
_MIN_ISR: Final = "min.insync.replicas"


@dataclass(slots=True, frozen=True, kw_only=True)
class Outcome:
    """The outcome for one of several topics: done, left as it was, or the sentence of the refusal."""

    topic: str
    #: "created", "exists already", "deleted": for the reader.
    done: str | None = None
    error: str | None = None
    partitions: int | None = None
    replication_factor: int | None = None


async def listed_topics(client: ClusterClient, *, has_internal: bool) -> list[MetadataResponseTopic]:
    """All topics in the order of their names. Raises ClusterError."""
    return shown_topics(await client.metadata(), has_internal=has_internal)


def shown_topics(metadata: MetadataResponse, *, has_internal: bool) -> list[MetadataResponseTopic]:
    """The topics that exist, in the order of their names, with or without internal ones."""
    return sorted(
        (each for each in metadata.topics if not each.error_code and (has_internal or not is_internal(each))),
        key=lambda each: each.name or "",
    )


async def described_topics(client: ClusterClient, names: Sequence[str], *, has_internal: bool) -> list[Row]:
    """These topics, or all, with their own configurations and the offsets of their logs. Raises ClusterError."""
    metadata = await existing_topics(client, names)
    topics = shown_topics(metadata, has_internal=has_internal or bool(names))
    if not topics:
        return []
    logs = await log_ranges(client, metadata)
    resources = {each.name: Resource(ConfigResourceType.TOPIC, each.name or "") for each in topics}
    configs = await described(client, list(resources.values()))
    rows = []
    for topic in topics:
        known = configs[resources[topic.name]]
        min_isr = known[_MIN_ISR].value if _MIN_ISR in known else None
        rows.append(
            described_row(
                topic,
                overrides(known, [ConfigSource.TOPIC]),
                logs,
                min_isr=None if min_isr is None else int(min_isr),
            )
        )
    return rows


async def log_ranges(client: ClusterClient, metadata: MetadataResponse) -> dict[TopicPartition, LogRange]:
    """The logs of all partitions that have a leader. Raises ClusterError."""
    leaders = leaders_of(metadata)
    starts = (await client.offsets(leaders, EARLIEST)).found
    ends = (await client.offsets(leaders, LATEST)).found
    return {each: LogRange(start=starts.get(each), end=ends.get(each)) for each in leaders}


async def log_ranges_now(
    client: ClusterClient, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, LogRange]:
    """The logs of these partitions, waiting for their leaders if need be. Raises ClusterError."""

    async def attempt() -> dict[TopicPartition, LogRange]:
        starts = await client.offsets_now(partitions, EARLIEST)
        ends = await client.offsets_now(partitions, LATEST)
        return {each: LogRange(start=starts[each], end=ends[each]) for each in partitions}

    return await client.patiently(attempt)


async def created(
    client: ClusterClient,
    names: Sequence[str],
    *,
    partitions: int | None,
    replication_factor: int | None,
    settings: Mapping[str, str],
    may_exist: bool,
) -> list[Outcome]:
    """Create topics; the numbers are the brokers' defaults where they are None. Raises ClusterError."""
    configs = [CreatableTopicConfig(name=key, value=value) for key, value in settings.items()]
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=_DEFAULT if partitions is None else partitions,
                replication_factor=_DEFAULT if replication_factor is None else replication_factor,
                configs=configs,
            )
            for name in names
        ],
        timeout_ms=client.timeout_ms,
    )
    response = await client.ask_any(request, CreateTopicsResponse)
    outcomes = []
    for row in response.topics:
        if row.error_code == ErrorCode.topic_already_exists and may_exist:
            outcomes.append(Outcome(topic=row.name, done="exists already"))
        elif row.error_code:
            outcomes.append(
                Outcome(
                    topic=row.name,
                    error=refusal(row.name, row.error_code, row.error_message, keys=settings),
                )
            )
        else:
            outcomes.append(
                Outcome(
                    topic=row.name,
                    done="created",
                    partitions=row.num_partitions,
                    replication_factor=row.replication_factor,
                )
            )
    return outcomes


def refusal(topic: str, code: int, message: str | None, *, keys: Mapping[str, str]) -> str:
    """Return the sentence about a topic that was not created; it suggests similar keys for an unknown one.

    >>> refusal("t", 40, "Unknown topic config name: file.delete.delay", keys={"file.delete.delay": "1"})
    'topic t: Unknown topic config name: file.delete.delay. Did you mean file.delete.delay.ms?'
    """
    sentence = f"topic {topic}: {message or error_name(code)}"
    if code == ErrorCode.topic_already_exists:
        return f"{sentence.rstrip('.')}. --if-not-exists leaves it as it is, `ottla topics alter` changes it."
    unknown = [key for key in keys if key not in TOPIC_CONFIGS and key in sentence]
    hint = similar(unknown[0], TOPIC_CONFIGS) if code == ErrorCode.invalid_config and unknown else ""
    return f"{sentence.rstrip('.')}. {hint}" if hint else sentence


async def altered_topic(
    client: ClusterClient, name: str, *, partitions: int | None, changes: Sequence[Change]
) -> None:
    """Change the configurations of a topic, then increase the number of its partitions. Raises ClusterError."""
    metadata = await existing_topics(client, [name])
    if partitions is not None:
        [topic] = metadata.topics
        check_partitions(name, len(topic.partitions), partitions)
    if changes:
        await altered(client, Resource(ConfigResourceType.TOPIC, name), changes)
    if partitions is not None:
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=partitions, assignments=None)],
            timeout_ms=client.timeout_ms,
        )
        response = await client.ask_any(request, CreatePartitionsResponse)
        [row] = response.results
        if row.error_code:
            raise ClusterError(f"topic {name}: {row.error_message or error_name(row.error_code)}")


def check_partitions(name: str, present: int, wanted: int) -> None:
    """Check that the number of partitions becomes larger. Raises ClusterError."""
    if wanted <= present:
        raise ClusterError(
            f"--partitions {wanted}: the topic {name} has {counted(present, 'partition')}, and can get more only; "
            "fewer need another topic."
        )


async def deleted(client: ClusterClient, names: Sequence[str]) -> list[Outcome]:
    """Delete topics, all of which must exist. Raises ClusterError."""
    await existing_topics(client, names)
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in names],
        topic_names=list(names),
        timeout_ms=client.timeout_ms,
    )
    response = await client.ask_any(request, DeleteTopicsResponse)
    return [
        Outcome(
            topic=row.name or "",
            error=f"topic {row.name}: {row.error_message or error_name(row.error_code)}",
        )
        if row.error_code
        else Outcome(topic=row.name or "", done="deleted")
        for row in response.responses
    ]
