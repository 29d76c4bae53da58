"""Requests of `ottla groups`: each broker lists the groups that it coordinates, and describes them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from ottla.broker.cli.admin.group_rows import (
    Group,
    GroupMember,
    ListedGroup,
    Progress,
    why_active,
)
from ottla.broker.cli.admin.resetting import Kind, Reset, Target, chosen_partitions, new_offset
from ottla.broker.cli.admin.topics import log_ranges_now
from ottla.broker.cli.bootstrap import check_names, existing_topics
from ottla.broker.cluster_client.client import ClusterClient
from ottla.broker.cluster_client.errors import ClusterError, check
from ottla.broker.cluster_client.groups import (
    DEAD,
    classic_group,
    committed_offsets,
    coordinator_of,
    delete_group,
)
from ottla.broker.cluster_client.groups import listed_groups as groups_of_cluster
from ottla.broker.cluster_client.topics import leaders_of
from ottla.broker.network.client import Address
from ottla.broker.reports.assignments import assigned_partitions
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.special_timestamps import LATEST
from ottla.protocol.types import TopicPartition

#: The type of a group that older brokers do not report.
_CLASSIC: Final = "classic"
_CONSUMER: Final = "consumer"
_SHARE: Final = "share"
#: Versions with topics by name.
_OFFSET_COMMIT_VERSIONS: Final = range(2, 10)
#: The errors of a member that an offset is committed for: none is named, so the group has some.
_HAS_MEMBERS: Final = (
    ErrorCode.unknown_member_id,
    ErrorCode.illegal_generation,
    ErrorCode.stale_member_epoch,
)


async def listed_groups(client: ClusterClient) -> list[ListedGroup]:
    """All groups in the order of their names. Raises ClusterError."""
    return [
        ListedGroup(
            group=name,
            state=row.group_state,
            type=(row.group_type or _CLASSIC).lower(),
            protocol_type=row.protocol_type,
            coordinator=node_id,
        )
        for name, (node_id, row) in sorted((await groups_of_cluster(client)).items())
    ]


async def described_groups(client: ClusterClient, names: Sequence[str]) -> list[Group]:
    """These groups, or all. Raises ClusterError."""
    known = {each.group: each for each in await listed_groups(client)}
    check_names("group", names, known)
    found = [await _described(client, known[name]) for name in names or known]
    partitions = {partition for group in found for partition in group.progress}
    ends = await _log_ends(client, partitions)
    return [
        Group(
            listed=group.listed,
            state=group.state,
            assignor=group.assignor,
            members=group.members,
            progress={
                each: Progress(committed=progress.committed, end=ends.get(each))
                for each, progress in group.progress.items()
            },
        )
        for group in found
    ]


async def _described(client: ClusterClient, listed: ListedGroup) -> Group:
    """Describe a group without the ends of the logs."""

    async def attempt() -> Group:
        coordinator = await coordinator_of(client, listed.group)
        state, assignor, members = listed.state, "", list[GroupMember]()
        if listed.type == _CLASSIC:
            state, assignor, members = await _classic(client, coordinator, listed.group)
        elif listed.type == _CONSUMER:
            state, assignor, members = await _consumer(client, coordinator, listed.group)
        # Share groups commit no offsets: their progress is not a single offset.
        is_share = listed.type == _SHARE
        committed = {} if is_share else await committed_offsets(client, coordinator, listed.group)
        assigned = {partition for member in members for partition in member.partitions}
        return Group(
            listed=listed,
            state=state,
            assignor=assignor,
            members=members,
            progress={each: Progress(committed=committed.get(each)) for each in {*committed, *assigned}},
        )

    return await client.patiently(attempt)


async def _classic(
    client: ClusterClient, coordinator: Address, name: str
) -> tuple[str, str, list[GroupMember]]:
    group = await classic_group(client, coordinator, name)
    members = [
        GroupMember(
            member_id=each.member_id,
            instance_id=each.group_instance_id,
            client_id=each.client_id,
            host=each.client_host.removeprefix("/"),
            partitions=assigned_partitions(each.member_assignment),
        )
        for each in group.members
    ]
    return group.group_state or DEAD, group.protocol_data, members


async def _consumer(
    client: ClusterClient, coordinator: Address, name: str
) -> tuple[str, str, list[GroupMember]]:
    """Describe a group of the consumer protocol (KIP-848)."""
    request = ConsumerGroupDescribeRequest(group_ids=[name])
    response = await client.request(coordinator, request, ConsumerGroupDescribeResponse)
    [group] = response.groups
    check(group.error_code, f"The group {name} cannot be described", group.error_message)
    members = [
        GroupMember(
            member_id=each.member_id,
            instance_id=each.instance_id,
            client_id=each.client_id,
            host=each.client_host.removeprefix("/"),
            partitions=[
                TopicPartition(topic.topic_name, index)
                for topic in each.assignment.topic_partitions
                for index in topic.partitions
            ],
        )
        for each in group.members
    ]
    return group.group_state, group.assignor_name, members


async def _log_ends(
    client: ClusterClient, partitions: set[TopicPartition]
) -> Mapping[TopicPartition, int | None]:
    if not partitions:
        return {}
    metadata = await client.metadata(sorted({each.topic for each in partitions}))
    leaders = leaders_of(metadata)
    led = {each: leaders[each] for each in partitions if each in leaders}
    return (await client.offsets(led, LATEST)).found


async def planned_reset(
    client: ClusterClient,
    name: str,
    target: Target,
    topics: Mapping[str, Sequence[int] | None],
) -> list[Reset]:
    """The new offsets of a group for these topics; without topics for all that it has committed offsets of.

    Raises ClusterError, also for a group that is consuming.
    """
    known = {each.group: each for each in await listed_groups(client)}
    committed: Mapping[TopicPartition, Progress] = {}
    # A group that does not exist may get offsets before it begins: the topics are named then.
    if name in known or not topics:
        [group] = await described_groups(client, [name])
        if group.is_active:
            raise ClusterError(why_active(group))
        committed = group.progress
        if not (committed or topics):
            raise ClusterError(f"The group {name} has committed no offsets: name its topics by --topic.")
    names = sorted(topics or {each.topic for each in committed})
    metadata = await existing_topics(client, names)
    if topics:
        indexes = {
            each.name or "": sorted(row.partition_index for row in each.partitions)
            for each in metadata.topics
        }
        partitions = chosen_partitions(indexes, topics)
    else:
        partitions = sorted(committed)
    logs = await log_ranges_now(client, partitions)
    at_time: Mapping[TopicPartition, int | None] = {}
    if target.kind is Kind.TIME:
        at_time = await client.patiently(lambda: client.offsets_now(partitions, target.value))
    missing = Progress()
    return [
        new_offset(
            each,
            target,
            logs[each],
            committed=committed.get(each, missing).committed,
            at_time=at_time.get(each),
        )
        for each in partitions
    ]


async def reset(client: ClusterClient, name: str, resets: Sequence[Reset]) -> None:
    """Commit the new offsets. Raises ClusterError; some may be committed then."""
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for each in resets:
        topic, index = each.partition
        topics.setdefault(topic, OffsetCommitRequestTopic(name=topic)).partitions.append(
            OffsetCommitRequestPartition(partition_index=index, committed_offset=each.new)
        )
    request = OffsetCommitRequest(group_id=name, topics=list(topics.values()))

    async def attempt() -> None:
        coordinator = await coordinator_of(client, name)
        response = await client.request(
            coordinator, request, OffsetCommitResponse, versions=_OFFSET_COMMIT_VERSIONS
        )
        for topic in response.topics:
            for row in topic.partitions:
                partition = TopicPartition(topic.name, row.partition_index)
                if row.error_code in _HAS_MEMBERS:
                    raise ClusterError(
                        f"{partition}: the group {name} has got members meanwhile. Stop them, and repeat it."
                    )
                check(row.error_code, f"The offset of {partition} is not committed")

    await client.patiently(attempt)


async def deleted(client: ClusterClient, names: Sequence[str]) -> dict[str, str | None]:
    """Delete groups, all of which must exist; returns the sentence of each refusal. Raises ClusterError."""
    check_names("group", names, {each.group for each in await listed_groups(client)})
    found: dict[str, str | None] = {}
    for name in names:
        if await client.patiently(partial(delete_group, client, name)):
            found[name] = None
        else:
            [group] = await described_groups(client, [name])
            found[name] = why_active(group)
    return found
