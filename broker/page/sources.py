"""Sources: where the numbers of the page come from.

    this node          its own objects, read on the loop: replicas, logs, groups, counters
    the cluster        the image of the metadata log, which every broker has
    other brokers      requests that exist, over the inter-broker listener: bounded in time, all brokers in parallel

A broker that does not answer costs its own cells, which say so, and no others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, TypeVar

from ottla.broker.network.client import Address, ClientSettings, Disconnected, NodeClient
from ottla.broker.page.lags import LagHistory
from ottla.broker.page.query import CannotShow
from ottla.broker.page.rates import Rates
from ottla.broker.page.tally import ClusterTally
from ottla.broker.request_stats import RequestStats
from ottla.broker.services import BrokerServices
from ottla.protocol.errors import KafkaError
from ottla.protocol.schema import Request, Response
from ottla.protocol.types import TopicPartition

T = TypeVar("T")
R = TypeVar("R", bound=Response)

#: The time limit for one broker's answers to one view.
ASK_S: Final = 2.0
#: The largest response that is accepted: of the records of one Fetch, mostly.
_MAX_RESPONSE_BYTES: Final = 16 * 1024 * 1024
_MOST_WATERMARKS: Final = 10_000
_CONNECT_MS: Final = 1_000


class Sources:
    """The state of this node and its cluster, for the views."""

    def __init__(self, broker: BrokerServices, request_stats: RequestStats) -> None:
        self.broker = broker
        self.runtime = broker.runtime
        self.rates = Rates(broker.runtime, broker.replicas.topic_stats, request_stats)
        self.lags = LagHistory(broker.runtime)
        self.tally = ClusterTally(broker)
        #: The high watermarks that replicas of other brokers have reported last, by broker; at most `_MOST_WATERMARKS`.
        self._watermarks: dict[int, dict[TopicPartition, int]] = {}
        self._client = NodeClient(
            broker.runtime,
            client_id=f"broker-{broker.node_id}-page",
            settings=ClientSettings(
                response_max_bytes=_MAX_RESPONSE_BYTES,
                connect_timeout_ms=_CONNECT_MS,
                connect_timeout_max_ms=_CONNECT_MS,
                waits_for_reconnect=False,
                max_idle_ms=30_000,
            ),
        )

    async def close(self) -> None:
        """Close the connections to other brokers."""
        await self._client.close()

    def forget(self) -> None:
        """Release what was computed: no view is watched any more."""
        self.tally.forget()
        self.rates.forget()
        self.lags.forget()
        self._watermarks.clear()

    def watermarks(self, broker_id: int) -> dict[TopicPartition, int]:
        """The high watermarks that a broker's replicas have reported last, for the caller to change."""
        if sum(map(len, self._watermarks.values())) > _MOST_WATERMARKS:
            self._watermarks.clear()
        return self._watermarks.setdefault(broker_id, {})

    def address_of(self, broker_id: int) -> Address | None:
        """The address at which this broker reaches another one; None: it is not known."""
        listener = self.broker.config.inter_broker_listener_name
        endpoint = self.broker.metadata.endpoint(broker_id, listener)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    def alive(self) -> list[int]:
        """The ids of the brokers that are alive, in their order."""
        return sorted(
            each.broker_id for each in self.broker.metadata.image.brokers.values() if not each.is_fenced
        )

    async def ask(
        self,
        broker_id: int,
        message: Request,
        expected: type[R],
        *,
        versions: range | None = None,
        timeout_s: float = ASK_S,
    ) -> R:
        """The response of a broker, which may be this one. Raises CannotShow with a sentence if it does not answer."""
        address = self.address_of(broker_id)
        if address is None:
            raise CannotShow(503, f"The broker {broker_id} is not registered.")
        try:
            response = await self._client.request(
                address, message.__api_key__, message, timeout_s=timeout_s, versions=versions
            )
        except (Disconnected, TimeoutError, OSError, KafkaError) as error:
            raise CannotShow(503, f"The broker {broker_id} does not answer: {error}.") from error
        assert isinstance(response, expected), type(response)
        return response


async def each_of(
    brokers: Collection[int], question: Callable[[int], Awaitable[T]]
) -> tuple[Mapping[int, T], Mapping[int, str]]:
    """Ask brokers in parallel; returns their answers, and the sentences about those that gave none."""
    answers: dict[int, T] = {}
    problems: dict[int, str] = {}

    async def ask(broker_id: int) -> None:
        try:
            answers[broker_id] = await question(broker_id)
        except CannotShow as error:
            problems[broker_id] = str(error)

    await asyncio.gather(*map(ask, brokers))
    return answers, problems
