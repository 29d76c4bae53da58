"""Resetting committed offsets: where each partition of a group is to continue (`ottla groups reset-offsets`).

| target | new offset |
|---|---|
| earliest, latest | the start, or the end, of the log in both tiers |
| offset | the one that is named |
| shift | the committed offset plus a number, which may be negative |
| time | the first record of this time or later; the end of the log if there is none |

The result is always within the log. Source: ConsumerGroupCommand of Kafka 4.3.1.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from ottla.broker.cli.admin.topic_rows import LogRange
from ottla.broker.cli.output import Row, table
from ottla.broker.cluster_client.errors import ClusterError
from ottla.protocol.types import TopicPartition


class Kind(Enum):
    """The kinds of targets."""

    EARLIEST = auto()
    LATEST = auto()
    OFFSET = auto()
    SHIFT = auto()
    TIME = auto()


@dataclass(slots=True, frozen=True)
class Target:
    """The target of a reset; `value` is its offset, distance or time."""

    kind: Kind
    value: int = 0


@dataclass(slots=True, frozen=True, kw_only=True)
class Reset:
    """The present and the new offset of one partition."""

    partition: TopicPartition
    #: None: nothing is committed.
    present: int | None
    new: int
    #: The reason if it is not what was asked for.
    note: str = ""


def new_offset(
    partition: TopicPartition, target: Target, log: LogRange, *, committed: int | None, at_time: int | None
) -> Reset:
    """Return the reset of one partition. `at_time` is the offset of the target's time; None: no record is so late.

    Raises ClusterError if the log is not known, or a distance has no committed offset to count from.
    """
    if log.start is None or log.end is None:
        raise ClusterError(f"{partition} has no leader that reports its offsets: its log is not known now.")
    note = ""
    match target.kind:
        case Kind.EARLIEST:
            wanted = log.start
        case Kind.LATEST:
            wanted = log.end
        case Kind.OFFSET:
            wanted = target.value
        case Kind.SHIFT:
            if committed is None:
                raise ClusterError(
                    f"--shift-by {target.value}: the group has committed nothing for {partition}. "
                    "Use --to-earliest, --to-latest or --to-offset."
                )
            wanted = committed + target.value
        case Kind.TIME:
            wanted = log.end if at_time is None else at_time
            note = "no record is of this time or later" if at_time is None else ""
    within = min(max(wanted, log.start), log.end)
    if within != wanted:
        note = f"{wanted} is not within the log [{log.start}, {log.end})"
    return Reset(partition=partition, present=committed, new=within, note=note)


def parse_topics(texts: Sequence[str]) -> dict[str, list[int] | None]:
    """The partitions that --topic names, by topic; None: all of them. Raises ClusterError.

    >>> parse_topics(["orders", "payments:0,2"])
    {'orders': None, 'payments': [0, 2]}
    """
    found: dict[str, list[int] | None] = {}
    for text in texts:
        name, colon, numbers = text.partition(":")
        if colon and not all(_is_number(each.strip()) for each in numbers.split(",")):
            raise ClusterError(f"--topic {text}: it must be TOPIC, or TOPIC:PARTITION,PARTITION.")
        if name in found:
            raise ClusterError(f"--topic {text}: {name} is named twice.")
        found[name] = [int(each) for each in numbers.split(",")] if colon else None
    return found


def _is_number(text: str) -> bool:
    """Whether a text may be the number of a partition, which has ten digits at most."""
    return text.isdecimal() and text.isascii() and len(text) <= 10


def reset_rows(group: str, resets: Sequence[Reset], *, is_executed: bool) -> Iterator[Row]:
    """The rows of `ottla groups reset-offsets --json`."""
    for each in resets:
        yield {
            "kind": "reset",
            "group": group,
            "topic": each.partition.topic,
            "partition": each.partition.partition,
            "committed_offset": each.present,
            "new_offset": each.new,
            "note": each.note or None,
            "is_executed": is_executed,
        }


def reset_lines(resets: Sequence[Reset], *, is_executed: bool) -> list[str]:
    """The table of `ottla groups reset-offsets`."""
    cells = [
        (
            each.partition.topic,
            str(each.partition.partition),
            "-" if each.present is None else str(each.present),
            str(each.new),
            each.note,
        )
        for each in resets
    ]
    lines = table(("TOPIC", "PARTITION", "COMMITTED", "NEW OFFSET", "NOTE"), cells, numbers=range(1, 4))
    done = (
        "The offsets are committed." if is_executed else "Nothing is changed yet: repeat it with --execute."
    )
    return [*lines, done]


def chosen_partitions(
    topics: Mapping[str, Sequence[int]],
    wanted: Mapping[str, Sequence[int] | None],
    *,
    option: str = "--topic {topic}:{index}",
) -> list[TopicPartition]:
    """The partitions of topics that a command names. Raises ClusterError for one that the topic does not have."""
    found = []
    for name, numbers in wanted.items():
        known = topics[name]
        for index in known if numbers is None else numbers:
            if index not in known:
                raise ClusterError(
                    f"{option.format(topic=name, index=index)}: "
                    f"the topic {name} has the partitions 0 to {len(known) - 1}."
                )
            found.append(TopicPartition(name, index))
    return sorted(found)
