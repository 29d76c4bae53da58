"""Group coordinator service: routes each request to the group's shard, and maps errors to responses.

Methods take the request message and return the response, or a future of it if it waits for other members or
for replication.

Source: GroupCoordinatorService and CoordinatorRuntime of Kafka 4.3.
"""

from asyncio import Future, Lock, Semaphore
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final
from uuid import UUID

from broker.groups.actions import NewGroupStored, Store
from broker.groups.answers import Answer
from broker.groups.config import OFFSETS_TOPIC, GroupConfig
from broker.groups.coordinator_log import CoordinatorLog
from broker.groups.errors import told_to_members
from broker.groups.joining import Joiner, join
from broker.groups.leaving import leave
from broker.groups.log_state import LogState
from broker.groups.partitioner import partition_for
from broker.groups.recording import new_group_value
from broker.groups.resuming import KEPT_S, Resumable
from broker.groups.sessions import heartbeat
from broker.groups.shard_runner import ShardRunner
from broker.groups.syncing import sync
from protocol.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidGroupId,
    InvalidSessionTimeout,
    KafkaError,
    NotCoordinator,
    UnknownMemberId,
)
from protocol.messages.delete_groups import DeletableGroupResult
from protocol.messages.describe_groups import DescribedGroup
from protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from protocol.types import TopicPartition
from runtime import Runtime
from runtime.turns import in_turns

#: Maximum number of partitions loaded at the same time; Kafka's CoordinatorLoaderImpl has one thread, too.
LOADS_AT_ONCE: Final = 1


