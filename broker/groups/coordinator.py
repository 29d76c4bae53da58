"""Group coordinator service: routes each request to the group's shard, and maps errors to responses.

Methods take the request message and return the response, or a future of it if it waits for other members or
for replication.

Source: GroupCoordinatorService of Kafka 4.3.
"""

from asyncio import Future, ensure_future
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from functools import partial
from typing import TypeVar
from uuid import UUID

from ottla.broker.groups.actions import NewGroupStored, Store
from ottla.broker.groups.answers import Answer, later
from ottla.broker.groups.config import GroupConfig
from ottla.broker.groups.coordinator_log import CoordinatorLog
from ottla.broker.groups.coordinator_runtime import CoordinatorRuntime
from ottla.broker.groups.delayed_join import DelayedGroupResponse
from ottla.broker.groups.errors import client_error_code
from ottla.broker.groups.group_metadata import new_group_value
from ottla.broker.groups.joining import Joiner, join, leave
from ottla.broker.groups.offset_manager import Topics
from ottla.broker.groups.sessions import heartbeat
from ottla.broker.groups.shard import partition_for
from ottla.broker.groups.shard_runtime import ShardRuntime
from ottla.broker.groups.syncing import sync
from ottla.protocol.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidGroupId,
    InvalidSessionTimeout,
    KafkaError,
    NotCoordinator,
    UnknownMemberId,
)
from ottla.protocol.messages.delete_groups import DeletableGroupResult
from ottla.protocol.messages.describe_groups import DescribedGroup
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from ottla.protocol.messages.list_groups import ListGroupsResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from ottla.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from ottla.runtime import Runtime
from ottla.runtime.turns import result_in_turns

T = TypeVar("T")


