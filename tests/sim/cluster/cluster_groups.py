"""Consumer groups, while the leadership of their offsets partition moves to another broker and back,
also in the middle of a load.

LoadedIsTheLog: what a coordinator begins with is what a replay of its whole log says.

CommittedOffsetsNeverGoBack: a committed offset that a member fetches is not less than what was acknowledged to
it, nor than what it fetched before; and not more than it has ever committed. A commit that was not answered may
come late: as with Kafka's own clients, the generation fences it, and so a member joins again before it goes on.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

from cluster_clients import BACKOFF_S, UNANSWERED, Client
from cluster_nemesis import Nemesis
from cluster_operator import Operator
from cluster_violated import Violated
from cluster_world import World

from ottla.broker.groups.config import OFFSETS_TOPIC
from ottla.broker.groups.log_state import LogState
from ottla.broker.groups.shard_runtime import ShardRuntime
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.records.record import payload_of
from ottla.runtime import Pool
from ottla.runtime.simulated import SimulatedRuntime
from ottla.storage.log import Log

_TOPIC = "t"
#: Without topic ids: topics have names.
_COMMIT_VERSIONS, _FETCH_VERSIONS = range(9, 10), range(9, 10)


class Refused(Exception):
    """Another answer than expected; the member joins again."""


class Member(Client):
    """The only member of a group. Commits 1, 2, 3, and sometimes asks how far it was."""

    #: The longest pause after a commit.
    pause_s = 0.06

    def __init__(self, world: World, *, name: str, group_id: str | None = None) -> None:
        """Create a member; without a group id, its name is the group's."""
        super().__init__(world.simulation, Random(world.random.getrandbits(64)), world.broker_ids, name=name)
        self._group_id = group_id or name
        self._coordinator: int | None = None
        self._member_id = ""
        self._generation_id = -1
        #: The highest that was sent; the highest that was acknowledged or fetched.
        self._sent = self._known = 0
        self.fetches_count = 0

    async def take_part(self, *, is_over: Callable[[], bool]) -> None:
        """Commit until the story is over, and once more when nothing fails any more. Raises Violated."""
        is_last = False
        while not is_last:
            is_last = is_over()
            try:
                await self._join()
                await self._look()
                while not is_over() and self.random.random() < 0.95:
                    await self._heartbeat()
                    await self._commit()
                    await asyncio.sleep(self.random.uniform(0, self.pause_s))
            except UNANSWERED:
                self._coordinator, is_last = None, False
            except Refused:
                is_last = False
                await asyncio.sleep(BACKOFF_S)
        await self.close()

    async def _ask(self, api_key: int, message: Any, **options: Any) -> Any:
        """Send a request to the group's coordinator."""
        if self._coordinator is None:
            found = await self.request(
                self.random.choice(self._brokers),
                ApiKey.FIND_COORDINATOR,
                FindCoordinatorRequest(key_type=0, coordinator_keys=[self._group_id]),
            )
            (row,) = found.coordinators
            self._expect(row.error_code)
            self._coordinator = row.node_id
        return await self.request(self._coordinator, api_key, message, **options)

    def _expect(self, error_code: int) -> None:
        if error_code in (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available):
            self._coordinator = None
        elif error_code == ErrorCode.unknown_member_id:
            self._member_id = ""
        if error_code != ErrorCode.none:
            raise Refused(ErrorCode(error_code).name)

    async def _join(self) -> None:
        await self._join_group(session_timeout_ms=6_000, rebalance_timeout_ms=500)
        await self._sync_group({self._member_id: b"all"})

    async def _join_group(self, *, session_timeout_ms: int, rebalance_timeout_ms: int) -> list[str]:
        """The ids of all members, if this one leads the new generation."""
        request = JoinGroupRequest(
            group_id=self._group_id,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff")],
        )
        joined = await self._ask(ApiKey.JOIN_GROUP, request)
        if joined.error_code == ErrorCode.member_id_required:
            request.member_id = self._member_id = joined.member_id
            joined = await self._ask(ApiKey.JOIN_GROUP, request)
        self._expect(joined.error_code)
        self._member_id, self._generation_id = joined.member_id, joined.generation_id
        return [each.member_id for each in joined.members]

    async def _sync_group(self, assignments: Mapping[str, bytes]) -> bytes:
        """The assignment of this member in the present generation; `assignments` of members are this one's proposal."""
        synced = await self._ask(
            ApiKey.SYNC_GROUP,
            SyncGroupRequest(
                group_id=self._group_id,
                generation_id=self._generation_id,
                member_id=self._member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[
                    SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                    for member, assignment in assignments.items()
                ],
            ),
        )
        self._expect(synced.error_code)
        return bytes(synced.assignment)

    async def _heartbeat(self) -> None:
        request = HeartbeatRequest(
            group_id=self._group_id, generation_id=self._generation_id, member_id=self._member_id
        )
        self._expect((await self._ask(ApiKey.HEARTBEAT, request)).error_code)

    async def _commit(self) -> None:
        self._sent += 1
        row = OffsetCommitRequestPartition(partition_index=0, committed_offset=self._sent)
        request = OffsetCommitRequest(
            group_id=self._group_id,
            generation_id_or_member_epoch=self._generation_id,
            member_id=self._member_id,
            topics=[OffsetCommitRequestTopic(name=_TOPIC, partitions=[row])],
        )
        response = await self._ask(ApiKey.OFFSET_COMMIT, request, versions=_COMMIT_VERSIONS)
        self._expect(response.topics[0].partitions[0].error_code)
        self._known = self._sent

    async def _look(self) -> None:
        topics = [OffsetFetchRequestTopics(name=_TOPIC, partition_indexes=[0])]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=self._group_id, topics=topics)], require_stable=True
        )
        response = await self._ask(ApiKey.OFFSET_FETCH, request, versions=_FETCH_VERSIONS)
        (group,) = response.groups
        self._expect(group.error_code)
        row = group.topics[0].partitions[0]
        self._expect(row.error_code)
        reported = max(row.committed_offset, 0)
        if not self._known <= reported <= self._sent:
            raise Violated(
                f"CommittedOffsetsNeverGoBack: {self.name} fetched {reported} from {self._coordinator}; "
                f"acknowledged or fetched before: {self._known}, sent: {self._sent}"
            )
        self._known = reported
        self.fetches_count += 1


