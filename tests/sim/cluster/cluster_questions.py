"""A client of the simulated cluster that asks where a log begins, ends, and was at a time,
and holds each answer against the ledger.

| question | what must hold, where a leader answers in its epoch |
| --- | --- |
| earliest and latest, also of one tier, | they are in order, and never move back (`cluster_bounds`); latest is all |
| or of what is decided | that was committed when the epoch began (KIP-207) |
| a time | the first record that is not older, among those of the ledger |
| the largest timestamp | a record of the ledger, and none that was committed when the epoch began is newer (KIP-734) |
| the end of an epoch | behind every committed record of it, and before those of newer ones (KIP-101, 279); |
|  | that of the present one within what is committed (KIP-392) |
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from cluster_bounds import TIMESTAMPS, Bounds
from cluster_clients import BACKOFF_S, UNANSWERED, Client
from cluster_judge import Judge
from cluster_ledger import Ledger
from cluster_violated import Violated

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.special_timestamps import LATEST, MAX_TIMESTAMP
from ottla.runtime.simulated import Simulation


class Inquirer(Client):
    """Sends random requests about one partition's offsets, and compares the responses with its ledger."""

    def __init__(
        self,
        simulation: Simulation,
        random: Random,
        brokers: Sequence[int],
        judge: Judge,
        *,
        name: str,
        topic: str,
        partition: int,
    ) -> None:
        super().__init__(simulation, random, brokers, name=name)
        self._judge = judge
        self._topic, self._partition = topic, partition
        self._bounds = Bounds()
        self.answer_count = 0

    async def ask(self, *, pause_s: float, is_over: Callable[[], bool]) -> None:
        """One question after the other until it is over. Raises Violated."""
        while not is_over():
            leader, epoch = await self.leader_of(self._topic, self._partition)
            # Sometimes a broker that should not answer.
            asked = leader if self.random.random() < 0.8 else self.random.choice(self._brokers)
            question = self.random.choice((self._ask_offset, self._ask_offset, self._ask_epoch))
            try:
                code = await question(asked, epoch)
            except UNANSWERED:
                code = ErrorCode.network_exception
            if code == ErrorCode.none:
                self.answer_count += 1
                await asyncio.sleep(self.random.uniform(0, 2 * pause_s))
            elif code == ErrorCode.offset_not_available or asked != leader:
                await asyncio.sleep(BACKOFF_S)
            else:
                await self.lost_leader(self._topic, self._partition)

    def _ledger(self, broker_id: int, epoch: int) -> Ledger:
        """The ledger of this epoch's leader. Raises Violated if the leader is another broker."""
        known = self._judge.leader_and_ledger(self._topic, self._partition, epoch)
        if known is None or known[0] != broker_id:
            raise Violated(
                f"LeadersAnswer: {broker_id} answers in epoch {epoch}, led by {known and known[0]}"
            )
        return known[1]

    # -- offsets ---------------------------------------------------------------------------------------

    async def _ask_offset(self, broker_id: int, epoch: int) -> ErrorCode:
        now_ms = self.runtime.now_ms()
        timestamp = self.random.choice(
            (*TIMESTAMPS, LATEST, MAX_TIMESTAMP, now_ms - self.random.randint(0, 3000))
        )
        is_read_committed = self.random.random() < 0.5
        partition = ListOffsetsPartition(
            partition_index=self._partition, current_leader_epoch=epoch, timestamp=timestamp
        )
        process = self._judge.process_of(broker_id)
        response = await self.request(
            broker_id,
            ApiKey.LIST_OFFSETS,
            ListOffsetsRequest(
                replica_id=-1,
                isolation_level=int(is_read_committed),
                topics=[ListOffsetsTopic(name=self._topic, partitions=[partition])],
            ),
        )
        row = response.topics[0].partitions[0]
        if row.error_code == ErrorCode.none:
            ledger = self._ledger(broker_id, epoch)
            where = f"{self._topic}-{self._partition} by {broker_id} in epoch {epoch}: {row}"
            if process is not self._judge.process_of(broker_id):
                return ErrorCode.none  # it has restarted: which of the two has responded is unknown
            if timestamp in TIMESTAMPS:
                self._bounds.check(
                    timestamp,
                    row,
                    is_read_committed=is_read_committed,
                    epoch=epoch,
                    process=process,
                    ledger=ledger,
                    now=self._judge.offsets_of_leader(self._topic, self._partition, broker_id, epoch),
                    where=where,
                )
                return ErrorCode.none
            end = ledger.begun[epoch]
            if is_read_committed:
                end = min(end, self._bounds.least_stable(epoch, process))
            if row.offset >= 0:
                self._check_found(timestamp, row, self._start(broker_id), end, ledger, where)
            elif timestamp != MAX_TIMESTAMP:
                self._check_none(timestamp, self._start(broker_id), end, ledger, where)
        return ErrorCode(row.error_code)

    def _start(self, broker_id: int) -> int:
        """The present start of the leader's log: a response may have known records before it."""
        return self._judge.log_start_offset(self._topic, self._partition, broker_id)

    def _check_found(
        self, timestamp: int, row: Any, start: int, end: int, ledger: Ledger, where: str
    ) -> None:
        record = ledger.records.get(row.offset)
        if record is None or (record.timestamp, record.leader_epoch) != (row.timestamp, row.leader_epoch):
            raise Violated(f"OffsetsAreTrue: committed there is {record}: {where}")
        if timestamp == MAX_TIMESTAMP:
            self._check_none(row.timestamp + 1, start, end, ledger, where)
        elif row.timestamp < timestamp:
            raise Violated(f"OffsetsAreTrue: older than {timestamp}: {where}")
        else:
            self._check_none(timestamp, start, row.offset, ledger, where)

    def _check_none(self, timestamp: int, start: int, end: int, ledger: Ledger, where: str) -> None:
        """No record of [start, end) is so new."""
        for offset in range(start, end):
            record = ledger.records.get(offset)
            if record is not None and record.timestamp >= timestamp:
                raise Violated(f"OffsetsAreTrue: at {offset} is {record}, {timestamp} was asked for: {where}")

    # -- epochs ----------------------------------------------------------------------------------------

    async def _ask_epoch(self, broker_id: int, epoch: int) -> ErrorCode:
        asked = self.random.randint(0, epoch)
        partition = OffsetForLeaderPartition(
            partition=self._partition, current_leader_epoch=epoch, leader_epoch=asked
        )
        response = await self.request(
            broker_id,
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            OffsetForLeaderEpochRequest(
                replica_id=-1, topics=[OffsetForLeaderTopic(topic=self._topic, partitions=[partition])]
            ),
        )
        row = response.topics[0].partitions[0]
        if row.error_code == ErrorCode.none:
            ledger = self._ledger(broker_id, epoch)
            where = f"{asked} of {self._topic}-{self._partition} by {broker_id} in epoch {epoch}: {row}"
            committed = ledger.end_of_epoch(asked, before=ledger.begun[epoch])
            is_bounded = row.leader_epoch < epoch or row.end_offset <= ledger.end
            if row.leader_epoch > asked or row.end_offset < committed or not is_bounded:
                raise Violated(f"EpochsEndWhereTheyDid: committed of it is {committed}: {where}")
            for offset in range(self._start(broker_id), min(row.end_offset, ledger.end_under(epoch))):
                record = ledger.records.get(offset)
                if record is not None and record.leader_epoch > row.leader_epoch:
                    raise Violated(f"EpochsEndWhereTheyDid: at {offset} is {record}: {where}")
        return ErrorCode(row.error_code)
