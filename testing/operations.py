"""A test's view of a cluster, over Kafka's own protocol: topics, records, offsets, groups. It works on any cluster.

`Operations` are coroutines on a loop of their own; `ottla.testing.broker` has them as plain methods and as awaitables.
A request is repeated while its partition has no leader, or another one, until a time limit.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from ottla.broker.network.client import Address, ClientSettings, NodeClient
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages import (
    alter_partition_reassignments,
    create_topics,
    delete_groups,
    delete_topics,
    describe_groups,
    elect_leaders,
    fetch,
    find_coordinator,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_fetch,
    produce,
)
from ottla.protocol.records.batch import batches
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.record import Record as StoredRecord
from ottla.protocol.records.record import records
from ottla.protocol.schema import Request
from ottla.protocol.special_timestamps import EARLIEST, LATEST
from ottla.protocol.types import TopicPartition
from ottla.remote.topic_metadata.partitioner import murmur2
from ottla.runtime import Runtime
from ottla.testing.faults import OWN_CLIENT_ID

T = TypeVar("T")
#: The response message of an API, whose class the caller knows.
Answer: TypeAlias = Any

#: The time limit of what a method waits for, unless it is given another one, and of one request.
PATIENCE_S: Final = 10.0
#: How long a topic or group that a producer or consumer may be creating is waited for.
_UNKNOWN_S: Final = 1.0
_POLL_S: Final = 0.005
_FETCH_BYTES: Final = 8 * 1024 * 1024
_WITH_TOPIC_NAMES: Final = range(4, 13)
_PRODUCE_VERSIONS: Final = range(3, 13)
_GROUP_ADMIN: Final = range(10)
_FIND_COORDINATOR_VERSIONS: Final = range(4)
_OFFSET_FETCH_VERSIONS: Final = range(1, 8)

#: Passing errors of a partition or coordinator that moves: the request is repeated.
_PASSING: Final = frozenset(
    {
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.offset_not_available,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_controller,
        ErrorCode.request_timed_out,
    }
)


class Record(NamedTuple):
    """A record that was read: where it is, and what it holds; `timestamp_ms` is -1 where it has none."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class ClusterError(Exception):
    """The cluster has refused a request, or has not fulfilled it in time; the message is a sentence."""


class _Passing(Exception):
    """A refusal that may pass."""


class _Unknown(_Passing):
    """A topic or group is not known, or not known yet; or the reason of a refusal is not."""


