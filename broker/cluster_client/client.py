"""Requests to a cluster: to any broker, to one, or to the leaders of partitions, repeated while that may help."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ottla.broker.cluster_client.errors import (
    BrokerUnreachable,
    ClusterError,
    NoBrokerAnswers,
    Transient,
    Unknown,
    check,
)
from ottla.broker.cluster_client.offsets import Offsets, offsets_request
from ottla.broker.cluster_client.topics import Leader, Topic, topics_of
from ottla.broker.network.client import Address, ClientSettings, NodeClient
from ottla.protocol.errors import KafkaError, UnsupportedVersion
from ottla.protocol.messages.list_offsets import ListOffsetsResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.schema import Request, Response
from ottla.protocol.types import TopicPartition
from ottla.runtime import Runtime

T = TypeVar("T")
R = TypeVar("R", bound=Response)


@dataclass(slots=True, frozen=True, kw_only=True)
class Waits:
    """The times for which a client waits, in seconds."""

    #: For one response.
    request_s: float = 30.0
    #: For the end of an error that may end by itself.
    patience_s: float = 30.0
    #: For a topic or group that does not exist, since it may be about to be created.
    unknown_s: float = 1.0
    #: For a broker while none answers.
    no_broker_s: float = 0.0
    #: Between two attempts.
    pause_s: float = 0.2

    def limit_s(self, error: Transient) -> float:
        """The time after which an error is final."""
        match error:
            case NoBrokerAnswers():
                return self.no_broker_s
            case Unknown():
                return self.unknown_s
        return self.patience_s


class ClusterClient:
    """Sends requests to the brokers of a cluster. Closed by `close`."""

    def __init__(
        self,
        runtime: Runtime,
        bootstrap: Callable[[], Sequence[Address]],
        *,
        client_id: str,
        waits: Waits | None = None,
        settings: ClientSettings | None = None,
    ) -> None:
        """`bootstrap` returns the addresses of brokers, which may change."""
        self.runtime = runtime
        self.waits = waits or Waits()
        self._bootstrap = bootstrap
        self._client = NodeClient(runtime, client_id=client_id, settings=settings)
        #: The broker that answered first; None before.
        self._known: Address | None = None

    @property
    def timeout_ms(self) -> int:
        """The timeout of a request in the words of a message."""
        return round(self.waits.request_s * 1000)

    async def close(self) -> None:
        """Close the connections to all brokers."""
        await self._client.close()

    # -- requests ---------------------------------------------------------------------------------------

    async def request(
        self,
        address: Address,
        message: Request,
        expected: type[R],
        *,
        versions: range | None = None,
        timeout_s: float | None = None,
    ) -> R:
        """Return a broker's response, of the expected class.

        Raises BrokerUnreachable if it does not answer, and UnsupportedVersion.
        """
        limit_s = self.waits.request_s if timeout_s is None else timeout_s
        try:
            response = await self._client.request(
                address, message.__api_key__, message, timeout_s=limit_s, versions=versions
            )
        except UnsupportedVersion:
            raise
        except (OSError, TimeoutError, KafkaError) as error:
            raise BrokerUnreachable(f"A broker of the cluster does not answer: {error}.") from error
        assert isinstance(response, expected), type(response)
        return response

    async def ask_any(
        self,
        message: Request,
        expected: type[R],
        *,
        versions: range | None = None,
        timeout_s: float | None = None,
    ) -> R:
        """Return the response of the first broker that answers. Raises NoBrokerAnswers, UnsupportedVersion."""
        addresses = self._bootstrap()
        problems = []
        # The broker that has answered before comes first: a stable sort.
        for address in sorted(addresses, key=lambda each: each != self._known):
            try:
                response = await self.request(
                    address, message, expected, versions=versions, timeout_s=timeout_s
                )
            except BrokerUnreachable as error:
                problems.append(str(error.__cause__))
                continue
            self._known = address
            return response
        raise NoBrokerAnswers(
            f"No broker answers at {_text(addresses)}: {'; '.join(problems)}."
            if addresses
            else "No broker answers: none is running."
        )

    async def patiently(self, attempt: Callable[[], Awaitable[T]], *, timeout_s: float | None = None) -> T:
        """Repeat an attempt while it raises Transient, for the time that `waits` has for the error.

        `timeout_s` is another time for all errors. Raises ClusterError.
        """
        began = self.runtime.monotonic()
        while True:
            try:
                return await attempt()
            except UnsupportedVersion as error:
                raise ClusterError(str(error)) from error
            except Transient as error:
                limit_s = self.waits.limit_s(error) if timeout_s is None else timeout_s
                if not limit_s:
                    raise
                if self.runtime.monotonic() - began >= limit_s:
                    raise ClusterError(f"{error} (waited {limit_s:g} s)") from error
            await asyncio.sleep(self.waits.pause_s)

    # -- what every user asks ---------------------------------------------------------------------------

    async def metadata(
        self, names: Collection[str] | None = None, *, creates: bool = False
    ) -> MetadataResponse:
        """Return the brokers, and these topics or all; `creates` lets brokers create them. Raises ClusterError."""
        asked = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=creates)
        try:
            return await self.ask_any(request, MetadataResponse)
        except UnsupportedVersion:
            raise ClusterError(
                f"The node that answers at {_text(self._bootstrap())} serves no clients, as a controller's "
                "listener does. Name the listener of a broker."
            ) from None

    async def topics(self, names: Collection[str] | None = None) -> dict[str, Topic]:
        """Return all topics, or those of these names that exist. Raises ClusterError."""
        return topics_of(await self.metadata(names))

    async def topic(self, name: str, *, creates: bool = False) -> Topic:
        """Return a topic. Raises Unknown if it does not exist, Transient or ClusterError for another error."""
        response = await self.metadata([name], creates=creates)
        for row in response.topics:
            check(row.error_code, f"topic {name}")
        found = topics_of(response).get(name)
        if found is None:
            raise Unknown(f"There is no topic {name}.")
        return found

    async def offsets(self, partitions: Mapping[TopicPartition, Leader], timestamp: int) -> Offsets:
        """Return each partition's offset at a timestamp, which may be a special one, as its leader reports it."""
        by_address: dict[Address, dict[TopicPartition, Leader]] = {}
        for each, leader in partitions.items():
            by_address.setdefault(leader.address, {})[each] = leader
        found = Offsets()
        for address, led in by_address.items():
            request = offsets_request(
                ((each, leader.epoch) for each, leader in led.items()),
                timestamp,
                timeout_ms=self.timeout_ms,
            )
            try:
                found.add(await self.request(address, request, ListOffsetsResponse))
            except (BrokerUnreachable, UnsupportedVersion) as error:
                found.add_error(led, error)
        return found

    async def offsets_now(
        self, partitions: Collection[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int | None]:
        """Return the offsets of partitions at their present leaders; None: the log has no such offset.

        Raises Transient if a partition has no leader, or another one meanwhile, and ClusterError.
        """
        topics = await self.topics({each.topic for each in partitions})
        leaders = {}
        for each in partitions:
            if each.topic not in topics:
                raise Unknown(f"There is no topic {each.topic}.")
            leaders[each] = topics[each.topic].leader_of(each.partition)
        return (await self.offsets(leaders, timestamp)).checked()


def addresses_of(text: str, *, option: str = "--bootstrap-server") -> tuple[Address, ...]:
    """Parse HOST:PORT,... Raises ClusterError, which names the option."""
    found = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ClusterError(f"{option} {text}: '{part}' is no address of a broker: it must be HOST:PORT.")
        found.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return tuple(found)


def _text(addresses: Sequence[Address]) -> str:
    return ",".join(f"{host}:{port}" for host, port in addresses)
