"""A client of a cluster for commands: asks any broker, one broker, leaders of partitions, or a group's coordinator.

    answer = ask_cluster(bootstrap, lambda client: client.topics(["orders"]))

Errors of the network are ClusterErrors: sentences for operators.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from uuid import UUID

from ottla.broker.cli.bootstrap import ClusterError, addresses_of, ask, check_names
from ottla.broker.network.client import Address, ClientSettings, NodeClient
from ottla.protocol.errors import ErrorCode, KafkaError, UnsupportedVersion
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from ottla.protocol.schema import Request, Response
from ottla.protocol.types import TopicPartition
from ottla.runtime import Runtime

T = TypeVar("T")
R = TypeVar("R", bound=Response)

#: The timeout of one request.
TIMEOUT_S: Final = 30.0
#: The time for which a request is repeated whose error ends by itself.
PATIENCE_S: Final = 30.0
_PAUSE_S: Final = 0.2
#: A broker that does not answer is given up sooner than a cluster.
_CONNECT_TIMEOUT_MS: Final = 5_000
#: Kafka marks only some of its own topics as internal.
_INTERNAL_PREFIX: Final = "__"
#: The errors of a coordinator or leader that moves or loads, which end by themselves.
TRANSIENT: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.not_controller,
        ErrorCode.request_timed_out,
    }
)


class BrokerUnreachable(ClusterError):
    """One broker does not answer; others may."""


class Transient(Exception):
    """An error that ends by itself: the request is repeated until the patience is over."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Leader:
    """The leader of a partition: its broker id, leader epoch and address."""

    node_id: int
    epoch: int
    address: Address


@dataclass(slots=True, frozen=True, kw_only=True)
class Topic:
    """A topic with its partitions; None for a partition without leader."""

    topic_id: UUID
    leaders: Mapping[int, Leader | None]