class GroupCoordinator:
    """The groups whose partition of the offsets topic is led by this broker."""

    def __init__(
        self,
        *,
        config: GroupConfig,
        log: CoordinatorLog,
        runtime: Runtime,
        partition_count: Callable[[], int | None],
        is_named: Callable[[int], bool],
        topics: Topics,
    ) -> None:
        """Create the coordinator.

        `is_named` returns whether the metadata names this broker as the leader of a partition of the offsets
        topic: then clients send requests here.
        """
        self.config = config
        self._runtime = runtime
        self._partition_count = partition_count
        self._is_named = is_named
        self.shards = CoordinatorRuntime(config=config, log=log, runtime=runtime, topics=topics)

    def start(self) -> None:
        """Load the partitions that this broker leads, and follow leadership changes from now on."""
        self.shards.start()

    def stop(self) -> None:
        """Answer all waiting requests, and cancel all timers."""
        self.shards.stop()

    def on_topics_deleted(self, topics: Iterable[tuple[UUID, str]]) -> None:
        """Delete the committed offsets of these topics (id, name)."""
        self.shards.on_topics_deleted(topics)

    # Finding a group

    def partition_for(self, group_id: str) -> int:
        """The partition of the offsets topic that keeps this group; the topic need not exist yet."""
        return partition_for(group_id, self._partition_count() or self.config.offsets_topic_partition_count)

    def _shard_of(self, group_id: str) -> ShardRuntime:
        """The group's shard. Raises NotCoordinator; CoordinatorNotAvailable if this is not started."""
        return self.shards.shard(self.partition_for(group_id))

    def _members_shard_of(self, group_id: str) -> ShardRuntime:
        """Return the group's shard for a request of a member; the group with an empty id has no members, only
        offsets.

        Raises InvalidGroupId, NotCoordinator, CoordinatorNotAvailable.
        """
        self._check_members_group(group_id)
        return self._shard_of(group_id)

    def _when_ready(self, group_id: str, make: "Callable[[], Answer[T]]") -> "Answer[T]":
        """Return the result of `make`, at once or when the group's partition is loaded, if this broker is its
        coordinator.

        FindCoordinator names the leader as soon as the metadata does. The replica becomes leader a moment
        later, of fifty new partitions some hundred ms; a request that arrives meanwhile waits (at most
        `LOAD_WAIT_S`) instead of being refused.
        """
        if not self._has_to_load(group_id):
            return make()
        partition = self.partition_for(group_id)
        return later(self._runtime.loop, partial(self.shards.when_ready, partition), make)

    def _has_to_load(self, group_id: str) -> bool:
        """Whether this broker is about to be the coordinator of the group."""
        partition = self.partition_for(group_id)
        return not self.shards.is_ready(partition) and self._is_named(partition)

    def _check_members_group(self, group_id: str) -> None:
        if not self.shards.is_active:
            raise CoordinatorNotAvailable("the coordinator does not run")
        if not group_id:
            raise InvalidGroupId("the group id is empty: a group with members must have one")

    # Members

    def join(
        self, request: JoinGroupRequest, *, version: int, client_id: str, client_host: str
    ) -> Answer[JoinGroupResponse]:
        """Handle JoinGroup: it is answered when the group's next generation begins."""

        def answer() -> Answer[JoinGroupResponse]:
            try:
                return self._join(request, version=version, client_id=client_id, client_host=client_host)
            except KafkaError as error:
                return JoinGroupResponse(
                    error_code=client_error_code(error), member_id=_named_in_refusal(request, error)
                )

        return self._when_ready(request.group_id, answer)

    def _join(
        self, request: JoinGroupRequest, *, version: int, client_id: str, client_host: str
    ) -> Answer[JoinGroupResponse]:
        group_id, now_ms = request.group_id, self._runtime.now_ms()
        self._check_members_group(group_id)
        config = self.config
        if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
            raise InvalidSessionTimeout(
                f"the session timeout {request.session_timeout_ms} ms is out of bounds"
            )
        shard_runtime = self._shard_of(group_id)
        shard = shard_runtime.shard
        group = shard.groups.get(group_id)
        is_new_group = group is None
        if group is None:
            if request.member_id:
                raise UnknownMemberId(f"group {group_id} does not exist")
            group = shard.new_group(group_id, now_ms=now_ms)
        waiter: DelayedGroupResponse[JoinGroupResponse] = DelayedGroupResponse(self._runtime.loop)
        unique = UUID(int=self._runtime.random.getrandbits(128), version=4)
        joiner = Joiner(
            waiter=waiter, version=version, client_id=client_id, client_host=client_host, unique=str(unique)
        )
        actions = join(group, request, joiner, now_ms=now_ms)
        if is_new_group:
            # As in Kafka: the log gets a record of the group even before the first member has joined.
            actions.append(Store(value=new_group_value(group), then=NewGroupStored()))
        shard_runtime.carry_out(group, actions)
        return waiter.answer()

    def sync(self, request: SyncGroupRequest) -> Answer[SyncGroupResponse]:
        """Handle SyncGroup: it is answered when the leader's assignment is in the log."""
        try:
            shard_runtime = self._members_shard_of(request.group_id)
            group = shard_runtime.shard.groups.get(request.group_id)
            if group is None:
                raise UnknownMemberId(f"group {request.group_id} does not exist")
        except KafkaError as error:
            return SyncGroupResponse(error_code=client_error_code(error))
        waiter: DelayedGroupResponse[SyncGroupResponse] = DelayedGroupResponse(self._runtime.loop)
        shard_runtime.carry_out(group, sync(group, request, waiter))
        return waiter.answer()

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Handle Heartbeat: restart the member's session timer, and answer at once."""
        try:
            shard_runtime = self._members_shard_of(request.group_id)
            group = shard_runtime.shard.groups.get(request.group_id)
            if group is None:
                raise UnknownMemberId(f"group {request.group_id} does not exist")
            error, actions = heartbeat(group, request)
        except CoordinatorLoadInProgress:
            # Not an error for the member: its session restarts when the group is loaded.
            return HeartbeatResponse()
        except KafkaError as raised:
            return HeartbeatResponse(error_code=client_error_code(raised))
        shard_runtime.carry_out(group, actions)
        return HeartbeatResponse(error_code=error)

    def leave(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """Handle LeaveGroup: it is answered at once, although the group may append its empty generation."""
        try:
            shard_runtime = self._members_shard_of(request.group_id)
            group = shard_runtime.shard.groups.get(request.group_id)
        except KafkaError as error:
            return LeaveGroupResponse(error_code=client_error_code(error))
        if group is None:
            unknown = ErrorCode.unknown_member_id
            return LeaveGroupResponse(
                members=[
                    MemberResponse(
                        member_id=row.member_id, group_instance_id=row.group_instance_id, error_code=unknown
                    )
                    for row in request.members
                ]
            )
        rows, actions = leave(group, request.members, now_ms=self._runtime.now_ms())
        shard_runtime.carry_out(group, actions)
        return LeaveGroupResponse(members=rows)

    # Groups

    def describe(self, group_id: str, *, version: int) -> DescribedGroup:
        """Describe a group as one row of DescribeGroups; also the group with an empty id."""
        try:
            return self._shard_of(group_id).shard.describe(group_id, version=version)
        except KafkaError as error:
            return DescribedGroup(group_id=group_id, error_code=client_error_code(error))

    def list_groups(self, states: Collection[str] = (), types: Collection[str] = ()) -> ListGroupsResponse:
        """List the groups that this broker coordinates, filtered as by `Shard.list_groups`.

        The response has an error while any partition is being loaded.
        """
        if not self.shards.is_active:
            return ListGroupsResponse(error_code=ErrorCode.coordinator_not_available)
        response = ListGroupsResponse()
        for shard_runtime in self.shards.by_partition.values():
            try:
                response.groups += shard_runtime.shard.list_groups(states, types)
            except NotCoordinator:
                continue
            except KafkaError as error:
                return ListGroupsResponse(error_code=client_error_code(error))
        return response

    def delete(self, group_id: str) -> Answer[DeletableGroupResult]:
        """Delete an empty group and all its offsets, as one row of DeleteGroups."""

        def answer(error: KafkaError | None) -> DeletableGroupResult:
            code = ErrorCode.none if error is None else client_error_code(error)
            return DeletableGroupResult(group_id=group_id, error_code=code)

        try:
            shard_runtime = self._shard_of(group_id)
            return shard_runtime.writer.write(shard_runtime.shard.delete_group(group_id), group_id, answer)
        except KafkaError as error:
            return answer(error)

    # Offsets

    def commit_offsets(self, request: OffsetCommitRequest, *, version: int) -> Answer[OffsetCommitResponse]:
        """Handle OffsetCommit of existing topics, with their names and ids."""
        return self._when_ready(request.group_id, lambda: self._commit_offsets(request, version))

    def _commit_offsets(self, request: OffsetCommitRequest, version: int) -> Answer[OffsetCommitResponse]:
        def refuse(error: KafkaError) -> OffsetCommitResponse:
            return commit_error(request, client_error_code(error))

        try:
            shard_runtime = self._shard_of(request.group_id)
            shard = shard_runtime.shard
            records, response, actions = shard.commit_offsets(
                request, version=version, now_ms=self._runtime.now_ms()
            )
        except KafkaError as error:
            return refuse(error)
        if actions:
            shard_runtime.carry_out(shard.group(request.group_id), actions)
        return shard_runtime.writer.write(
            records, request.group_id, lambda error: response if error is None else refuse(error)
        )

    def fetch_offsets(
        self,
        asked: OffsetFetchRequestGroup,
        *,
        require_stable: bool,
        complete: "Callable[[OffsetFetchResponseGroup], Iterator[None]]",
    ) -> Generator[None, None, Answer[OffsetFetchResponseGroup]]:
        """Handle one group of OffsetFetch, whose topics have names, in steps. An error applies to the whole group.

        The response waits until all earlier commits, of this leader or another, are below the high watermark: a
        consumer that resumes from an offset must never see it decrease. Kafka waits like this with `require_stable`
        only, and otherwise responds with what the high watermark has passed. `complete` changes the rows, in
        steps, when all of them are read, before the response waits.
        """
        fetching = self._fetch_offsets(asked, require_stable, complete)
        if not self._has_to_load(asked.group_id):
            return (yield from fetching)
        return self._when_ready(asked.group_id, lambda: self._in_turns(fetching))

    def _fetch_offsets(
        self,
        asked: OffsetFetchRequestGroup,
        require_stable: bool,
        complete: "Callable[[OffsetFetchResponseGroup], Iterator[None]]",
    ) -> Generator[None, None, Answer[OffsetFetchResponseGroup]]:
        def refuse(error: KafkaError) -> OffsetFetchResponseGroup:
            code = client_error_code(error)
            if code is ErrorCode.coordinator_not_available and self.shards.is_active:
                # Consumers before 3.9 fail on that code; this one makes them look up the coordinator again.
                code = ErrorCode.not_coordinator
            return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=code)

        try:
            shard_runtime = self._shard_of(asked.group_id)
            response = yield from shard_runtime.shard.fetch_offsets(asked, require_stable=require_stable)
            yield from complete(response)
            # Another broker may have become the coordinator between two steps, and have committed others.
            shard_runtime.shard  # noqa: B018 - raises then
        except KafkaError as error:
            return refuse(error)
        return shard_runtime.writer.when_committed(
            asked.group_id, lambda error: response if error is None else refuse(error)
        )

    def _in_turns(self, work: "Generator[None, None, Answer[T]]") -> "Answer[T]":
        """Return the response, at once if it is made in one step."""
        try:
            next(work)
        except StopIteration as done:
            answer: Answer[T] = done.value
            return answer

        async def rest() -> T:
            answer = await result_in_turns(work, self._runtime)
            return await answer if isinstance(answer, Future) else answer

        return ensure_future(rest())

    def delete_offsets(self, request: OffsetDeleteRequest) -> Answer[OffsetDeleteResponse]:
        """Handle OffsetDelete of existing topics (KIP-496)."""

        def refuse(error: KafkaError) -> OffsetDeleteResponse:
            return OffsetDeleteResponse(error_code=client_error_code(error))

        try:
            shard_runtime = self._members_shard_of(request.group_id)
            records, response = shard_runtime.shard.delete_offsets(request)
        except KafkaError as error:
            return refuse(error)
        return shard_runtime.writer.write(
            records, request.group_id, lambda error: response if error is None else refuse(error)
        )


def _named_in_refusal(request: JoinGroupRequest, error: KafkaError) -> str:
    """Return the member id for the response to a refused JoinGroup: none if the shard cannot be used, as in Kafka."""
    return "" if isinstance(error, NotCoordinator | CoordinatorLoadInProgress) else request.member_id


def commit_error(request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    """The response to a commit that failed as a whole."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                topic_id=topic.topic_id,
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=error)
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
