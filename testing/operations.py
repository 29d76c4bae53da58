"""A test's view of a cluster, over Kafka's own protocol: topics, records, offsets, groups. It works on any cluster.

`Operations` are coroutines on a loop of their own; `ottla.testing.broker` has them as plain methods and as awaitables.
A request is repeated while its partition has no leader, or another one, until a time limit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from ottla.broker.cluster_client.client import ClusterClient, Waits
from ottla.broker.cluster_client.errors import ClusterError, Transient, Unknown, check
from ottla.broker.cluster_client.groups import (
    DEAD,
    classic_group,
    committed_offsets,
    coordinator_of,
    delete_group,
    listed_groups,
)
from ottla.broker.cluster_client.topics import is_internal
from ottla.broker.network.client import Address, ClientSettings
from ottla.protocol.messages import (
    alter_partition_reassignments,
    create_topics,
    delete_topics,
    describe_groups,
    elect_leaders,
    leave_group,
)
from ottla.protocol.special_timestamps import EARLIEST, LATEST
from ottla.protocol.types import TopicPartition
from ottla.runtime import Runtime
from ottla.testing.faults import OWN_CLIENT_ID
from ottla.testing.records import Record, appended, committed_records, new_batch, partition_of_key

#: The time limit of what a method waits for, unless it is given another one, and of one request.
PATIENCE_S: Final = 10.0
_WAITS: Final = Waits(request_s=PATIENCE_S, patience_s=PATIENCE_S, no_broker_s=PATIENCE_S, pause_s=0.005)
_SETTINGS: Final = ClientSettings(
    reconnect_backoff_ms=2, reconnect_backoff_max_ms=50, waits_for_reconnect=False
)
#: Versions with several members.
_LEAVE_GROUP_VERSIONS: Final = range(3, 10)


class Operations:
    """Asks the brokers of a cluster. Closed by `close`."""

    def __init__(self, runtime: Runtime, bootstrap: Callable[[], Sequence[Address]]) -> None:
        """`bootstrap` returns the addresses of the brokers at present: they may restart at other ports."""
        self._runtime = runtime
        self._client = ClusterClient(
            runtime, bootstrap, client_id=OWN_CLIENT_ID, waits=_WAITS, settings=_SETTINGS
        )
        self._repeated = self._client.patiently

    async def close(self) -> None:
        """Close the connections to all brokers."""
        await self._client.close()

    # -- topics -----------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replicas: int = -1,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Create a topic, wait until all its partitions have leaders, and return its name.

        `replicas` -1 takes the broker's default. Raises ClusterError.
        """
        topic = create_topics.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            configs=[
                create_topics.CreatableTopicConfig(name=key, value=config_text(value))
                for key, value in (config or {}).items()
            ],
        )
        request = create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=self._client.timeout_ms)

        async def create() -> None:
            response = await self._client.ask_any(request, create_topics.CreateTopicsResponse)
            for row in response.topics:
                check(row.error_code, f"topic {name}", row.error_message)

        await self._repeated(create)
        await self._repeated(partial(self._partitions, name))
        return name

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until no broker shows it. Raises ClusterError if there is none."""
        await self._delete_topics([name])

    async def topics(self) -> list[str]:
        """Return the names of all topics but the internal ones, sorted."""
        response = await self._repeated(self._client.metadata)
        return sorted(topic.name for topic in response.topics if topic.name and not is_internal(topic))

    async def leader(self, topic: str, partition: int = 0) -> int:
        """Return the broker id of the partition's leader; -1: it has none."""
        found = await self._repeated(partial(self._client.topic, topic))
        return -1 if (leader := found.leader(partition)) is None else leader.node_id

    async def move_leader(self, topic: str, partition: int = 0, *, to: int) -> None:
        """Make broker `to`, which must have a replica of the partition, its preferred and its present leader."""
        described = await self._repeated(partial(self._client.metadata, [topic]))
        replicas = [
            each.replica_nodes
            for row in described.topics
            for each in row.partitions
            if each.partition_index == partition
        ]
        if not replicas or to not in replicas[0]:
            raise ClusterError(
                f"Broker {to} has no replica of {topic}-{partition}; its replicas are "
                f"{replicas[0] if replicas else 'none'}."
            )
        order = [to, *(each for each in replicas[0] if each != to)]
        moved = alter_partition_reassignments.ReassignablePartition(partition_index=partition, replicas=order)
        request = alter_partition_reassignments.AlterPartitionReassignmentsRequest(
            topics=[alter_partition_reassignments.ReassignableTopic(name=topic, partitions=[moved])]
        )

        async def reorder() -> None:
            response = await self._client.ask_any(
                request, alter_partition_reassignments.AlterPartitionReassignmentsResponse
            )
            check(response.error_code, f"{topic}-{partition}", response.error_message)

        async def elect() -> None:
            leader = (await self._client.topic(topic)).leader(partition)
            if leader is not None and leader.node_id == to:
                return
            chosen = elect_leaders.TopicPartitions(topic=topic, partitions=[partition])
            response = await self._client.ask_any(
                elect_leaders.ElectLeadersRequest(topic_partitions=[chosen]),
                elect_leaders.ElectLeadersResponse,
            )
            check(response.error_code, f"{topic}-{partition}")
            raise Transient(f"Broker {to} does not lead {topic}-{partition}.")

        await self._repeated(reorder)
        await self._repeated(elect)

    # -- records ----------------------------------------------------------------------------------------

    async def produce(
        self,
        topic: str,
        *values: str | bytes | None,
        key: str | bytes | None = None,
        headers: Mapping[str, str | bytes | None] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> int:
        """Append records with acks=all, and return the offset of the first one.

        The topic is created if the broker creates topics on demand. Without `partition` it is chosen by the key, as by
        Kafka's producers, and is 0 without a key. Raises ClusterError.
        """
        if not values:
            raise ValueError(f"produce({topic!r}): there is no value.")
        known = await self._repeated(partial(self._partitions, topic, creates=True))
        chosen = TopicPartition(topic, partition_of_key(key, len(known)) if partition is None else partition)
        batch = new_batch(
            values,
            key=key,
            headers=headers,
            timestamp_ms=self._runtime.now_ms() if timestamp_ms is None else timestamp_ms,
        )
        return await self._repeated(lambda: appended(self._client, chosen, batch))

    async def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """Read all committed records, of both tiers, by partition and offset. Raises ClusterError."""
        return await self._repeated(partial(self._records, topic, partition))

    async def _records(self, topic: str, partition: int | None = None) -> list[Record]:
        names = await self._partitions(topic)
        if partition is not None:
            names = [TopicPartition(topic, partition)]
        return await committed_records(self._client, names)

    async def values(self, topic: str, partition: int | None = None) -> list[bytes | None]:
        """Read the values of all committed records, by partition and offset."""
        return [each.value for each in await self.records(topic, partition)]

    async def wait_for_records(
        self,
        topic: str,
        count: int,
        *,
        since: Mapping[int, int] | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> list[Record]:
        """Wait until the topic has at least `count` records, and return all. Raises ClusterError.

        `since` are the offsets, by partition, before which records do not count. A topic that does not exist has none.
        """
        starts = since or {}

        async def enough() -> list[Record]:
            try:
                every = await self._records(topic)
            except Unknown:
                if count > 0:
                    raise
                every = []
            found = [each for each in every if each.offset >= starts.get(each.partition, 0)]
            if len(found) < count:
                raise Transient(f"Topic {topic} has {len(found)} records instead of {count}.")
            return found

        return await self._repeated(enough, timeout_s=timeout_s)

    async def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the log end offset, as consumers see it, of each partition."""
        return await self._offsets(topic, LATEST)

    async def start_offsets(self, topic: str) -> dict[int, int]:
        """Return the log start offset of each partition."""
        return await self._offsets(topic, EARLIEST)

    async def _offsets(self, topic: str, timestamp: int) -> dict[int, int]:
        async def ask() -> dict[int, int]:
            found = await self._client.offsets_now(await self._partitions(topic), timestamp)
            return {each.partition: offset for each, offset in sorted(found.items()) if offset is not None}

        return await self._repeated(ask)

    # -- groups -----------------------------------------------------------------------------------------

    async def groups(self) -> dict[str, str]:
        """Return the state of each group: Stable, Empty, PreparingRebalance, ..."""
        return {name: group.group_state for name, (_, group) in (await listed_groups(self._client)).items()}

    async def members(self, group: str) -> dict[str, str]:
        """Return the client id of each member of the group, by member id."""
        described = await self._repeated(partial(self._group, group))
        return {member.member_id: member.client_id for member in described.members}

    async def committed(self, group: str, topic: str | None = None) -> dict[TopicPartition, int]:
        """Return the committed offsets of the group, of all its topics or of one."""

        async def ask() -> dict[TopicPartition, int]:
            coordinator = await coordinator_of(self._client, group)
            found = await committed_offsets(self._client, coordinator, group)
            return {each: offset for each, offset in found.items() if topic in (None, each.topic)}

        return await self._repeated(ask)

    async def lag(self, group: str, topic: str | None = None) -> dict[TopicPartition, int]:
        """Return how many records the group has not committed, for each partition with a committed offset."""
        committed = await self.committed(group, topic)
        ends = {name: await self.end_offsets(name) for name in {each.topic for each in committed}}
        return {each: ends[each.topic][each.partition] - offset for each, offset in committed.items()}

    async def wait_until_stable(
        self, group: str, *, members: int | None = None, timeout_s: float = PATIENCE_S
    ) -> None:
        """Wait until the group has finished its rebalance, and has that many members if a number is given."""

        async def stable() -> None:
            described = await self._group(group)
            count = len(described.members)
            if described.group_state != "Stable" or (members is not None and count != members):
                raise Transient(f"Group {group} is {described.group_state} with {count} members.")

        await self._repeated(stable, timeout_s=timeout_s)

    async def wait_for_commit(
        self, group: str, topic: str, offset: int, *, partition: int = 0, timeout_s: float = PATIENCE_S
    ) -> None:
        """Wait until the group has committed this offset, or a later one, of the partition."""

        async def committed() -> None:
            found = (await self.committed(group, topic)).get(TopicPartition(topic, partition))
            if found is None or found < offset:
                raise Transient(f"Group {group} has committed {found} of {topic}-{partition}, not {offset}.")

        await self._repeated(committed, timeout_s=timeout_s)

    async def expire_member(self, group: str, client: str = "") -> list[str]:
        """Remove the members whose client id contains `client`, as if their sessions had expired; returns their ids.

        Their next heartbeat is answered with UNKNOWN_MEMBER_ID.
        """
        chosen = [member for member, client_id in (await self.members(group)).items() if client in client_id]
        if not chosen:
            raise ClusterError(f"Group {group} has no member whose client id contains {client!r}.")
        await self._expel(group, chosen)
        return chosen

    async def reset(self) -> None:
        """Delete all topics but the internal ones, and all groups; members that are active are removed from theirs."""
        for group in await self.groups():
            if members := await self.members(group):
                await self._expel(group, list(members))
            await self._repeated(partial(self._delete_group, group))
        if names := await self.topics():
            await self._delete_topics(names)

    # -- inside -----------------------------------------------------------------------------------------

    async def _partitions(self, topic: str, *, creates: bool = False) -> list[TopicPartition]:
        """The partitions of a topic. Raises Transient if one has no leader."""
        found = await self._client.topic(topic, creates=creates)
        for each in found.leaders:
            found.leader_of(each)
        return [TopicPartition(topic, each) for each in sorted(found.leaders)]

    async def _delete_topics(self, names: Sequence[str]) -> None:
        request = delete_topics.DeleteTopicsRequest(
            topics=[delete_topics.DeleteTopicState(name=name) for name in names],
            topic_names=list(names),
            timeout_ms=self._client.timeout_ms,
        )
        response = await self._repeated(
            lambda: self._client.ask_any(request, delete_topics.DeleteTopicsResponse)
        )
        for row in response.responses:
            check(row.error_code, f"topic {row.name}", row.error_message)

        async def gone() -> None:
            if left := set(names) & set(await self.topics()):
                raise Transient(f"Topics are still there: {', '.join(sorted(left))}.")

        await self._repeated(gone)

    async def _expel(self, group: str, members: Iterable[str]) -> None:
        rows = [
            leave_group.MemberIdentity(member_id=member, reason="expired by a test") for member in members
        ]
        request = leave_group.LeaveGroupRequest(group_id=group, members=rows)

        async def expel() -> None:
            address = await coordinator_of(self._client, group)
            response = await self._client.request(
                address, request, leave_group.LeaveGroupResponse, versions=_LEAVE_GROUP_VERSIONS
            )
            check(response.error_code, f"group {group}")

        await self._repeated(expel)

    async def _delete_group(self, group: str) -> None:
        if not await delete_group(self._client, group):
            await self._expel(group, await self.members(group))
            raise Transient(f"Group {group} has members.")

    async def _group(self, group: str) -> describe_groups.DescribedGroup:
        found = await classic_group(self._client, await coordinator_of(self._client, group), group)
        if found.group_state == DEAD:
            raise Unknown(f"There is no group {group}.")
        return found


def config_text(value: object) -> str:
    """Return a value of a configuration as Kafka writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
