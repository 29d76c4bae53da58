"""The handlers: what they make of versions, names, ids and of a coordinator that is elsewhere.

Every version on the wire is compared with Kafka in tests/compat/test_group_wire.py.
"""

import asyncio
from types import SimpleNamespace
from uuid import UUID

import pytest

from ottla.broker.api import api, k13_leave_group
from ottla.broker.groups.answers import after, after_all, later
from ottla.broker.groups.config import GroupConfig
from ottla.broker.request_context import RequestContext
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.errors import ErrorCode, NotController, UnknownServerError
from ottla.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from tests.harness.loop_turns import loop_turns

E = ErrorCode
_ID = UUID(int=5)
_GROUP_APIS = [8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47]


class Metadata:
    """One topic "t" with partitions 0 and 1, and maybe the offsets topic."""

    def __init__(self, *, offsets_leader=None, is_created=True):
        self.topics = {"t": SimpleNamespace(name="t", topic_id=_ID, partitions={0: None, 1: None})}
        self.offsets_leader = offsets_leader
        if is_created:
            self.create_offsets_topic()

    def create_offsets_topic(self):
        partitions = {0: SimpleNamespace(leader=self.offsets_leader)}
        self.topics["__consumer_offsets"] = SimpleNamespace(partitions=partitions)

    def topic(self, name):
        return self.topics.get(name)

    def topic_by_id(self, topic_id):
        return self.topics["t"] if topic_id == _ID else None

    def partition(self, topic_partition):
        topic = self.topics.get(topic_partition.topic)
        return topic and topic.partitions.get(topic_partition.partition)

    def endpoint(self, broker_id, listener):
        known = (broker_id, listener) == (1, "PLAINTEXT")
        return SimpleNamespace(host="h", port=9092) if known else None

    def is_available(self, broker_id, listener):
        return self.endpoint(broker_id, listener) is not None


class Clock:
    """Each check of it takes a millisecond."""

    def __init__(self):
        self.now_s = 0.0
        self.turns = loop_turns(self.monotonic)

    def monotonic(self):
        self.now_s += 0.001
        return self.now_s


def ask(key, version, request, *, listener="PLAINTEXT", metadata=None, **groups):
    context = RequestContext(key, version, 0, "c", "127.0.0.1", listener)
    groups = {"config": GroupConfig(), "partition_for": lambda _: 0, **groups}
    broker = SimpleNamespace(
        metadata=metadata or Metadata(),
        groups=SimpleNamespace(**groups),
        runtime=Clock(),
        long_answers=asyncio.Lock(),
    )
    return api(key).handle(request, context, broker)


@pytest.mark.parametrize("key", _GROUP_APIS)
def test_versions_are_kafkas(key):
    assert api(key).versions == KAFKA_VERSIONS[ApiKey(key)]


# KIP-699
@pytest.mark.parametrize(
    ("metadata", "listener", "key_type", "error", "node"),
    [
        (Metadata(offsets_leader=1), "PLAINTEXT", 0, E.none, 1),
        (Metadata(offsets_leader=1), "INTERNAL", 0, E.coordinator_not_available, -1),
        (Metadata(offsets_leader=2), "PLAINTEXT", 0, E.coordinator_not_available, -1),
        (Metadata(offsets_leader=None), "PLAINTEXT", 0, E.coordinator_not_available, -1),
        (Metadata(offsets_leader=1), "PLAINTEXT", 1, E.transactional_id_authorization_failed, -1),
        (Metadata(offsets_leader=1), "PLAINTEXT", 2, E.invalid_request, -1),
        (Metadata(offsets_leader=1), "PLAINTEXT", 9, E.invalid_request, -1),
    ],
)
@pytest.mark.parametrize("version", [3, 6])
def test_where_the_coordinator_is(metadata, listener, key_type, error, node, version):
    request = FindCoordinatorRequest(key="g", coordinator_keys=["g"], key_type=key_type)
    found = ask(10, version, request, listener=listener, metadata=metadata)
    if version >= 4:
        (found,) = found.coordinators
        assert found.key == "g"
    assert (E(found.error_code), found.node_id) == (error, node)
    assert (found.host, found.port) == (("h", 9092) if node == 1 else ("", -1))


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.logs("was not created")
async def test_the_first_question_creates_the_offsets_topic(is_refused):
    metadata = Metadata(offsets_leader=1, is_created=False)
    created = []

    async def create_internal(name, **wishes):
        if is_refused:
            raise NotController("busy")
        created.append((name, wishes))
        metadata.create_offsets_topic()

    context = RequestContext(10, 4, 0, "c", "127.0.0.1", "PLAINTEXT")
    broker = SimpleNamespace(
        metadata=metadata,
        groups=SimpleNamespace(config=GroupConfig(), partition_for=lambda _: 0),
        topic_creator=SimpleNamespace(create_internal=create_internal),
        long_answers=asyncio.Lock(),
        runtime=Clock(),
    )
    found = await api(10).handle(FindCoordinatorRequest(coordinator_keys=["g"]), context, broker)
    if is_refused:
        assert E(found.coordinators[0].error_code) is E.coordinator_not_available
        return
    assert found.coordinators[0].node_id == 1
    configs = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}
    wishes = {"partition_count": 50, "replication_factor": 3, "configs": configs}
    assert created == [("__consumer_offsets", wishes)]