class Operations:
    """Asks the brokers of a cluster. Closed by `close`."""

    def __init__(self, runtime: Runtime, bootstrap: Callable[[], Sequence[Address]]) -> None:
        """`bootstrap` returns the addresses of the brokers at present: they may restart at other ports."""
        self._runtime = runtime
        self._bootstrap = bootstrap
        settings = ClientSettings(
            reconnect_backoff_ms=2, reconnect_backoff_max_ms=50, waits_for_reconnect=False
        )
        self._client = NodeClient(runtime, client_id=OWN_CLIENT_ID, settings=settings)

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
                create_topics.CreatableTopicConfig(name=key, value=_config_text(value))
                for key, value in (config or {}).items()
            ],
        )

        async def create() -> None:
            request = create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=round(PATIENCE_S * 1000))
            response = await self._any(ApiKey.CREATE_TOPICS, request)
            for row in response.topics:
                _check(row.error_code, f"topic {name}", row.error_message)

        await self._repeated(create)
        await self._repeated(lambda: self._leaders(name))
        return name

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until no broker shows it. Raises ClusterError if there is none."""
        await self._delete_topics([name])

    async def topics(self) -> list[str]:
        """Return the names of all topics but the internal ones, sorted."""
        response = await self._repeated(partial(self._metadata, None))
        return sorted(topic.name for topic in response.topics if topic.name and not _is_internal(topic))

    async def leader(self, topic: str, partition: int = 0) -> int:
        """Return the broker id of the partition's leader; -1: it has none."""
        return await self._repeated(partial(self._leader, topic, partition))

    async def _leader(self, topic: str, partition: int) -> int:
        response = await self._metadata([topic])
        for row in response.topics:
            _check(row.error_code, f"topic {topic}", None)
            for each in row.partitions:
                if each.partition_index == partition:
                    return int(each.leader_id)
        raise ClusterError(f"Topic {topic} has no partition {partition}.")

    async def move_leader(self, topic: str, partition: int = 0, *, to: int) -> None:
        """Make broker `to`, which must have a replica of the partition, its preferred and its present leader."""
        described = await self._repeated(partial(self._metadata, [topic]))
        rows = [each for each in described.topics[0].partitions if each.partition_index == partition]
        if not rows or to not in rows[0].replica_nodes:
            replicas = rows[0].replica_nodes if rows else "none"
            raise ClusterError(
                f"Broker {to} has no replica of {topic}-{partition}; its replicas are {replicas}."
            )
        order = [to, *(each for each in rows[0].replica_nodes if each != to)]
        row = alter_partition_reassignments.ReassignablePartition(partition_index=partition, replicas=order)
        request = alter_partition_reassignments.AlterPartitionReassignmentsRequest(
            topics=[alter_partition_reassignments.ReassignableTopic(name=topic, partitions=[row])]
        )

        async def reorder() -> None:
            response = await self._any(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request)
            _check(response.error_code, f"{topic}-{partition}", response.error_message)

        async def elect() -> None:
            if await self._leader(topic, partition) == to:
                return
            chosen = elect_leaders.TopicPartitions(topic=topic, partitions=[partition])
            response = await self._any(
                ApiKey.ELECT_LEADERS, elect_leaders.ElectLeadersRequest(topic_partitions=[chosen])
            )
            _check(response.error_code, f"{topic}-{partition}", None)
            raise _Passing(f"Broker {to} does not lead {topic}-{partition}.")

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
        count = len(await self._repeated(lambda: self._leaders(topic, create=True)))
        key_bytes = _bytes(key)
        if partition is None:
            partition = 0 if key_bytes is None else (murmur2(key_bytes) & 0x7FFFFFFF) % count
        if not 0 <= partition < count:
            raise ClusterError(f"Topic {topic} has {count} partitions: there is no partition {partition}.")
        now_ms = self._runtime.now_ms() if timestamp_ms is None else timestamp_ms
        header_pairs = tuple((name, _bytes(value)) for name, value in (headers or {}).items())
        batch = build_batch(
            StoredRecord(offset, now_ms, key_bytes, _bytes(value), header_pairs)
            for offset, value in enumerate(values)
        )
        row = produce.PartitionProduceData(index=partition, records=batch)
        request = produce.ProduceRequest(
            acks=-1,
            timeout_ms=round(PATIENCE_S * 1000),
            topic_data=[produce.TopicProduceData(name=topic, partition_data=[row])],
        )
        chosen = partition

        async def append() -> int:
            address = (await self._leaders(topic))[chosen]
            response = await self._request(address, ApiKey.PRODUCE, request, versions=_PRODUCE_VERSIONS)
            answer = response.responses[0].partition_responses[0]
            _check(answer.error_code, f"{topic}-{chosen}", answer.error_message)
            return int(answer.base_offset)

        return await self._repeated(append)

    async def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """Read all committed records, of both tiers, by partition and offset. Raises ClusterError."""
        return await self._repeated(partial(self._records, topic, partition))

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

        `since` are the offsets, by partition, before which records do not count.
        """
        starts = since or {}

        async def enough() -> list[Record]:
            every = await self._known_records(topic, is_awaited=count > 0)
            found = [each for each in every if each.offset >= starts.get(each.partition, 0)]
            if len(found) < count:
                raise _Passing(f"Topic {topic} has {len(found)} records instead of {count}.")
            return found

        return await self._repeated(enough, timeout_s=timeout_s)

    async def _known_records(self, topic: str, *, is_awaited: bool) -> list[Record]:
        """The records of a topic; none of a topic that does not exist, unless it is awaited."""
        try:
            return await self._records(topic, None)
        except _Unknown:
            if is_awaited:
                raise
            return []

    async def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the log end offset, as consumers see it, of each partition."""
        return await self._repeated(partial(self._offsets, topic, LATEST))

    async def start_offsets(self, topic: str) -> dict[int, int]:
        """Return the log start offset of each partition."""
        return await self._repeated(partial(self._offsets, topic, EARLIEST))

    # -- groups -----------------------------------------------------------------------------------------

    async def groups(self) -> dict[str, str]:
        """Return the state of each group: Stable, Empty, PreparingRebalance, ..."""
        return await self._repeated(self._groups)

    async def _groups(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for address in await self._brokers():
            response = await self._request(address, ApiKey.LIST_GROUPS, list_groups.ListGroupsRequest())
            _check(response.error_code, "groups", None)
            found |= {group.group_id: group.group_state for group in response.groups}
        return found

    async def members(self, group: str) -> dict[str, str]:
        """Return the client id of each member of the group, by member id."""
        described = await self._repeated(lambda: self._describe_group(group))
        return {member.member_id: member.client_id for member in described.members}

    async def committed(self, group: str, topic: str | None = None) -> dict[TopicPartition, int]:
        """Return the committed offsets of the group, of all its topics or of one."""

        async def ask() -> dict[TopicPartition, int]:
            address = await self._coordinator(group)
            request = offset_fetch.OffsetFetchRequest(group_id=group, topics=None)
            response = await self._request(
                address, ApiKey.OFFSET_FETCH, request, versions=_OFFSET_FETCH_VERSIONS
            )
            _check(response.error_code, f"group {group}", None)
            return {
                TopicPartition(row.name, each.partition_index): each.committed_offset
                for row in response.topics
                for each in row.partitions
                if each.committed_offset >= 0 and topic in (None, row.name)
            }

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
            described = await self._describe_group(group)
            count = len(described.members)
            if described.group_state != "Stable" or (members is not None and count != members):
                raise _Passing(f"Group {group} is {described.group_state} with {count} members.")

        await self._repeated(stable, timeout_s=timeout_s)

    async def wait_for_commit(
        self, group: str, topic: str, offset: int, *, partition: int = 0, timeout_s: float = PATIENCE_S
    ) -> None:
        """Wait until the group has committed this offset, or a later one, of the partition."""

        async def committed() -> None:
            found = (await self.committed(group, topic)).get(TopicPartition(topic, partition))
            if found is None or found < offset:
                raise _Passing(f"Group {group} has committed {found} of {topic}-{partition}, not {offset}.")

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

    async def _delete_topics(self, names: Sequence[str]) -> None:
        request = delete_topics.DeleteTopicsRequest(
            topics=[delete_topics.DeleteTopicState(name=name) for name in names],
            topic_names=list(names),
            timeout_ms=round(PATIENCE_S * 1000),
        )
        response = await self._repeated(partial(self._any, ApiKey.DELETE_TOPICS, request))
        for row in response.responses:
            _check_now(row.error_code, f"topic {row.name}", row.error_message)

        async def gone() -> None:
            if left := set(names) & set(await self.topics()):
                raise _Passing(f"Topics are still there: {', '.join(sorted(left))}.")

        await self._repeated(gone)

    async def _expel(self, group: str, members: Iterable[str]) -> None:
        rows = [
            leave_group.MemberIdentity(member_id=member, reason="expired by a test") for member in members
        ]

        async def expel() -> None:
            address = await self._coordinator(group)
            request = leave_group.LeaveGroupRequest(group_id=group, members=rows)
            response = await self._request(address, ApiKey.LEAVE_GROUP, request, versions=range(3, 10))
            _check(response.error_code, f"group {group}", None)

        await self._repeated(expel)

    async def _delete_group(self, group: str) -> None:
        address = await self._coordinator(group)
        request = delete_groups.DeleteGroupsRequest(groups_names=[group])
        response = await self._request(address, ApiKey.DELETE_GROUPS, request)
        if response.results[0].error_code == ErrorCode.group_id_not_found:
            return
        if response.results[0].error_code == ErrorCode.non_empty_group:
            await self._expel(group, await self.members(group))
            raise _Passing(f"Group {group} has members.")
        _check(response.results[0].error_code, f"group {group}", None)

    async def _describe_group(self, group: str) -> describe_groups.DescribedGroup:
        address = await self._coordinator(group)
        request = describe_groups.DescribeGroupsRequest(groups=[group])
        response = await self._request(address, ApiKey.DESCRIBE_GROUPS, request, versions=_GROUP_ADMIN)
        described: describe_groups.DescribedGroup = response.groups[0]
        if described.error_code == ErrorCode.group_id_not_found:
            raise _Unknown(f"There is no group {group}.")
        _check(described.error_code, f"group {group}", described.error_message)
        return described

    async def _coordinator(self, group: str) -> Address:
        request = find_coordinator.FindCoordinatorRequest(key=group, key_type=0)
        response = await self._any(ApiKey.FIND_COORDINATOR, request, versions=_FIND_COORDINATOR_VERSIONS)
        _check(response.error_code, f"group {group}", response.error_message)
        return response.host, response.port

    async def _offsets(self, topic: str, timestamp: int) -> dict[int, int]:
        by_address: dict[Address, list[int]] = {}
        for partition, address in (await self._leaders(topic)).items():
            by_address.setdefault(address, []).append(partition)
        found: dict[int, int] = {}
        for address, partitions in by_address.items():
            rows = [
                list_offsets.ListOffsetsPartition(
                    partition_index=each, current_leader_epoch=-1, timestamp=timestamp
                )
                for each in partitions
            ]
            request = list_offsets.ListOffsetsRequest(
                replica_id=-1, topics=[list_offsets.ListOffsetsTopic(name=topic, partitions=rows)]
            )
            response = await self._request(address, ApiKey.LIST_OFFSETS, request)
            for row in response.topics[0].partitions:
                _check(row.error_code, f"{topic}-{row.partition_index}", None)
                found[row.partition_index] = row.offset
        return dict(sorted(found.items()))

    async def _records(self, topic: str, partition: int | None) -> list[Record]:
        ends, starts = await self._offsets(topic, LATEST), await self._offsets(topic, EARLIEST)
        found: list[Record] = []
        for each in ends if partition is None else [partition]:
            if each not in ends:
                raise ClusterError(f"Topic {topic} has {len(ends)} partitions: there is no partition {each}.")
            found += await self._read(topic, each, starts[each], ends[each])
        return found

    async def _read(self, topic: str, partition: int, start: int, end: int) -> list[Record]:
        found: list[Record] = []
        offset = start
        while offset < end:
            data = await self._fetch(topic, partition, offset)
            next_offset = offset
            for header, batch in batches(data):
                next_offset = header.base_offset + header.last_offset_delta + 1
                if header.is_control:
                    continue
                found += (
                    Record(topic, partition, each.offset, each.timestamp, each.key, each.value, each.headers)
                    for each in records(batch)
                    if offset <= each.offset < end
                )
            if next_offset == offset:
                raise _Passing(
                    f"{topic}-{partition} has no records from offset {offset}, below its end {end}."
                )
            offset = next_offset
        return found

    async def _fetch(self, topic: str, partition: int, offset: int) -> memoryview:
        row = fetch.FetchPartition(
            partition=partition,
            current_leader_epoch=-1,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=_FETCH_BYTES,
        )
        request = fetch.FetchRequest(
            replica_id=-1,
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=_FETCH_BYTES,
            session_epoch=-1,
            topics=[fetch.FetchTopic(topic=topic, partitions=[row])],
        )
        address = (await self._leaders(topic))[partition]
        response = await self._request(address, ApiKey.FETCH, request, versions=_WITH_TOPIC_NAMES)
        _check(response.error_code, f"{topic}-{partition}", None)
        answer = response.responses[0].partitions[0]
        _check(answer.error_code, f"{topic}-{partition}", None)
        return memoryview(answer.records or b"")

    async def _leaders(self, topic: str, *, create: bool = False) -> dict[int, Address]:
        """The address of the leader of each partition. Raises _Passing if one has none."""
        response = await self._metadata([topic], create=create)
        brokers = {each.node_id: (each.host, each.port) for each in response.brokers}
        for row in response.topics:
            _check(row.error_code, f"topic {topic}", None)
            for each in row.partitions:
                if each.leader_id not in brokers:
                    raise _Passing(f"{topic}-{each.partition_index} has no leader.")
            return {each.partition_index: brokers[each.leader_id] for each in row.partitions}
        raise _Unknown(f"There is no topic {topic}.")

    async def _brokers(self) -> list[Address]:
        return [(each.host, each.port) for each in (await self._metadata([])).brokers]

    async def _metadata(
        self, topics: Sequence[str] | None, *, create: bool = False
    ) -> metadata.MetadataResponse:
        rows = None if topics is None else [metadata.MetadataRequestTopic(name=name) for name in topics]
        request = metadata.MetadataRequest(topics=rows, allow_auto_topic_creation=create)
        response: metadata.MetadataResponse = await self._any(ApiKey.METADATA, request)
        return response

    async def _any(self, key: ApiKey, request: Request, *, versions: range | None = None) -> Answer:
        """The response of the first broker that answers."""
        problems = []
        for address in self._bootstrap():
            try:
                return await self._request(address, key, request, versions=versions)
            except _Passing as error:
                problems.append(str(error))
        raise _Passing(f"No broker answers: {' '.join(problems) or 'none is running.'}")

    async def _request(
        self, address: Address, key: ApiKey, request: Request, *, versions: range | None = None
    ) -> Answer:
        try:
            return await self._client.request(address, key, request, timeout_s=PATIENCE_S, versions=versions)
        except (OSError, TimeoutError, KafkaError) as error:
            raise _Passing(f"{address[0]}:{address[1]}: {error or type(error).__name__}.") from error

    async def _repeated(self, attempt: Callable[[], Awaitable[T]], *, timeout_s: float | None = None) -> T:
        """Repeat an attempt until it does not fail with an error that may pass. Raises ClusterError.

        A topic or group that is not known is waited for only briefly, unless the caller has named a time.
        """
        began = self._runtime.monotonic()
        patience_s = PATIENCE_S if timeout_s is None else timeout_s
        unknown_s = _UNKNOWN_S if timeout_s is None else timeout_s
        while True:
            try:
                return await attempt()
            except _Passing as error:
                limit_s = unknown_s if isinstance(error, _Unknown) else patience_s
                if self._runtime.monotonic() - began >= limit_s:
                    raise ClusterError(f"{error} (waited {limit_s:g} s)") from error
            await asyncio.sleep(_POLL_S)


def _check(code: int, what: str, message: str | None) -> None:
    """Raise for an error code: _Passing if it may pass, else ClusterError."""
    if code in (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_server_error):
        raise _Unknown(f"{what}: {ErrorCode(code).name.upper()}.")
    if code in _PASSING:
        raise _Passing(f"{what}: {ErrorCode(code).name.upper()}.")
    _check_now(code, what, message)


def _check_now(code: int, what: str, message: str | None) -> None:
    if code != ErrorCode.none:
        raise ClusterError(f"{what}: {ErrorCode(code).name.upper()}{': ' + message if message else ''}.")


def _is_internal(topic: metadata.MetadataResponseTopic) -> bool:
    return topic.is_internal or (topic.name or "").startswith("__")


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def _config_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
