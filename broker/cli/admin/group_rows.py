"""Consumer groups as `ottla groups` shows them: members, committed offsets and lag. Values only."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.broker.cli.output import Row, table
from ottla.broker.reports.words import counted
from ottla.protocol.types import TopicPartition

_UNKNOWN: Final = "-"
#: The states of a group without members.
_INACTIVE: Final = ("Empty", "Dead")


@dataclass(slots=True, frozen=True, kw_only=True)
class ListedGroup:
    """A group as its coordinator lists it; older brokers report neither its state nor its type."""

    group: str
    state: str
    type: str
    protocol_type: str
    coordinator: int


@dataclass(slots=True, frozen=True, kw_only=True)
class GroupMember:
    """A member of a group, and the partitions that it consumes."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: Sequence[TopicPartition]


@dataclass(slots=True, frozen=True, kw_only=True)
class Progress:
    """The offset that a group has committed for a partition, and the end of the log; None: there is none."""

    committed: int | None = None
    end: int | None = None

    @property
    def lag(self) -> int | None:
        """The number of offsets that are not consumed yet."""
        return None if self.committed is None or self.end is None else max(0, self.end - self.committed)


@dataclass(slots=True, frozen=True, kw_only=True)
class Group:
    """A group with its members and its progress."""

    listed: ListedGroup
    state: str
    assignor: str
    members: Sequence[GroupMember]
    progress: Mapping[TopicPartition, Progress]

    @property
    def is_active(self) -> bool:
        """Whether members would overwrite offsets that are reset."""
        return bool(self.members) or self.state not in _INACTIVE

    @property
    def lag(self) -> int:
        """The sum of all lags that are known."""
        return sum(each.lag or 0 for each in self.progress.values())

    @property
    def consumers(self) -> Mapping[TopicPartition, GroupMember]:
        """The member of each partition that is assigned."""
        return {partition: member for member in self.members for partition in member.partitions}


def list_row(group: ListedGroup) -> Row:
    """One group of `ottla groups list --json`."""
    return {
        "kind": "group",
        "group": group.group,
        "state": group.state,
        "type": group.type,
        "protocol_type": group.protocol_type,
        "coordinator": group.coordinator,
    }


def list_lines(groups: Sequence[ListedGroup]) -> list[str]:
    """The table of `ottla groups list`."""
    rows = [
        (
            each.group,
            each.state or _UNKNOWN,
            each.type or _UNKNOWN,
            each.protocol_type or _UNKNOWN,
            str(each.coordinator),
        )
        for each in groups
    ]
    return table(("GROUP", "STATE", "TYPE", "PROTOCOL", "COORDINATOR"), rows, words=4)


def described_row(group: Group) -> Row:
    """One group of `ottla groups describe --json`."""
    return list_row(group.listed) | {
        "state": group.state,
        "assignor": group.assignor,
        "lag": group.lag,
        "members": [
            {
                "member": each.member_id,
                "instance": each.instance_id,
                "client": each.client_id,
                "host": each.host,
                "partitions": [str(partition) for partition in each.partitions],
            }
            for each in group.members
        ],
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "committed_offset": progress.committed,
                "log_end_offset": progress.end,
                "lag": progress.lag,
                "member": consumer.member_id if (consumer := group.consumers.get(partition)) else None,
            }
            for partition, progress in sorted(group.progress.items())
        ],
    }


def described_lines(group: Group) -> Iterator[str]:
    """The lines of one group of `ottla groups describe`."""
    words = [group.listed.type, group.state, group.assignor and f"assignor {group.assignor}"]
    counts = [f"coordinator {group.listed.coordinator}", f"members {len(group.members)}", f"lag {group.lag}"]
    yield f"{group.listed.group}  {', '.join([*filter(None, words), *counts])}"
    consumers = group.consumers
    cells: list[tuple[str, ...]] = [
        (
            partition.topic,
            str(partition.partition),
            _number(progress.committed),
            _number(progress.end),
            _number(progress.lag),
            *_who(consumers.get(partition)),
        )
        for partition, progress in sorted(group.progress.items())
    ]
    cells += [(*[_UNKNOWN] * 5, *_who(member)) for member in group.members if not member.partitions]
    if cells:
        head = ("TOPIC", "PARTITION", "COMMITTED", "LOG END", "LAG", "MEMBER", "CLIENT", "HOST")
        yield from (f"  {line}" for line in table(head, cells, numbers=range(1, 5)))
    yield ""


def _who(member: GroupMember | None) -> tuple[str, str, str]:
    if member is None:
        return _UNKNOWN, _UNKNOWN, _UNKNOWN
    return member.instance_id or member.member_id, member.client_id, member.host


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else str(value)


def why_active(group: Group) -> str:
    """Return the sentence that refuses to change the offsets of a group that is consuming."""
    clients = sorted({f"{each.client_id} at {each.host}" for each in group.members})
    more = f" and {len(clients) - 3} more" if len(clients) > 3 else ""
    who = f" ({', '.join(clients[:3])}{more})" if clients else ""
    return (
        f"The group {group.listed.group} is {group.state} with {counted(len(group.members), 'member')}{who}: "
        "stop them first, since they commit offsets of their own."
    )