def test_one_member_that_leaves_has_the_responses_error():
    def leave(request):
        (row,) = request.members
        unknown = MemberResponse(member_id=row.member_id, error_code=E.unknown_member_id)
        return LeaveGroupResponse(members=[unknown])

    response = ask(13, 2, LeaveGroupRequest(group_id="g", member_id="m"), leave=leave)
    assert (E(response.error_code), response.members) == (E.unknown_member_id, [])


@pytest.mark.parametrize("lost_after", [None, 1])
async def test_many_members_leave_in_turns(lost_after):
    """Each row has its answer; an error of the group ends the request, and is its answer."""
    count = 3 * k13_leave_group.MEMBERS_OF_STEP + 1
    asked = []
    turns_of_others = 0

    def leave(request):
        if len(asked) == lost_after:
            return LeaveGroupResponse(error_code=E.not_coordinator)
        asked.append((turns_of_others, len(request.members)))
        rows = [
            MemberResponse(member_id=row.member_id, error_code=E.none if row.reason else E.unknown_member_id)
            for row in request.members
        ]
        return LeaveGroupResponse(members=rows)

    members = [MemberIdentity(member_id=f"m{number}", reason="r" * (number % 2)) for number in range(count)]
    reply = asyncio.ensure_future(ask(13, 5, LeaveGroupRequest(group_id="g", members=members), leave=leave))
    while not reply.done():
        turns_of_others += 1
        await asyncio.sleep(0)
    response = reply.result()
    if lost_after is not None:
        assert (E(response.error_code), response.members) == (E.not_coordinator, [])
        return
    assert [row.member_id for row in response.members] == [row.member_id for row in members]
    assert [E(row.error_code) for row in response.members[:2]] == [E.unknown_member_id, E.none]
    assert [number for _, number in asked] == [k13_leave_group.MEMBERS_OF_STEP] * 3 + [1]
    assert len({turn for turn, _ in asked}) > 1


def test_few_members_leave_at_once():
    members = [MemberIdentity(member_id="m")] * k13_leave_group.MEMBERS_OF_STEP
    response = LeaveGroupResponse()
    assert ask(13, 5, LeaveGroupRequest(group_id="g", members=members), leave=lambda _: response) is response


def _commit_row(partition):
    return OffsetCommitRequestPartition(partition_index=partition, committed_offset=1)


def _accept(request, *, version):
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                topic_id=topic.topic_id,
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=row.partition_index)
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@pytest.mark.parametrize("version", [9, 10])
def test_commits_of_partitions_that_do_not_exist_leave_the_others_alone(version):
    request = OffsetCommitRequest(
        topics=[
            OffsetCommitRequestTopic(
                name="t" if version < 10 else "",
                topic_id=_ID if version >= 10 else UUID(int=0),
                partitions=[_commit_row(0), _commit_row(7)],
            ),
            OffsetCommitRequestTopic(name="x", topic_id=UUID(int=6), partitions=[_commit_row(0)]),
        ]
    )
    response = ask(8, version, request, commit_offsets=_accept)
    unknown = E.unknown_topic_id if version >= 10 else E.unknown_topic_or_partition
    assert [
        [(row.partition_index, E(row.error_code)) for row in topic.partitions] for topic in response.topics
    ] == [[(0, E.none), (7, E.unknown_topic_or_partition)], [(0, unknown)]]
    assert response.topics[0].topic_id == _ID


def test_a_commit_of_nothing_that_exists_does_not_reach_the_group():
    topic = OffsetCommitRequestTopic(name="x", partitions=[_commit_row(0)])
    response = ask(8, 9, OffsetCommitRequest(topics=[topic]))
    assert E(response.topics[0].partitions[0].error_code) is E.unknown_topic_or_partition


def test_a_commit_that_fails_as_a_whole_is_refused_row_by_row():
    topic = OffsetCommitRequestTopic(name="t", topic_id=_ID, partitions=[_commit_row(0), _commit_row(7)])
    request = OffsetCommitRequest(topics=[topic])

    def fail(request, *, version):
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        ask(8, 9, request, commit_offsets=fail)
    refused = api(8).refuse(request, UnknownServerError())
    (topic,) = refused.topics
    assert [(row.partition_index, E(row.error_code)) for row in topic.partitions] == [
        (0, E.unknown_server_error),
        (7, E.unknown_server_error),
    ]


def _fetched(asked, *, require_stable, complete):
    names = ["t", "gone"] if asked.topics is None else [topic.name for topic in asked.topics]
    row = OffsetFetchResponsePartitions(partition_index=0, committed_offset=3)
    topics = [OffsetFetchResponseTopics(name=name, partitions=[row]) for name in names]
    response = OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics)
    yield from complete(response)
    return response


def _refused(asked, *, require_stable, complete):
    yield from ()
    return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=E.not_coordinator)


