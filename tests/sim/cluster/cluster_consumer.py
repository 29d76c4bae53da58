"""A consumer of the simulated cluster: reads a partition, and truncates what it has read where the log was
truncated.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from cluster_clients import BACKOFF_S, UNANSWERED, Client

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.records.batch import BatchHeader, batches
from ottla.protocol.records.control import end_transaction_marker
from ottla.protocol.records.record import records as records_of
from ottla.protocol.special_timestamps import EARLIEST
from ottla.runtime.simulated import Simulation
from tests.harness.history import History, Poll

#: Replica ids of requests: DEBUGGING is answered by followers, too.
CONSUMER, DEBUGGING = -1, -2


class Read(NamedTuple):
    """A record that was read."""

    offset: int
    leader_epoch: int
    key: bytes | None
    value: bytes | None


class Consumer(Client):
    """Reads one partition from its beginning, from the leader or from the replica that the leader names.

    Its `view` is the log as it has read it. Where the log diverges from it, the view is truncated, as a
    follower truncates its log (KIP-320). It learns of that by its fetches, which name the epoch of the last
    record; or, if it `validates`, as Kafka's own consumer does: each new leader is asked where that epoch
    ends, before anything is fetched.
    """

    def __init__(
        self,
        simulation: Simulation,
        random: Random,
        brokers: Sequence[int],
        history: History,
        *,
        name: str,
        topic: str,
        partition: int,
        rack: str = "",
        validates: bool = False,
        is_read_committed: bool = False,
        replica: int | None = None,
    ) -> None:
        """`replica`: it reads from this one only, whichever leads."""
        super().__init__(simulation, random, brokers, name=name)
        self._history = history
        self.topic, self.partition = topic, partition
        self._rack, self._validates = rack, validates
        self.is_read_committed, self._replica = is_read_committed, replica
        self.position = 0
        #: The leader epoch of the batch before the position; -1: none was read.
        #: The batch may be empty, in a compacted topic.
        self._last_epoch = -1
        #: Where the log began when it was last asked for, instead of a batch before the position; None: never.
        self._reset_to: int | None = None
        self.view: list[Read] = []
        #: The leader epoch in which its position was last validated.
        self.agreed_epoch = -1
        self._preferred: int | None = None

    async def consume(self, *, is_over: Callable[[int], bool]) -> None:
        """Consume from the position until the story is over."""
        while not is_over(self.position):
            leader, epoch = await self.leader_of(self.topic, self.partition)
            source = leader if self._preferred is None else self._preferred
            if self._replica is not None:
                source = self._replica
            try:
                if self._validates and epoch != self.agreed_epoch and self._last_epoch >= 0:
                    await self._validate(leader, epoch)
                    continue
                response = await self.request(source, ApiKey.FETCH, self._message(epoch))
                rows = [row for found in response.responses for row in found.partitions]
                if response.error_code != ErrorCode.none or not rows:
                    await self._look_again()
                    continue
                await self._take(rows[0], source, epoch, is_leader=source == leader)
            except UNANSWERED:
                await self._look_again()

    async def _look_again(self) -> None:
        self._preferred = None
        await self.lost_leader(self.topic, self.partition)

    # -- fetching --------------------------------------------------------------------------------------

    def _message(self, leader_epoch: int) -> FetchRequest:
        wanted = FetchPartition(
            partition=self.partition,
            current_leader_epoch=leader_epoch,
            fetch_offset=self.position,
            last_fetched_epoch=-1 if self._validates else self._last_epoch,
            partition_max_bytes=self.random.choice((100, 400, 100_000)),
        )
        topic = FetchTopic(topic=self.topic, topic_id=self._topic_ids[self.topic], partitions=[wanted])
        return FetchRequest(
            max_wait_ms=300,
            min_bytes=1,
            topics=[topic],
            rack_id=self._rack,
            isolation_level=int(self.is_read_committed),
        )

    async def _take(self, row: Any, source: int, epoch: int, *, is_leader: bool) -> None:
        code = ErrorCode(row.error_code)
        if code == ErrorCode.offset_not_available:
            await asyncio.sleep(BACKOFF_S)
            return
        if code == ErrorCode.offset_out_of_range and not is_leader and self._replica is None:
            # A follower that has not so much yet, or not any more: the leader knows (KIP-392, case 4).
            await self._look_again()
            return
        if code == ErrorCode.offset_out_of_range:
            await self._out_of_range(source, epoch)
            return
        if code != ErrorCode.none:
            await self._look_again()
            return
        if row.diverging_epoch.epoch >= 0:
            self._cut(row.diverging_epoch.epoch, row.diverging_epoch.end_offset)
            return
        if row.preferred_read_replica >= 0:
            self._preferred = row.preferred_read_replica
            return
        self.agreed_epoch = epoch
        self._read(row, source)

    async def _out_of_range(self, leader: int, epoch: int) -> None:
        """Return to the beginning (auto.offset.reset=earliest). Raises one of UNANSWERED."""
        partition = ListOffsetsPartition(
            partition_index=self.partition, current_leader_epoch=epoch, timestamp=EARLIEST
        )
        topic = ListOffsetsTopic(name=self.topic, partitions=[partition])
        # A replica may begin behind its leader, which had no time to save where an operator wanted it to begin.
        asking = CONSUMER if self._replica is None else DEBUGGING
        response = await self.request(
            leader, ApiKey.LIST_OFFSETS, ListOffsetsRequest(replica_id=asking, topics=[topic])
        )
        row = response.topics[0].partitions[0]
        if row.error_code != ErrorCode.none:
            await self._look_again()
            return
        if self.topic in self._history.trimmed and self.position == row.offset:
            # Its former leader has expired the first copies, which a new one finds out in a moment.
            await self._look_again()
            return
        is_trimmed = self.topic in self._history.trimmed and self.position < row.offset
        if not is_trimmed and self.topic not in self._history.unclean:
            self._history.errors.append(f"{self.name}: {self.position} is out of range of {leader}: {row}")
        if not is_trimmed:
            self.view.clear()
        self.position, self._last_epoch = row.offset, row.leader_epoch
        self._reset_to = row.offset

    def _read(self, row: Any, source: int) -> None:
        read = []
        start = self.position
        aborted = _Aborted(row.aborted_transactions or ()) if self.is_read_committed else None
        for header, batch in batches(memoryview(row.records or b"")):
            epoch = header.partition_leader_epoch
            is_hidden = aborted is not None and aborted.hides(header, batch)
            for record in () if is_hidden or header.is_control else records_of(batch):
                if record.offset >= self.position:
                    key, value = (
                        None if each is None else bytes(each) for each in (record.key, record.value)
                    )
                    read.append(Read(record.offset, epoch, key, value))
            if header.next_offset > self.position:
                self.position, self._last_epoch = header.next_offset, epoch
        self.view += read
        found = [each for each in read if each.value is not None]
        if self.position > start:
            self._history.polled(
                Poll(
                    client=self.name,
                    topic=self.topic,
                    partition=self.partition,
                    found=[(each.offset, each.value or b"") for each in found],
                    epochs=[each.leader_epoch for each in found],
                    broker_id=source,
                    high_watermark=row.high_watermark,
                    time_s=self.simulation.loop.time(),
                    is_read_committed=self.is_read_committed,
                    positions=(start, self.position),
                )
            )

    # -- truncation ------------------------------------------------------------------------------------

    async def _validate(self, leader: int, epoch: int) -> None:
        """Ask the leader where the epoch of the last record ends. Raises one of UNANSWERED."""
        asked = OffsetForLeaderPartition(
            partition=self.partition, current_leader_epoch=epoch, leader_epoch=self._last_epoch
        )
        topic = OffsetForLeaderTopic(topic=self.topic, partitions=[asked])
        response = await self.request(
            leader,
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic]),
        )
        row = response.topics[0].partitions[0]
        if row.error_code == ErrorCode.offset_not_available:
            await asyncio.sleep(BACKOFF_S)
        elif row.error_code != ErrorCode.none:
            await self._look_again()
        elif row.leader_epoch < self._last_epoch or row.end_offset < self.position:
            self._cut(row.leader_epoch, max(0, row.end_offset))
        else:
            self.agreed_epoch = epoch

    def _cut(self, epoch: int, end_offset: int) -> None:
        """Beyond `end_offset` the leader's log has nothing of ours, nor has it newer epochs than this one before."""
        # A leader epoch in which nothing was written may have been that of the log's beginning.
        is_read = end_offset < self.position or self.position != self._reset_to
        if is_read and self.topic not in self._history.unclean:
            self._history.errors.append(
                f"{self.name}: {self.position} is cut off: {epoch} ends at {end_offset}"
            )
        while self.view and (self.view[-1].offset >= end_offset or self.view[-1].leader_epoch > epoch):
            self.position = self.view.pop().offset
        self.position = min(self.position, end_offset)
        self._last_epoch = min(self._last_epoch, epoch)


class _Aborted:
    """The aborted transactions of a response, applied to its batches as Kafka's own consumer does."""

    def __init__(self, transactions: Sequence[Any]) -> None:
        self._pending = sorted((each.first_offset, each.producer_id) for each in transactions)
        self._producers: set[int] = set()

    def hides(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether the next batch belongs to one of them."""
        while self._pending and self._pending[0][0] <= header.last_offset:
            self._producers.add(self._pending.pop(0)[1])
        if header.is_control:
            marker = end_transaction_marker(batch)
            if marker is not None and not marker.is_commit:
                self._producers.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._producers