class ClusterClient:
    """Sends requests to the brokers of a cluster. Closed by `close`."""

    def __init__(
        self, runtime: Runtime, bootstrap: Sequence[Address], *, patience_s: float = PATIENCE_S
    ) -> None:
        self.runtime = runtime
        self._patience_s = patience_s
        self._bootstrap = bootstrap
        self._servers = ",".join(f"{host}:{port}" for host, port in bootstrap)
        self._client = NodeClient(
            runtime, client_id="ottla-cli", settings=ClientSettings(connect_timeout_ms=_CONNECT_TIMEOUT_MS)
        )
        #: The broker that answered first; None before.
        self._known: Address | None = None

    async def close(self) -> None:
        """Close the connections to all brokers."""
        await self._client.close()

    async def request(
        self,
        address: Address,
        message: Request,
        expected: type[R],
        *,
        versions: range | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> R:
        """Return a broker's response, of the expected class.

        Raises BrokerUnreachable if it does not answer, and UnsupportedVersion.
        """
        try:
            return await self._request(address, message, expected, versions, timeout_s)
        except UnsupportedVersion:
            raise
        except (OSError, TimeoutError, KafkaError) as error:
            raise BrokerUnreachable(f"A broker of the cluster does not answer: {error}.") from error

    async def ask_any(
        self,
        message: Request,
        expected: type[R],
        *,
        versions: range | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> R:
        """Return the response of the first broker that answers. Raises ClusterError, UnsupportedVersion."""
        problems = []
        # The broker that has answered before comes first: a stable sort.
        for address in sorted(self._bootstrap, key=lambda each: each != self._known):
            try:
                response = await self._request(address, message, expected, versions, timeout_s)
            except UnsupportedVersion:
                raise
            except (OSError, TimeoutError, KafkaError) as error:
                problems.append(str(error))
                continue
            self._known = address
            return response
        raise ClusterError(
            f"No broker answers at --bootstrap-server {self._servers}: {'; '.join(problems)}. "
            "Start one, or name the address of another one."
        )

    async def _request(
        self, address: Address, message: Request, expected: type[R], versions: range | None, timeout_s: float
    ) -> R:
        response = await self._client.request(
            address, message.__api_key__, message, timeout_s=timeout_s, versions=versions
        )
        assert isinstance(response, expected), type(response)
        return response

    async def metadata(self, names: Sequence[str] | None = None) -> MetadataResponse:
        """Return the brokers, and these topics or all. Raises ClusterError."""
        asked = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        try:
            return await self.ask_any(request, MetadataResponse)
        except UnsupportedVersion:
            raise ClusterError(
                f"--bootstrap-server {self._servers}: the node that answers serves no clients, as a controller's "
                "listener does. Name the listener of a broker."
            ) from None

    async def existing(self, names: Sequence[str], *, remedy: str = "") -> MetadataResponse:
        """Return the metadata of these topics; if there are no names, of all.

        Raises ClusterError for a topic that the cluster does not have, with similar names, and for one that
        cannot be described.
        """
        found = await self.metadata(names or None)
        errors = {topic.name: topic.error_code for topic in found.topics}
        unknown = (ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception)
        if missing := [name for name in names if errors.get(name, ErrorCode.none) in unknown]:
            everything = await self.metadata()
            check_names("topic", missing, names_of(everything.topics), remedy=remedy)
        for name in names:
            if errors.get(name):
                raise ClusterError(f"The topic {name} cannot be described: {error_name(errors[name])}.")
        return found

    async def topics(self, names: Sequence[str] | None = None) -> dict[str, Topic]:
        """Return all topics, or those of these names that exist. Raises ClusterError."""
        return topics_of(await self.metadata(names))

    async def offsets(
        self,
        partitions: Mapping[TopicPartition, Leader],
        timestamp: int | Mapping[TopicPartition, int],
        *,
        must_answer: bool = False,
    ) -> dict[TopicPartition, int | None]:
        """Return each partition's offset at a timestamp, which may be a special one (ListOffsets).

        None: there is no such offset, or the broker does not report it. With `must_answer` it is the former only, and
        Transient is raised where a broker reports an error.

        Raises ClusterError.
        """
        by_address: dict[Address, dict[str, ListOffsetsTopic]] = {}
        for each, leader in partitions.items():
            topics = by_address.setdefault(leader.address, {})
            topics.setdefault(each.topic, ListOffsetsTopic(name=each.topic)).partitions.append(
                ListOffsetsPartition(
                    partition_index=each.partition,
                    current_leader_epoch=leader.epoch,
                    timestamp=timestamp if isinstance(timestamp, int) else timestamp[each],
                )
            )
        found: dict[TopicPartition, int | None] = dict.fromkeys(partitions)
        for address, topics in by_address.items():
            request = ListOffsetsRequest(
                replica_id=-1, topics=list(topics.values()), timeout_ms=round(TIMEOUT_S * 1000)
            )
            try:
                response = await self.request(address, request, ListOffsetsResponse)
            except UnsupportedVersion:
                if must_answer:
                    raise
                continue
            for topic in response.topics:
                for row in topic.partitions:
                    if must_answer and row.error_code != ErrorCode.none:
                        raise Transient(f"{topic.name}-{row.partition_index}: {error_name(row.error_code)}")
                    is_known = row.error_code == ErrorCode.none and row.offset >= 0
                    found[TopicPartition(topic.name, row.partition_index)] = row.offset if is_known else None
        return found

    async def patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat an attempt while it raises Transient, until the patience is over. Raises ClusterError."""
        deadline = self.runtime.monotonic() + self._patience_s
        while True:
            try:
                return await attempt()
            except Transient as error:
                if self.runtime.monotonic() >= deadline:
                    raise ClusterError(str(error)) from error
            await asyncio.sleep(_PAUSE_S)


def ask_cluster(
    bootstrap: str, question: Callable[[ClusterClient], Awaitable[T]], *, patience_s: float = PATIENCE_S
) -> T:
    """Run a command's question with a client of the cluster that --bootstrap-server names. Raises CannotBeDone."""
    addresses = addresses_of(bootstrap)

    async def main(runtime: Runtime) -> T:
        client = ClusterClient(runtime, addresses, patience_s=patience_s)
        try:
            return await question(client)
        finally:
            await client.close()

    return ask(main)


def is_internal(topic: MetadataResponseTopic) -> bool:
    """Whether a topic is one of the brokers' own."""
    return topic.is_internal or (topic.name or "").startswith(_INTERNAL_PREFIX)


def names_of(topics: Sequence[MetadataResponseTopic]) -> list[str]:
    """The names of the topics that exist."""
    return [topic.name for topic in topics if topic.name is not None and not topic.error_code]


def topics_of(response: MetadataResponse) -> dict[str, Topic]:
    """The topics that exist, with the leaders of their partitions."""
    addresses = {each.node_id: (each.host, each.port) for each in response.brokers}
    return {
        topic.name: Topic(
            topic_id=topic.topic_id,
            leaders={
                each.partition_index: Leader(
                    node_id=each.leader_id, epoch=each.leader_epoch, address=addresses[each.leader_id]
                )
                if each.leader_id in addresses
                else None
                for each in topic.partitions
            },
        )
        for topic in response.topics
        if topic.error_code == ErrorCode.none and topic.name is not None
    }


def leaders_of(response: MetadataResponse) -> dict[TopicPartition, Leader]:
    """The partitions that have a leader."""
    return {
        TopicPartition(name, index): leader
        for name, topic in topics_of(response).items()
        for index, leader in topic.leaders.items()
        if leader is not None
    }


def error_name(code: int) -> str:
    """An error code for a reader."""
    return ErrorCode(code).name.upper()