@pytest.mark.parametrize(
    ("version", "error", "rows"),
    [(1, E.not_coordinator, [[E.not_coordinator]]), (2, E.not_coordinator, []), (7, E.not_coordinator, [])],
)
def test_an_error_of_the_group_is_returned_where_the_version_has_a_field_for_it(version, error, rows):
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    response = ask(9, version, OffsetFetchRequest(group_id="g", topics=topics), fetch_offsets=_refused)
    assert E(response.error_code) is error
    assert [[E(row.error_code) for row in topic.partitions] for topic in response.topics] == rows


# KIP-709
def test_offsets_are_fetched_by_topic_id():
    known = OffsetFetchRequestTopics(topic_id=_ID, partition_indexes=[0])
    unknown = OffsetFetchRequestTopics(topic_id=UUID(int=6), partition_indexes=[0])
    groups = [
        OffsetFetchRequestGroup(group_id="g", topics=[unknown, known]),
        OffsetFetchRequestGroup(group_id="h", topics=None),
    ]
    response = ask(9, 10, OffsetFetchRequest(groups=groups), fetch_offsets=_fetched)
    named, everything = response.groups
    assert [E(topic.partitions[0].error_code) for topic in named.topics] == [E.none, E.unknown_topic_id]
    assert [(topic.name, topic.topic_id) for topic in everything.topics] == [("t", _ID)], "no id, no row"


def test_what_is_asked_for_again_is_answered_once():
    def topic(name, *partitions):
        return OffsetFetchRequestTopics(name=name, partition_indexes=list(partitions))

    def group(group_id, *topics):
        return OffsetFetchRequestGroup(group_id=group_id, topics=list(topics))

    asked = []

    def fetch(group, *, require_stable, complete):
        topics = (
            None if group.topics is None else [(each.name, each.partition_indexes) for each in group.topics]
        )
        asked.append((group.group_id, topics))
        return _fetched(group, require_stable=require_stable, complete=complete)

    groups = [group("g", topic("t", 0, 0), topic("u", 1)), group("g", topic("t", 1, 0)), group("h")]
    everything = OffsetFetchRequestGroup(group_id="i", topics=None)
    request = OffsetFetchRequest(groups=[*groups, group("i", topic("t", 0)), everything, *groups, everything])
    response = ask(9, 8, request, fetch_offsets=fetch)
    assert asked == [("g", [("t", [0, 1]), ("u", [1])]), ("h", []), ("i", None)]
    assert [each.group_id for each in response.groups] == ["g", "h", "i"]

    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0] * 9)] * 9
    ask(9, 7, OffsetFetchRequest(group_id="j", topics=topics), fetch_offsets=fetch)
    assert asked[-1] == ("j", [("t", [0])])

    def describe(group_id, *, version):
        return DescribedGroup(group_id=group_id)

    described = ask(15, 6, DescribeGroupsRequest(groups=["g", "h", "g"]), describe=describe)
    assert [each.group_id for each in described.groups] == ["g", "h"]


@pytest.mark.parametrize(
    "names", [[str(number) for number in range(300)], [f"{number:01000}" for number in range(30)]]
)
async def test_many_groups_are_answered_in_turns(names):
    def describe(group_id, *, version):
        return DescribedGroup(group_id=group_id)

    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    described = await ask(15, 6, DescribeGroupsRequest(groups=[*names, *names]), describe=describe)
    assert [each.group_id for each in described.groups] == names
    found = await ask(
        10, 6, FindCoordinatorRequest(coordinator_keys=names), metadata=Metadata(offsets_leader=1)
    )
    assert [each.key for each in found.coordinators] == names
    assert turns >= 2 * len(names) / 3, "a turn is two milliseconds"
    counting.cancel()


async def test_what_waits_for_a_partition_gets_its_response_or_its_error_and_stops_no_other():
    loop, wakes = asyncio.get_running_loop(), []
    failing = later(loop, wakes.append, lambda: 1 // 0)
    inner, gone = loop.create_future(), loop.create_future()
    waiting = later(loop, wakes.append, lambda: inner)
    cancelled = later(loop, wakes.append, lambda: gone)
    for wake in wakes:
        wake()
    gone.cancel()
    inner.set_exception(UnknownServerError())
    with pytest.raises(ZeroDivisionError):
        await failing
    with pytest.raises(UnknownServerError):
        await waiting
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def test_a_converted_response_fails_with_what_it_waits_for():
    first, second = (asyncio.get_running_loop().create_future() for _ in range(2))
    converted, together = after(first, str), after_all([first, 1], sum)
    cancelled = after(second, str)
    first.set_exception(ValueError("lost"))
    second.cancel()
    await asyncio.sleep(0)
    for failed in (converted, together):
        with pytest.raises(ValueError, match="lost"):
            failed.result()
    assert cancelled.cancelled()


async def test_answers_that_come_later():
    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    together = after_all([1, first, second], sum)
    doubled = after(first, lambda value: value * 2)
    gone = after(first, str)
    gone.cancel()
    second.set_result(10)
    await asyncio.sleep(0)
    assert not together.done()
    first.set_result(100)
    assert await together == 111
    assert await doubled == 200
    assert after(first, str) == "100"
    assert after_all([1, first], sum) == 101
