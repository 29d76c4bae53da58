"""Consumer groups of two members, while all machines lose power at once, and with it what
`__consumer_offsets` has not flushed.

Kafka flushes nothing there: commits, generations and tombstones may go, acknowledged or not.
The judge's ledger does not have this topic here (`Judge.lossy`). These hold all the same:

| invariant | what must hold |
| --- | --- |
| CommittedOffsetsNeverGoBack | a fetched offset is not more than what any member has committed there; |
|  | until the next blackout it is not less than what was acknowledged |
| DeletedOffsetsStayDeleted | an offset that is fetched of a topic was committed to that topic, |
|  | not to a deleted one of its name |
| FencedMembersDoNotCommit | until the next blackout a commit is refused where another member |
|  | has been assigned the partition in a later generation |
| LoadedIsTheLog | as in `groups` |

At the end all members have joined and have seen their offsets: the groups work. What a leader had after a
blackout is certain from the next acknowledged commit on, as that waits for the in-sync replicas; before,
another leader may have less.
"""

import asyncio
from contextlib import suppress
from typing import Any
from uuid import UUID

from cluster_blackouts import black_out
from cluster_groups import Member, Refused, loads_are_true, slow_loads
from cluster_nemesis import Nemesis
from cluster_violated import Violated
from cluster_world import World

from ottla.broker.groups.config import OFFSETS_TOPIC
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
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

_PARTITIONS = (0, 1)
#: By topic ids: a commit is one to this topic, whenever it arrives.
_VERSIONS = range(10, 11)
SETTINGS: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "offsets.load.buffer.size": 300,
}
#: Where offsets are committed: (topic id, partition).
_Place = tuple[UUID, int]