class GroupCoordinator:
    """The groups whose partition of the offsets topic is led by this broker."""

    def __init__(
        self,
        *,
        config: GroupConfig,
        log: CoordinatorLog,
        runtime: Runtime,
        partition_count: Callable[[], int | None],
    ) -> None:
        self.config = config
        self._log = log
        self._runtime = runtime
        self._partition_count = partition_count
        self._runners: dict[int, ShardRunner] = {}
        #: The replayed state of partitions whose leadership has ended within the last `KEPT_S`.
        self._left: dict[int, Resumable] = {}
        self._loads = Semaphore(LOADS_AT_ONCE)
        #: One partition is unloaded at a time: fifty tasks together would block the loop for a tenth of a second.
        self._unloads = Lock()
        self._is_active = False

    # Life

    def start(self) -> None:
        """Load the partitions that this broker leads, and follow leadership changes from now on."""
        self._is_active = True
        self._log.listen(OFFSETS_TOPIC, self)
        self._plan_expiry()

    def stop(self) -> None:
        """Answer all waiting requests, and cancel all timers."""
        self._is_active = False
        for runner in self._runners.values():
            deque(runner.close(), maxlen=0)
        self._runners.clear()
        self._left.clear()

    def on_leader(self, partition: int, leader_epoch: int) -> None:
        """Load the partition, unless this broker led it already: then its state is that of the log."""
        led = self._runners.get(partition)
        if not self._is_active or (led is not None and not led.is_closed):
            return
        topic_partition = TopicPartition(OFFSETS_TOPIC, partition)
        state = self._state_left(topic_partition) or LogState(topic_partition)
        runner = ShardRunner(state, config=self.config, log=self._log, runtime=self._runtime)
        self._runners[partition] = runner
        self._runtime.create_task(self._load(runner), name=f"load {topic_partition} of epoch {leader_epoch}")

    def _state_left(self, topic_partition: TopicPartition) -> LogState | None:
        """The replayed state of the partition's previous leadership, if it is still valid."""
        left = self._left.pop(topic_partition.partition, None)
        if left is None or left.is_of(self._log.replica_log(topic_partition)):
            return left and left.state
        self._discard(left.state)
        return None

    async def _load(self, runner: ShardRunner) -> None:
        async with self._loads:
            await runner.load()

    def on_resigned(self, partition: int, leader_epoch: int) -> None:
        """Unload the partition. Its replayed state is kept for `KEPT_S`: this broker may lead it again soon."""
        runner = self._runners.pop(partition, None)
        if runner is None:
            return
        self._in_turns(runner.close(), f"unload {runner.topic_partition}")
        left = runner.resumable()
        if left is None:
            self._discard(runner.state)
            return
        self._left[partition] = left
        self._runtime.call_later(KEPT_S, self._give_up, partition, left)

    def _give_up(self, partition: int, left: Resumable) -> None:
        if self._left.get(partition) is left:
            del self._left[partition]
            self._discard(left.state)

    def _discard(self, state: LogState) -> None:
        self._in_turns(state.discard(), f"discard {state.topic_partition}")

    def _in_turns(self, steps: Iterator[None], name: str) -> None:
        self._runtime.create_task(self._unload(steps), name=name)

    async def _unload(self, steps: Iterator[None]) -> None:
        async with self._unloads:
            await in_turns(self._runtime, steps)

    def on_topics_deleted(self, topics: Iterable[tuple[UUID, str]]) -> None:
        """Delete the committed offsets of these topics (id, name)."""
        self._runtime.create_task(self._forget_topics(list(topics)), name="forget deleted topics")

    async def _forget_topics(self, deleted: list[tuple[UUID, str]]) -> None:
        for partition in list(self._runners):
            if (runner := self._runners.get(partition)) is not None:
                await runner.forget_topics(deleted)

    def _plan_expiry(self) -> None:
        self._runtime.call_later(self.config.offsets_retention_check_interval_ms / 1000, self._expire)

    def _expire(self) -> None:
        if self._is_active:
            self._runtime.create_task(self._expire_all(), name="expire committed offsets")

    async def _expire_all(self) -> None:
        try:
            for runner in list(self._runners.values()):
                await runner.expire()
        finally:
            self._plan_expiry()

    # Finding a group

    def partition_for(self, group_id: str) -> int:
        """The partition of the offsets topic that keeps this group; the topic need not exist yet."""
        return partition_for(group_id, self._partition_count() or self.config.offsets_topic_partition_count)

    def _runner_of(self, group_id: str) -> ShardRunner:
        """The runner of the group's shard. Raises NotCoordinator; CoordinatorNotAvailable if this is not started."""
        if not self._is_active:
            raise CoordinatorNotAvailable("the coordinator does not run")
        runner = self._runners.get(self.partition_for(group_id))
        if runner is None:
            raise NotCoordinator(f"group {group_id} is coordinated elsewhere")
        return runner

    def _member_runner_of(self, group_id: str) -> ShardRunner:
        """The same for requests of members; the group with an empty id has no members, only offsets."""
        if self._is_active and not group_id:
            raise InvalidGroupId("a group with members has a name")
        return self._runner_of(group_id)

    # Members

    def join(
        self, request: JoinGroupRequest, *, version: int, client_id: str, client_host: str
    ) -> Answer[JoinGroupResponse]:
        """JoinGroup: answered when the group's next generation begins."""
        try:
            return self._join(request, version=version, client_id=client_id, client_host=client_host)
        except KafkaError as error:
            return JoinGroupResponse(error_code=told_to_members(error), member_id=request.member_id)

    def _join(
        self, request: JoinGroupRequest, *, version: int, client_id: str, client_host: str
    ) -> Answer[JoinGroupResponse]:
        group_id, now_ms = request.group_id, self._runtime.now_ms()
        runner = self._member_runner_of(group_id)
        config = self.config
        if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
            raise InvalidSessionTimeout(f"{request.session_timeout_ms} ms is out of bounds")
        shard = runner.shard
        group = shard.groups.get(group_id)
        is_new_group = group is None
        if group is None:
            if request.member_id:
                raise UnknownMemberId(f"group {group_id} does not exist")
            group = shard.new_group(group_id, now_ms=now_ms)
        waiter: Future[JoinGroupResponse] = self._runtime.loop.create_future()
        unique = UUID(int=self._runtime.random.getrandbits(128), version=4)
        joiner = Joiner(
            waiter=waiter, version=version, client_id=client_id, client_host=client_host, unique=str(unique)
        )
        actions = join(group, request, joiner, now_ms=now_ms)
        if is_new_group:
            # As in Kafka: the log gets a record of the group even before the first member has joined.
            actions.append(Store(value=new_group_value(group), then=NewGroupStored()))
        runner.carry_out(group, actions)
        return waiter.result() if waiter.done() else waiter

    def sync(self, request: SyncGroupRequest) -> Answer[SyncGroupResponse]:
        """SyncGroup: answered when the leader's assignment is in the log."""
        try:
            runner = self._member_runner_of(request.group_id)
            group = runner.shard.groups.get(request.group_id)
            if group is None:
                raise UnknownMemberId(f"group {request.group_id} does not exist")
        except KafkaError as error:
            return SyncGroupResponse(error_code=told_to_members(error))
        waiter: Future[SyncGroupResponse] = self._runtime.loop.create_future()
        runner.carry_out(group, sync(group, request, waiter))
        return waiter.result() if waiter.done() else waiter

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Heartbeat: never waits."""
        try:
            runner = self._member_runner_of(request.group_id)
            group = runner.shard.groups.get(request.group_id)
            if group is None:
                raise UnknownMemberId(f"group {request.group_id} does not exist")
            error, actions = heartbeat(group, request)
        except CoordinatorLoadInProgress:
            # Not an error for the member: its session restarts when the group is loaded.
            return HeartbeatResponse()
        except KafkaError as raised:
            return HeartbeatResponse(error_code=told_to_members(raised))
        runner.carry_out(group, actions)
        return HeartbeatResponse(error_code=error)

    def leave(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """LeaveGroup: never waits, although the group may append its empty generation."""
        try:
            runner = self._member_runner_of(request.group_id)
            group = runner.shard.groups.get(request.group_id)
        except KafkaError as error:
            return LeaveGroupResponse(error_code=told_to_members(error))
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
        runner.carry_out(group, actions)
        return LeaveGroupResponse(members=rows)

    # Groups

    def describe(self, group_id: str, *, version: int) -> DescribedGroup:
        """One row of DescribeGroups; also of the group with an empty id."""
        try:
            return self._runner_of(group_id).shard.describe(group_id, version=version)
        except KafkaError as error:
            return DescribedGroup(group_id=group_id, error_code=told_to_members(error))

    def list_groups(self, request: ListGroupsRequest) -> ListGroupsResponse:
        """ListGroups: the groups that this broker coordinates. An error while any partition is being loaded."""
        if not self._is_active:
            return ListGroupsResponse(error_code=ErrorCode.coordinator_not_available)
        states = frozenset(state.strip().lower() for state in request.states_filter)
        types = frozenset(name.lower() for name in request.types_filter)
        response = ListGroupsResponse()
        for runner in self._runners.values():
            try:
                response.groups += runner.shard.list_groups(states, types)
            except NotCoordinator:
                continue
            except KafkaError as error:
                return ListGroupsResponse(error_code=told_to_members(error))
        return response

    def delete(self, group_id: str) -> Answer[DeletableGroupResult]:
        """One row of DeleteGroups: an empty group and all its offsets."""

        def answer(error: KafkaError | None) -> DeletableGroupResult:
            code = ErrorCode.none if error is None else told_to_members(error)
            return DeletableGroupResult(group_id=group_id, error_code=code)

        try:
            runner = self._runner_of(group_id)
            return runner.write(runner.shard.delete_group(group_id), group_id, answer)
        except KafkaError as error:
            return answer(error)

    # Offsets

    def commit_offsets(self, request: OffsetCommitRequest, *, version: int) -> Answer[OffsetCommitResponse]:
        """OffsetCommit of existing topics, with their names and ids."""

        def refuse(error: KafkaError) -> OffsetCommitResponse:
            return commit_error(request, told_to_members(error))

        try:
            runner = self._runner_of(request.group_id)
            shard = runner.shard
            records, response, actions = shard.commit_offsets(
                request, version=version, now_ms=self._runtime.now_ms()
            )
        except KafkaError as error:
            return refuse(error)
        if actions:
            runner.carry_out(shard.group(request.group_id), actions)
        return runner.write(
            records, request.group_id, lambda error: response if error is None else refuse(error)
        )

    def fetch_offsets(
        self, asked: OffsetFetchRequestGroup, *, require_stable: bool
    ) -> Answer[OffsetFetchResponseGroup]:
        """One group of OffsetFetch; its topics have names. An error applies to the whole group.

        The response waits until all earlier commits, of this leader or another, are below the high watermark: a
        consumer that resumes from an offset must never see it decrease. Kafka waits like this with `require_stable`
        only, and otherwise responds with what the high watermark has passed.
        """

        def refuse(error: KafkaError) -> OffsetFetchResponseGroup:
            code = told_to_members(error)
            if code is ErrorCode.coordinator_not_available and self._is_active:
                # Consumers before 3.9 fail on that code; this one makes them look up the coordinator again.
                code = ErrorCode.not_coordinator
            return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=code)

        try:
            runner = self._runner_of(asked.group_id)
            response = runner.shard.fetch_offsets(asked, require_stable=require_stable)
        except KafkaError as error:
            return refuse(error)
        return runner.when_settled(asked.group_id, lambda error: response if error is None else refuse(error))

    def delete_offsets(self, request: OffsetDeleteRequest) -> Answer[OffsetDeleteResponse]:
        """OffsetDelete of existing topics (KIP-496)."""

        def refuse(error: KafkaError) -> OffsetDeleteResponse:
            return OffsetDeleteResponse(error_code=told_to_members(error))

        try:
            runner = self._member_runner_of(request.group_id)
            records, response = runner.shard.delete_offsets(request)
        except KafkaError as error:
            return refuse(error)
        return runner.write(
            records, request.group_id, lambda error: response if error is None else refuse(error)
        )


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
