"""EndOffsets: where consumers' partitions end, for the lag of the groups that this broker coordinates.

    a replica is here   the high watermark of the log, at any time
    otherwise           what the leader has answered to a ListOffsets request, sent before each page that needs it

So no request is sent while no page is read, and none in a cluster in which each broker has a replica of each
partition. What is asked for is what the page before has missed: a partition appears on the second page.

    leader --answers within WAIT_S--> its ends are on this page
           --answers later ---------> its ends are on the next page; no page waits for it until it has answered again
           --does not answer -------> its last answer is shown for KEPT_S, then none
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Final, NamedTuple

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
#: The longest time for which a page waits for leaders that answered before.
WAIT_S: Final = 0.2
#: The time that a leader has for its answer, which pages do not wait for.
TIMEOUT_S: Final = 5.0
#: An answer is shown for so long while there is no newer one; then the lags are missing, since the end has moved on.
KEPT_S: Final = 60.0
#: The partitions of one request: a millisecond of encoding.
_PARTITIONS_OF_REQUEST: Final = 200
#: The partitions whose leaders are looked up in one step: some 50 µs.
_PARTITIONS_OF_STEP: Final = 50


class _Answer(NamedTuple):
    """The answer of a leader, and when it has arrived, in seconds of the monotonic clock."""

    end_offset: int
    at_s: float


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
        #: The ends that leaders have answered, of the partitions that the last page has asked for, and when.
        self._answered: dict[TopicPartition, _Answer] = {}
        #: The requests in progress, at most one for each leader, and the leaders that have not answered in time.
        self._asking: dict[Address, asyncio.Task[None]] = {}
        self._silent: set[Address] = set()

    def get(self, at: TopicPartition) -> int | None:
        """The high watermark of a partition; None: not known now."""
        partition = self._replicas.hosted.get(at)
        if partition is not None:
            return partition.log.offsets.high_watermark
        self._missed.add(at)
        answer = self._answered.get(at)
        return None if answer is None else answer.end_offset

    async def refresh(self) -> None:
        """Ask the leaders for what the last page has missed; returns after their answers, or after WAIT_S."""
        missed, self._missed = self._missed, set()
        by_leader: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        await in_turns(self._runtime, self._group(missed, by_leader))
        awaited = {}
        for leader, wanted in by_leader.items():
            address = self._address_of(leader)
            if address is None or address in self._asking:
                continue
            asking = self._runtime.create_task(self._ask(address, wanted), name="metrics-end-offsets")
            self._asking[address] = asking
            if address not in self._silent:
                awaited[address] = asking
        if awaited:
            await asyncio.wait(awaited.values(), timeout=WAIT_S)
        self._silent.update(address for address, asking in awaited.items() if not asking.done())

    def _group(
        self, missed: Collection[TopicPartition], by_leader: defaultdict[int, list[TopicPartition]]
    ) -> Iterator[None]:
        """Find the leaders of partitions, and keep the answers that are not too old."""
        before, self._answered = self._answered, {}
        oldest_s = self._runtime.monotonic() - KEPT_S
        for number, at in enumerate(missed, start=1):
            answer = before.get(at)
            if answer is not None and answer.at_s > oldest_s:
                self._answered.setdefault(at, answer)
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
                answered_s = self._runtime.monotonic()
                for topic in response.topics:
                    for row in topic.partitions:
                        if row.error_code == ErrorCode.none:
                            at = TopicPartition(topic.name, row.partition_index)
                            self._answered[at] = _Answer(row.offset, answered_s)
            self._silent.discard(address)
        except (Disconnected, TimeoutError, KafkaError, OSError) as error:
            logger.debug("%s:%d has not answered where its partitions end: %s", *address, error)
            self._silent.add(address)
        finally:
            self._asking.pop(address, None)

    async def close(self) -> None:
        """Close the connections to leaders."""
        for asking in list(self._asking.values()):
            asking.cancel()
        await self._client.close()


def _request(wanted: Collection[TopicPartition]) -> ListOffsetsRequest:
    by_topic: defaultdict[str, list[ListOffsetsPartition]] = defaultdict(list)
    for topic, index in wanted:
        by_topic[topic].append(ListOffsetsPartition(partition_index=index, timestamp=_LATEST))
    topics = [ListOffsetsTopic(name=name, partitions=rows) for name, rows in by_topic.items()]
    return ListOffsetsRequest(replica_id=_CONSUMER, topics=topics)