class Group:
    """The state that the members of a group share."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.topic, self.passing = "t", f"passing-{name}"
        #: The last offset that was committed anywhere: each is another one.
        self.count = 0
        self.sent: dict[_Place, int] = {}
        #: The largest offset that cannot be lost before the next blackout.
        self.known: dict[_Place, int] = {}
        #: partition -> (generation, member) of the last assignment.
        self.owners: dict[int, tuple[int, str]] = {}


class Power:
    """The time since the last blackout, for all groups of a world."""

    def __init__(self, groups: list[Group]) -> None:
        self._groups = groups
        self.blackouts_count = 0
        #: Whether a commit was acknowledged since: all in-sync replicas have what was before it.
        self.is_certain = True

    def fail(self) -> None:
        self.blackouts_count += 1
        self.is_certain = False
        for group in self._groups:
            group.known.clear()
            group.owners.clear()


class PairMember(Member):
    """One of two members: commits to the partitions that it is assigned, and to a topic that it deletes
    and creates again.
    """

    pause_s = 0.15

    def __init__(self, world: World, group: Group, power: Power, *, number: int) -> None:
        super().__init__(world, name=f"{group.name}-{number}", group_id=group.name)
        self._world, self._group, self._power = world, group, power
        self._owned: list[int] = []
        #: Whether a commit was not answered, and may come late.
        self._is_open = False

    async def _ask(self, api_key: int, message: Any, **options: Any) -> Any:
        self._is_open = True
        response = await super()._ask(api_key, message, **options)
        self._is_open = False
        return response

    async def _join(self) -> None:
        if self._owned and not self._is_open and self.random.random() < 0.5:
            # It was slow, and does not know that another member may have its partitions.
            await asyncio.sleep(self.random.choice((0.0, 1.5, 2.5)))
            with suppress(Refused):
                await self._commit()
        self._owned = []
        if self.random.random() < 0.2:
            await self._replace_topic()
        members = sorted(await self._join_group(session_timeout_ms=2_000, rebalance_timeout_ms=700))
        power, count = self._power, self._power.blackouts_count
        assignment = await self._sync_group(
            {member: bytes(_PARTITIONS[place :: len(members)]) for place, member in enumerate(members)}
        )
        self._owned = list(assignment)
        if power.is_certain and count == power.blackouts_count:
            for partition in self._owned:
                known = self._group.owners.get(partition, (-1, ""))
                self._group.owners[partition] = max(known, (self._generation_id, self.name))

    def _places(self) -> list[_Place]:
        """The partitions to which a member may commit: its assignment, as far as the topics exist."""
        known = self._world.judge.image.topics_by_name
        places = [(known[self._group.topic].topic_id, each) for each in self._owned]
        if 0 in self._owned and self._group.passing in known:
            places.append((known[self._group.passing].topic_id, 0))
        return places

    async def _commit(self) -> None:
        group, power, count = self._group, self._power, self._power.blackouts_count
        if not (places := self._places()):
            return
        place = self.random.choice(places)
        group.count += 1
        group.sent[place] = offset = group.count
        owner = group.owners.get(place[1])
        row = OffsetCommitRequestPartition(partition_index=place[1], committed_offset=offset)
        request = OffsetCommitRequest(
            group_id=group.name,
            generation_id_or_member_epoch=self._generation_id,
            member_id=self._member_id,
            topics=[OffsetCommitRequestTopic(topic_id=place[0], partitions=[row])],
        )
        response = await self._ask(ApiKey.OFFSET_COMMIT, request, versions=_VERSIONS)
        self._expect(response.topics[0].partitions[0].error_code)
        if count != power.blackouts_count:
            return
        power.is_certain = True
        group.known[place] = max(group.known.get(place, 0), offset)
        if owner is not None and owner[0] > self._generation_id:
            raise Violated(
                f"FencedMembersDoNotCommit: {self.name} commits {place} in generation {self._generation_id}, "
                f"which {owner[1]} has in {owner[0]}"
            )

    async def _look(self) -> None:
        group, power, count = self._group, self._power, self._power.blackouts_count
        places = self._places()
        known = dict(group.known)
        topics = [
            OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[index])
            for topic_id, index in places
        ]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group.name, topics=topics)], require_stable=True
        )
        response = await self._ask(ApiKey.OFFSET_FETCH, request, versions=_VERSIONS)
        self._expect(response.groups[0].error_code)
        found = {
            (topic.topic_id, row.partition_index): row
            for topic in response.groups[0].topics
            for row in topic.partitions
        }
        for place in places:
            row = found[place]
            self._expect(row.error_code)
            self._check(place, max(row.committed_offset, 0), least=known.get(place, 0))
            if power.is_certain and count == power.blackouts_count:
                group.known[place] = max(group.known.get(place, 0), row.committed_offset)
        self.fetches_count += 1

    def _check(self, place: _Place, offset: int, *, least: int) -> None:
        sent = self._group.sent.get(place, 0)
        if least <= offset <= sent:
            return
        name = "CommittedOffsetsNeverGoBack"
        if any(known >= offset for other, known in self._group.sent.items() if other != place) and not sent:
            name = "DeletedOffsetsStayDeleted"
        raise Violated(f"{name}: {self.name} fetched {offset} of {place}; known: {least}, committed: {sent}")

    async def _replace_topic(self) -> None:
        """The topic of this group goes; another one has its name."""
        name, judge = self._group.passing, self._world.judge
        before = judge.image.topics_by_name.get(name)
        message: Any
        if before is not None:
            message = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=1000)
            await self.request(self.random.choice(self._brokers), ApiKey.DELETE_TOPICS, message)
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=3)
        message = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
        await self.request(self.random.choice(self._brokers), ApiKey.CREATE_TOPICS, message)


async def group_blackouts(world: World) -> None:
    """Groups commit while their coordinator changes and all machines lose power;
    topics with committed offsets are replaced.
    """
    world.judge.lossy.add(OFFSETS_TOPIC)
    await world.create_topic("t", partitions=len(_PARTITIONS), flush_messages=1)
    for partition in _PARTITIONS:
        world.produce("t", partition, pause_s=0.2)
        world.consume("t", partition)
    groups = [Group(world, f"g{number}") for number in range(2)]
    power = Power(groups)
    for group in groups:
        for number in range(2):
            member = PairMember(world, group, power, number=number)
            world.begin(member.take_part(is_over=lambda: world.is_stopping))
    kinds = ("kill", "isolate", "pause", "elect", "stop")
    with slow_loads(world), loads_are_true(world):
        for _ in range(2):
            await Nemesis(world).rage(for_s=2.5, kinds=kinds, is_hasty=True)
            power.fail()
            await black_out(world)
        await Nemesis(world).rage(for_s=2.5, kinds=kinds, is_hasty=True)
