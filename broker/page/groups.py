"""Groups: found and paged here; members, committed offsets and lag, and the lag of the last minutes.

    every broker        ListGroups
    coordinators        DescribeGroups and OffsetFetch of the groups of one page
    leaders             ListOffsets of the partitions that these groups have read

All brokers are asked in parallel. A lag that is not known, as its leader does not answer or its committed offset is not
known, makes the sum unknown: a sum that misses a part is no lag. A group that its coordinator does not describe keeps
the state that ListGroups has reported, and the error is a sentence for the view. Lags are kept while they are watched.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.broker.cluster_client.errors import ClusterError, check, error_name
from ottla.broker.cluster_client.groups import DEAD
from ottla.broker.cluster_client.offsets import Offsets, offsets_request
from ottla.broker.page.query import CannotShow, Query
from ottla.broker.page.sources import Sources, each_of
from ottla.broker.reports.assignments import assigned_partitions
from ottla.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.list_offsets import ListOffsetsResponse
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from ottla.protocol.special_timestamps import LATEST
from ottla.protocol.types import TopicPartition

GROUPS_OF_PAGE: Final = 20
_LAST_PAGE: Final = 1_000_000
#: The partitions of one page whose ends are asked for.
_MOST_PARTITIONS: Final = 2_000
#: The characters of a name in a sentence.
_NAME: Final = 249
#: The rows of one group that are shown.
_MOST_ROWS: Final = 500
#: Versions with several groups, and topics by name.
_OFFSET_FETCH_VERSIONS: Final = range(8, 10)


@dataclass(slots=True, kw_only=True)
class _Group:
    """One group, as far as its coordinator has described it."""

    described: DescribedGroup
    #: The committed offsets; None: not known, as the coordinator has reported an error for the partition.
    committed: dict[TopicPartition, int | None] = field(default_factory=dict)
    #: Whether the coordinator has reported the committed offsets at all.
    has_committed: bool = False
    #: The member that reads each partition.
    readers: dict[TopicPartition, str] = field(default_factory=dict)

    @property
    def partitions(self) -> set[TopicPartition]:
        """The partitions that the group has read, or that its members are to read."""
        return self.committed.keys() | self.readers.keys()

    def add_committed(self, fetched: OffsetFetchResponseGroup) -> Iterator[str]:
        """Add the committed offsets, and yield a sentence for each kind of error."""
        what = f"The committed offsets of the group {fetched.group_id[:_NAME]!a} are not known"
        if fetched.error_code:
            yield f"{what}: {error_name(fetched.error_code)}."
            return
        self.has_committed = True
        rows = [(topic.name, row) for topic in fetched.topics for row in topic.partitions]
        for topic, row in rows:
            if row.error_code or row.committed_offset >= 0:
                at = TopicPartition(topic, row.partition_index)
                self.committed[at] = None if row.error_code else row.committed_offset
        for code, count in sorted(Counter(row.error_code for _, row in rows if row.error_code).items()):
            yield f"{what} for {count} of {len(rows)} partitions: {error_name(code)}."


async def groups(sources: Sources, query: Query) -> dict[str, Any]:
    """One page of the groups whose name contains `search`, in the order of their names."""
    search, page = query.text("search").lower(), query.number("page", 0, most=_LAST_PAGE)
    query.check_all_read()
    listed, problems = await _listed(sources)
    names = sorted(name for name in listed if search in name.lower())
    shown = names[page * GROUPS_OF_PAGE : (page + 1) * GROUPS_OF_PAGE]
    found, unknown_groups = await _described(sources, {name: listed[name] for name in shown})
    ends, unknown_ends = await _ends(sources, {each for group in found.values() for each in group.partitions})
    return {
        "total": len(names),
        "page": page,
        "page_size": GROUPS_OF_PAGE,
        "problems": sorted({*problems.values(), *unknown_groups, *unknown_ends}),
        "groups": [_row(sources, name, *listed[name], found.get(name), ends) for name in shown],
    }


async def group(sources: Sources, query: Query) -> dict[str, Any]:
    """One group with its members and its partitions."""
    name = query.required("group")
    query.check_all_read()
    listed, problems = await _listed(sources)
    if name not in listed:
        raise CannotShow(404, " ".join([f"The cluster has no group {name[:_NAME]!a}.", *problems.values()]))
    found, unknown_groups = await _described(sources, {name: listed[name]})
    described = found.get(name)
    partitions = sorted(described.partitions) if described is not None else []
    ends, unknown_ends = await _ends(sources, partitions)
    return {
        **_row(sources, name, *listed[name], described, ends),
        "problems": sorted({*problems.values(), *unknown_groups, *unknown_ends}),
        "clients": [] if described is None else list(_members(described)),
        "partition_count": len(partitions),
        "partitions": [_progress(each, described, ends) for each in partitions[:_MOST_ROWS]]
        if described is not None
        else [],
    }


async def _listed(sources: Sources) -> tuple[dict[str, tuple[int, ListedGroup]], Mapping[int, str]]:
    """All groups by name, each with its coordinator; and the sentences about brokers that do not answer."""

    async def of_broker(broker_id: int) -> list[ListedGroup]:
        response = await sources.ask(broker_id, ListGroupsRequest(), ListGroupsResponse)
        _check(response.error_code, f"The groups of broker {broker_id} are not known")
        return response.groups

    answers, problems = await each_of(sources.alive(), of_broker)
    return {
        each.group_id: (broker_id, each) for broker_id, every in answers.items() for each in every
    }, problems


async def _described(
    sources: Sources, wanted: Mapping[str, tuple[int, ListedGroup]]
) -> tuple[dict[str, _Group], list[str]]:
    """The groups that their coordinators describe, and sentences about what is not known of them and of others."""
    sentences: list[str] = []
    by_coordinator: defaultdict[int, list[str]] = defaultdict(list)
    for name, (broker_id, _) in wanted.items():
        by_coordinator[broker_id].append(name)

    async def of_broker(broker_id: int) -> dict[str, _Group]:
        names = by_coordinator[broker_id]
        described = await sources.ask(broker_id, DescribeGroupsRequest(groups=names), DescribeGroupsResponse)
        found = {}
        for each in described.groups:
            if each.error_code:
                text = f": {each.error_message.removesuffix('.')}" if each.error_message else ""
                sentences.append(
                    f"The group {each.group_id[:_NAME]!a} is not described: {error_name(each.error_code)}{text}."
                )
            else:
                found[each.group_id] = _Group(described=each)
        asked = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
        fetched = await sources.ask(
            broker_id, OffsetFetchRequest(groups=asked), OffsetFetchResponse, versions=_OFFSET_FETCH_VERSIONS
        )
        for fetched_group in fetched.groups:
            if (group := found.get(fetched_group.group_id)) is not None:
                sentences.extend(group.add_committed(fetched_group))
        for group in found.values():
            for member in group.described.members:
                for partition in assigned_partitions(member.member_assignment):
                    group.readers[partition] = member.member_id
        return found

    answers, problems = await each_of(by_coordinator, of_broker)
    found = {name: group for every in answers.values() for name, group in every.items()}
    return found, [*sentences, *problems.values()]


async def _ends(
    sources: Sources, partitions: Collection[TopicPartition]
) -> tuple[dict[TopicPartition, int], list[str]]:
    """The high watermarks of partitions by their leaders, and sentences about those that are not known."""
    led: defaultdict[int, list[TopicPartition]] = defaultdict(list)
    problems: list[str] = []
    found: dict[TopicPartition, int] = {}
    for number, each in enumerate(sorted(partitions)):
        image = sources.broker.metadata.partition(each)
        if image is None or number >= _MOST_PARTITIONS:
            continue
        if image.leader is None:
            problems.append(f"The lag of {each} is not known: it has no leader.")
        elif image.leader == sources.broker.node_id and (own := sources.broker.replicas.hosted.get(each)):
            found[each] = own.log.offsets.high_watermark
        else:
            led[image.leader].append(each)
    if len(partitions) > _MOST_PARTITIONS:
        problems.append(f"The lags of {_MOST_PARTITIONS} of {len(partitions)} partitions are known, no more.")

    async def of_leader(broker_id: int) -> Offsets:
        request = offsets_request(((each, -1) for each in led[broker_id]), LATEST)
        offsets = Offsets()
        offsets.add(await sources.ask(broker_id, request, ListOffsetsResponse))
        return offsets

    answers, unreachable = await each_of(led, of_leader)
    for offsets in answers.values():
        found.update({each: end for each, end in offsets.found.items() if end is not None})
        problems += map(str, offsets.errors.values())
    return found, [*problems, *unreachable.values()]


def _row(
    sources: Sources,
    name: str,
    coordinator: int,
    listed: ListedGroup,
    found: _Group | None,
    ends: Mapping[TopicPartition, int],
) -> dict[str, Any]:
    lag = None if found is None else _lag(found, ends)
    return {
        "group": name,
        "state": (found.described.group_state if found else listed.group_state) or DEAD,
        "type": (listed.group_type or "classic").lower(),
        "assignor": found.described.protocol_data if found else None,
        "coordinator": coordinator,
        "members": None if found is None else len(found.described.members),
        "lag": lag,
        "lags": sources.lags.add(name, lag),
    }


def _lag(found: _Group, ends: Mapping[TopicPartition, int]) -> int | None:
    """The sum of the lags of the partitions with a committed offset; None if one of them is not known."""
    if not found.has_committed:
        return None
    lag = 0
    for each, committed in found.committed.items():
        if committed is None or each not in ends:
            return None
        lag += max(0, ends[each] - committed)
    return lag


def _members(found: _Group) -> Iterable[dict[str, Any]]:
    for member in found.described.members[:_MOST_ROWS]:
        yield {
            "member": member.member_id,
            "instance": member.group_instance_id,
            "client": member.client_id,
            "host": member.client_host.removeprefix("/"),
            "partitions": sum(reader == member.member_id for reader in found.readers.values()),
        }


def _progress(at: TopicPartition, found: _Group, ends: Mapping[TopicPartition, int]) -> dict[str, Any]:
    committed, end = found.committed.get(at), ends.get(at)
    return {
        "topic": at.topic,
        "partition": at.partition,
        "committed": committed,
        "is_committed_known": found.has_committed and found.committed.get(at, -1) is not None,
        "end": end,
        "lag": None if committed is None or end is None else max(0, end - committed),
        "member": found.readers.get(at),
    }


def _check(code: int, what: str) -> None:
    try:
        check(code, what)
    except ClusterError as error:
        raise CannotShow(503, str(error)) from None
