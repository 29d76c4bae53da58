"""Where a consumer without a group begins and ends, in each partition."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ottla.broker.cli.admin.resetting import Kind, Target, chosen_partitions, new_offset
from ottla.broker.cli.admin.topics import log_ranges_now
from ottla.broker.cli.bootstrap import existing_topics
from ottla.broker.cluster_client.client import ClusterClient
from ottla.broker.cluster_client.errors import ClusterError
from ottla.broker.cluster_client.topics import leaders_of
from ottla.protocol.types import TopicPartition

#: An offset has 19 digits at most; a number with a few more is beyond any log, and is named as such.
_MOST_DIGITS: Final = 30


@dataclass(slots=True, frozen=True, kw_only=True)
class Range:
    """The offsets [start, end) of one partition that are consumed, unless later ones are followed."""

    start: int
    end: int
    #: The reason if the start is not what was asked for.
    note: str = ""


async def ranges_of(
    client: ClusterClient, topics: Sequence[str], partitions: Sequence[int], target: Target
) -> dict[TopicPartition, Range]:
    """The ranges of these partitions of all topics; without partitions of all of them. Raises ClusterError.

    A distance (Kind.SHIFT) counts from the end of the log.
    """
    metadata = await existing_topics(client, topics)
    indexes = {
        each.name or "": sorted(row.partition_index for row in each.partitions) for each in metadata.topics
    }
    chosen = chosen_partitions(
        indexes, dict.fromkeys(topics, partitions or None), option="--partition {index}"
    )
    leaders = leaders_of(metadata)
    if missing := [each for each in chosen if each not in leaders]:
        raise ClusterError(f"{missing[0]} has no leader now: `ottla partitions describe` shows the reason.")
    logs = await log_ranges_now(client, chosen)
    at_time = {}
    if target.kind is Kind.TIME:
        at_time = await client.patiently(lambda: client.offsets_now(chosen, target.value))
    found = {}
    for each in chosen:
        log = logs[each]
        begin = new_offset(each, target, log, committed=log.end, at_time=at_time.get(each))
        assert log.end is not None, each
        # The last ten records of a log with three are all of it: no surprise.
        note = "" if target.kind is Kind.SHIFT else begin.note
        found[each] = Range(start=begin.new, end=log.end, note=note)
    return found


def target_of(text: str) -> Target:
    """The target that --offset names: earliest, latest, an offset, or a negative distance from the end.

    Raises ClusterError.

    >>> target_of("earliest").kind.name, target_of("7").value, target_of("-7").kind.name
    ('EARLIEST', 7, 'SHIFT')
    """
    if text in ("earliest", "latest"):
        return Target(Kind[text.upper()])
    if text.removeprefix("-").isdecimal() and text.isascii() and len(text) <= _MOST_DIGITS:
        return Target(Kind.SHIFT if text.startswith("-") else Kind.OFFSET, int(text))
    raise ClusterError(
        f"--offset {text}: it must be earliest, latest, an offset, or -N for the last N records of each partition."
    )
