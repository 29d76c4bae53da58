"""ISR changes, proposed to the controller (AlterPartition, KIP-497): one request at a time, with all pending changes.

    propose --> waiting --> in one request with all others --> granted, or out of date: left to the metadata log
                   ^                     |                '--> refused: the partition is notified
                   '------- retry -------'--- no controller, a stale broker epoch, a temporary error, a bug

    report --> collected for a second --> in one request with up to `_MAX_REPORTS`, if still due and no ISR change waits
                   ^                             |
                   '------ due afterwards -------'

Every request has the local logs of the ISR, if elections ask for them (draft KIP-1303). A report is a request
whose ISR is the committed one: only local logs have changed. Retention changes those of many partitions at
once, each replica's at another moment, so reports are collected. ISR changes are sent first, and take the
report of their partition along; they wait for a report only while it is in flight. A report changes nothing
here: no high watermark waits for it, and `ottla.replication.local_log_reports` decides again, by the metadata
log, whether one is due.

A change waits until it is granted, refused or out of date, even if the task that sends the request fails: a partition
with a proposed ISR proposes no other one.

A granted ISR takes effect when the metadata log has it, not when the response arrives (Kafka applies the response):
only then does the leader know the configuration by which the controller chose the ELR. With an older, smaller
min.insync.replicas the leader would commit records that a member of the ELR lacks (KIP-966).

Source: AlterPartitionManager (DefaultAlterPartitionManager) and Partition.handleAlterPartitionError of Kafka 4.3.1.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Any, Final

from ottla.broker.membership.controller_channel import ControllerChannel
from ottla.broker.replicas.partition import Partition
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    PartitionDataResponse,
    TopicData,
)
from ottla.replication.local_log_reports import LocalLogReports
from ottla.runtime import Runtime

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.05
#: How long reports are collected. Retention moves the local log starts of 100 logs in that time
#: (`ottla.storage.manager.scheduled_tasks`).
_COLLECTION_S: Final = 1.0
#: Reports in one request, which an ISR change may have to wait for.
_MAX_REPORTS: Final = 500

#: The controller has not attempted the change, or refuses that member: the ISR is unchanged.
_NOT_DONE: Final = frozenset({ErrorCode.operation_not_attempted, ErrorCode.ineligible_replica})
#: The proposal is out of date; the metadata log will deliver the present state.
_OUT_OF_DATE: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.invalid_update_version,
        ErrorCode.invalid_request,
        ErrorCode.new_leader_elected,
    }
)


class AlterPartitionManager:
    """Sends the ISR changes and local log reports of all led partitions to the controller (AlterPartition)."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        controller: ControllerChannel,
        node_id: int,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._runtime = runtime
        self._controller = controller
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        # In order of submission: the order of a set would depend on addresses.
        self._waiting: dict[Partition, None] = {}
        #: Reports that are being collected, and those that are to be sent.
        self._collecting: dict[Partition, None] = {}
        self._collected: dict[Partition, None] = {}
        self._asking: asyncio.Task[None] | None = None

    def submit(self, partition: Partition) -> None:
        """Send the ISR that the partition's leadership has proposed."""
        self._waiting[partition] = None
        self._start()

    def report(self, partition: Partition) -> None:
        """Report the local logs of the partition's ISR soon, if that is due then."""
        if not self._collecting:
            self._runtime.call_later(_COLLECTION_S, self._end_collection)
        self._collecting[partition] = None

    def _end_collection(self) -> None:
        self._collected |= self._collecting
        self._collecting = {}
        self._start()

    def _start(self) -> None:
        if self._asking is None or self._asking.done():
            self._asking = self._runtime.supervise(self._ask, name="alter-partition")

    async def _ask(self) -> None:
        while self._waiting or self._collected:
            if self._waiting:
                await self._ask_for_isrs()
            else:
                await self._send_reports()

    async def _ask_for_isrs(self) -> None:
        batch, self._waiting = self._waiting, {}
        epochs = {
            partition: partition.leader.state.epoch
            for partition in batch
            if partition.leader is not None and partition.leader.state.proposed_isr is not None
        }
        if not epochs:
            return
        again = list(epochs)
        try:
            rows = await self._request(epochs)
            again = [
                partition
                for partition, epoch in epochs.items()
                if not _complete(partition, epoch, rows.get(partition))
            ]
        finally:
            # Those that have waited longest come first.
            self._waiting = dict.fromkeys(again) | self._waiting
        if again:
            await asyncio.sleep(_RETRY_S)

    async def _send_reports(self) -> None:
        batch = dict.fromkeys(islice(self._collected, _MAX_REPORTS))
        for partition in batch:
            del self._collected[partition]
        # Of the leader epoch in which they are sent: a response that arrives in a newer one is none of its business.
        reports: dict[Partition, LocalLogReports] = {}
        for partition in batch:
            leader = partition.leader
            if leader is not None and leader.is_report_due():
                reports[partition] = leader.state.reports
                reports[partition].begin(leader.local_logs())
        if not reports:
            return
        rows: Mapping[Partition, PartitionDataResponse] = {}
        try:
            rows = await self._request(reports)
        finally:
            for partition, report in reports.items():
                _complete_report(report, rows.get(partition))
                if (leader := partition.leader) is not None and leader.is_report_due():
                    self.report(partition)

    async def _request(self, partitions: Collection[Partition]) -> dict[Partition, PartitionDataResponse]:
        """Send one request for these partitions; returns the rows of the response, none if it has failed."""
        try:
            response: AlterPartitionResponse = await self._controller.request(
                ApiKey.ALTER_PARTITION, self._message(partitions)
            )
        except (KafkaError, OSError, TimeoutError) as error:
            logger.warning(
                "AlterPartition for %d partitions failed, it is retried: %r", len(partitions), error
            )
            return {}
        if response.error_code != ErrorCode.none:
            # Also a stale broker epoch: the broker is registering again.
            logger.warning(
                "AlterPartition was refused, it is retried: %s", ErrorCode(response.error_code).name
            )
            return {}
        rows: dict[tuple[Any, int], PartitionDataResponse] = {
            (topic.topic_id, row.partition_index): row
            for topic in response.topics
            for row in topic.partitions
        }
        return {
            partition: row
            for partition in partitions
            if (row := rows.get((partition.topic_id, partition.topic_partition.partition))) is not None
        }

    def _message(self, partitions: Iterable[Partition]) -> AlterPartitionRequest:
        broker_epoch = self._broker_epoch()
        topics: dict[Any, TopicData] = {}
        for partition in partitions:
            assert partition.leader is not None, str(partition)
            leader_state = partition.leader.state
            is_report = leader_state.proposed_isr is None
            members = (leader_state.members if is_report else leader_state.proposed_members)(
                own_broker_epoch=broker_epoch
            )
            # A leader never proposes to leave, and its broker epoch is that of its present registration (KIP-903).
            assert (self._node_id, broker_epoch) in members, (str(partition), members, broker_epoch)
            local_logs = partition.leader.local_logs()
            topics.setdefault(partition.topic_id, TopicData(topic_id=partition.topic_id)).partitions.append(
                PartitionData(
                    partition_index=partition.topic_partition.partition,
                    leader_epoch=leader_state.epoch,
                    # Each version of the request encodes one of the two.
                    new_isr=[broker_id for broker_id, _ in members],
                    new_isr_with_epochs=[
                        BrokerState(
                            broker_id=broker_id,
                            broker_epoch=epoch,
                            local_log=None
                            if (known := local_logs.get(broker_id)) is None
                            else known.to_state(),
                        )
                        for broker_id, epoch in members
                    ],
                    partition_epoch=partition.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._node_id, broker_epoch=broker_epoch, topics=list(topics.values())
        )


def _complete(partition: Partition, leader_epoch: int, row: PartitionDataResponse | None) -> bool:
    """Notify the partition if the change was refused; False if it has to be retried."""
    if row is None:
        return False
    if row.error_code == ErrorCode.none:
        logger.info("%s: the controller accepts the ISR %s", partition, row.isr)
        return True
    partition.stats.failed_isr_updates += 1
    logger.info("%s: the controller refuses the proposed ISR: %s", partition, ErrorCode(row.error_code).name)
    if row.error_code in _NOT_DONE:
        partition.on_isr_refused(leader_epoch=leader_epoch)
        return True
    return row.error_code in _OUT_OF_DATE


def _complete_report(report: LocalLogReports, row: PartitionDataResponse | None) -> None:
    """Process the response to a report of local logs; None: the controller did not respond."""
    if row is None:
        report.on_failed()
    elif row.error_code == ErrorCode.none:
        report.on_granted()
    elif row.error_code in _NOT_DONE or row.error_code in _OUT_OF_DATE:
        report.on_refused()
    else:
        report.on_failed()
