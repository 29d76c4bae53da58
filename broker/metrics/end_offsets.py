"""EndOffsets: where consumers' partitions end, for the lag of the groups that this broker coordinates.

    a replica is here   the high watermark of the log, at any time
    otherwise           what the leader has answered to a ListOffsets request, sent before each page that needs it

So no request is sent while no page is read, and none in a cluster in which each broker has a replica of each
partition. What is asked for is what the page before has missed: a partition appears on the second page.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator
from itertools import islice
from typing import Final

from ottla.broker.network.client import Address, Disconnected, NodeClient
from ottla.broker.replicas.replica_manager import ReplicaManager
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.types import TopicPartition
from ottla.runtime import Runtime
from ottla.runtime.turns import in_turns

logger = logging.getLogger(__name__)

#: ListOffsets: the end of the partition, as a consumer's request.
_LATEST: Final = -1
_CONSUMER: Final = -1
#: The time for which a page waits for all leaders; the lags of one that does not answer are missing on it.
TIMEOUT_S: Final = 1.0
#: The partitions of one request: a millisecond of encoding.
_PARTITIONS_OF_REQUEST: Final = 200
#: The partitions whose leaders are looked up in one step: some 50 µs.
_PARTITIONS_OF_STEP: Final = 50


class EndOffsets:
    """The high watermarks of partitions, of which this broker may have no replica. Belongs to the event loop."""

    def __init__(
        self,
        runtime: Runtime,
        replicas: ReplicaManager,
        client: NodeClient,
        *,
        address_of: Callable[[int], Address | None],
    ) -> None:
        """`address_of` returns the address at which this broker reaches another one; None: it is not known."""
        self._runtime = runtime
        self._replicas = replicas
        self._client = client
        self._address_of = address_of
        #: What the last page has asked for and no replica here has.
        self._missed: set[TopicPartition] = set()
        #: What leaders have answered for the present page.
        self._answered: dict[TopicPartition, int] = {}

    def get(self, at: TopicPartition) -> int | None:
        """The high watermark of a partition; None: not known now."""
        partition = self._replicas.hosted.get(at)
        if partition is not None:
            return partition.log.offsets.high_watermark
        self._missed.add(at)
        return self._answered.get(at)

    async def refresh(self) -> None:
        """Ask the leaders for what the last page has missed; returns when they have answered, or after TIMEOUT_S."""
        missed, self._missed, self._answered = self._missed, set(), {}
        by_leader: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        await in_turns(self._runtime, self._group(missed, by_leader))
        asking: list[Awaitable[None]] = [
            self._ask(address, wanted)
            for leader, wanted in by_leader.items()
            if (address := self._address_of(leader)) is not None
        ]
        if asking:
            await asyncio.gather(*asking)

    def _group(
        self, missed: Collection[TopicPartition], by_leader: defaultdict[int, list[TopicPartition]]
    ) -> Iterator[None]:
        for number, at in enumerate(missed, start=1):
            image = self._replicas.metadata.partition(at)
            if image is not None and image.leader is not None:
                by_leader[image.leader].append(at)
            if number % _PARTITIONS_OF_STEP == 0:
                yield

    async def _ask(self, address: Address, wanted: Collection[TopicPartition]) -> None:
        deadline = self._runtime.monotonic() + TIMEOUT_S
        rest = iter(wanted)
        try:
            while some := list(islice(rest, _PARTITIONS_OF_REQUEST)):
                timeout_s = deadline - self._runtime.monotonic()
                if timeout_s <= 0:
                    break
                request = _request(some)
                response = await self._client.request(
                    address, ApiKey.LIST_OFFSETS, request, timeout_s=timeout_s
                )
                for topic in response.topics:
                    for row in topic.partitions:
                        if row.error_code == ErrorCode.none:
                            self._answered[TopicPartition(topic.name, row.partition_index)] = row.offset
        except (Disconnected, TimeoutError, KafkaError, OSError) as error:
            logger.debug("%s:%d has not answered where its partitions end: %s", *address, error)

    async def close(self) -> None:
        """Close the connections to leaders."""
        await self._client.close()


def _request(wanted: Collection[TopicPartition]) -> ListOffsetsRequest:
    by_topic: defaultdict[str, list[ListOffsetsPartition]] = defaultdict(list)
    for topic, index in wanted:
        by_topic[topic].append(ListOffsetsPartition(partition_index=index, timestamp=_LATEST))
    topics = [ListOffsetsTopic(name=name, partitions=rows) for name, rows in by_topic.items()]
    return ListOffsetsRequest(replica_id=_CONSUMER, topics=topics)