@contextmanager
def slow_loads(world: World) -> Iterator[None]:
    """Each piece that a coordinator reads takes its time: leaders change before it is done."""
    run_blocking, random = SimulatedRuntime.run_blocking, world.random

    async def run_late(
        self: SimulatedRuntime, function: Callable[..., Any], *args: object, pool: Pool
    ) -> Any:
        if pool is Pool.LOADING:
            await asyncio.sleep(random.choice((0.0, 0.01, 0.03)))
        return await run_blocking(self, function, *args, pool=pool)

    with patch.object(SimulatedRuntime, "run_blocking", run_late):
        yield


@contextmanager
def loads_are_true(world: World) -> Iterator[None]:
    """LoadedIsTheLog: what a coordinator has loaded, by one replay or by several that went on, is what its log says."""
    begin = ShardRuntime._begin_sessions

    def begin_checked(self: ShardRuntime) -> Iterator[None]:
        if not self.is_closed:
            with world.simulation.threads.paused():
                _check(self)
        return begin(self)

    def _check(runner: ShardRuntime) -> None:
        log = runner._log.replica_log(runner.topic_partition)
        assert isinstance(log, Log), log
        said = LogState(runner.topic_partition)
        for header, batch in log.reader.records_since(log.log_start_offset):
            deque(said.replay_batch(header, payload_of(header, batch)), maxlen=0)
        loaded = runner.state
        if (loaded.groups, loaded.offsets._by_group) != (said.groups, said.offsets._by_group):
            world.failures.append(Violated(f"LoadedIsTheLog: up to {loaded.next_offset}, {said.next_offset}"))

    with patch.object(ShardRuntime, "_begin_sessions", begin_checked):
        yield


async def groups(world: World) -> None:
    """Members join and commit, while their coordinator changes: killed, cut off, elected elsewhere and back again."""
    await world.create_topic(_TOPIC)
    members = [Member(world, name=f"g{number}") for number in range(4)]
    for member in members:
        world.begin(member.take_part(is_over=lambda: world.is_stopping))
    random, operator, until = world.random, Operator(world), world.now + 8
    delays_s = world.simulation.network.conditions.delays_s
    with slow_loads(world), loads_are_true(world):
        rage = asyncio.ensure_future(
            Nemesis(world).rage(for_s=6, kinds=("kill", "isolate", "isolate", "pause"), is_hasty=True)
        )
        while world.now < until:
            # What a leader has appended is not on the replica that is elected next, or is late.
            for machine in world.brokers:
                for other in world.brokers:
                    delays_s[machine.host, other.host] = random.choice((0.0, 0.0, 0.0, 0.01, 0.08))
            operator.crown(OFFSETS_TOPIC, 0, random.choice(world.broker_ids[:2]))
            await asyncio.sleep(random.choice((0.05, 0.15, 0.4)) * random.uniform(0.5, 1.5))
        await rage
