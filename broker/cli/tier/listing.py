"""Listing of `ottla tier ls`: the logs of tiered partitions and their copies, as the cluster reports them."""

from collections.abc import Sequence
from dataclasses import dataclass

from ottla.broker.cli.bootstrap import check_names
from ottla.broker.cli.tier.comparison import LogRange
from ottla.broker.cli.tier.inspection import log_ranges, read_metadata
from ottla.broker.cli.tier.metadata_topic import partitions_of
from ottla.broker.cli.tier.progress import Progress
from ottla.broker.cluster_client.client import ClusterClient
from ottla.broker.cluster_client.errors import ClusterError
from ottla.broker.cluster_client.topics import Leader
from ottla.protocol.types import TopicPartition
from ottla.remote.known_copies import KnownCopies
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.topic_metadata.partitioner import metadata_partition
from ottla.remote.topic_metadata.topic import TOPIC


@dataclass(slots=True, frozen=True, kw_only=True)
class Listing:
    """One tiered partition: its leader, its log and its copies in the remote tier."""

    topic_partition: TopicPartition
    #: None: it has none now.
    leader: Leader | None
    log: LogRange | None
    copies: Sequence[RemoteLogSegmentMetadata]


async def list_topics(client: ClusterClient, names: Sequence[str], progress: Progress) -> list[Listing]:
    """The partitions of these topics, or all that have copies. Raises ClusterError."""
    topics = await client.topics()
    check_names("topic", names, topics)
    if TOPIC not in topics:
        raise ClusterError(f"The topic {TOPIC} does not exist: no broker has tiered storage (--tier).")
    partitions = partitions_of({name: topics[name] for name in names or topics})
    numbers = set(topics[TOPIC].leaders)
    if names:
        numbers = {metadata_partition(each, partition_count=len(numbers)) for each in partitions}
    known = KnownCopies()
    await read_metadata(client, known, numbers, progress)
    copies = known.by_partition()
    shown = {each: leader for each, leader in partitions.items() if names or each in copies}
    logs = await log_ranges(client, {each: leader for each, leader in shown.items() if leader is not None})
    return [
        Listing(
            topic_partition=each.topic_partition,
            leader=leader,
            log=logs.get(each),
            copies=copies.get(each, ()),
        )
        for each, leader in sorted(shown.items(), key=lambda item: item[0].topic_partition)
    ]
