"""ISR changes, proposed to the controller (AlterPartition, KIP-497): one request at a time, with all pending changes.

    propose --> waiting --> in one request with all others --> granted, or out of date: left to the metadata log
                   ^                     |                '--> refused: the partition is notified
                   '------- retry -------'--- no controller, a stale broker epoch, a temporary error, a bug

A change waits until it is granted, refused or out of date, even if the task that sends the request fails: a partition
with a proposed ISR proposes no other one.

A granted ISR takes effect when the metadata log has it, not when the response arrives (Kafka applies the response):
only then does the leader know the configuration by which the controller chose the ELR. With an older, smaller
min.insync.replicas the leader would commit records that a member of the ELR lacks (KIP-966).

Source: AlterPartitionManager (DefaultAlterPartitionManager) and Partition.handleAlterPartitionError of Kafka 4.3.1.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from broker.membership.controller_channel import ControllerChannel
from broker.replicas.partition import Partition
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    PartitionDataResponse,
    TopicData,
)
from runtime import Runtime

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.05

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
    """See the module. One for each broker."""

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
        self._asking: asyncio.Task[None] | None = None

    def submit(self, partition: Partition) -> None:
        """Send the ISR that the partition's leadership has proposed."""
        self._waiting[partition] = None
        if self._asking is None or self._asking.done():
            self._asking = self._runtime.supervise(self._ask, name="alter-partition")

    async def _ask(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, {}
            epochs = {
                partition: partition.leader.state.epoch
                for partition in batch
                if partition.leader is not None and partition.leader.state.proposed_isr is not None
            }
            if not epochs:
                continue
            again = list(epochs)
            try:
                again = await self._request(epochs)
            finally:
                # Those that have waited longest come first.
                self._waiting = dict.fromkeys(again) | self._waiting
            if again:
                await asyncio.sleep(_RETRY_S)

    async def _request(self, epochs: dict[Partition, int]) -> list[Partition]:
        """Send one request; returns the partitions to retry."""
        try:
            response: AlterPartitionResponse = await self._controller.request(
                ApiKey.ALTER_PARTITION, self._message(list(epochs))
            )
        except (KafkaError, OSError, TimeoutError) as error:
            logger.warning("AlterPartition for %d partitions failed, it is retried: %r", len(epochs), error)
            return list(epochs)
        if response.error_code != ErrorCode.none:
            # Also a stale broker epoch: the broker is registering again.
            logger.warning(
                "AlterPartition was refused, it is retried: %s", ErrorCode(response.error_code).name
            )
            return list(epochs)
        rows: dict[tuple[Any, int], PartitionDataResponse] = {
            (topic.topic_id, row.partition_index): row
            for topic in response.topics
            for row in topic.partitions
        }
        return [
            partition
            for partition, epoch in epochs.items()
            if not _complete(
                partition, epoch, rows.get((partition.topic_id, partition.topic_partition.partition))
            )
        ]

    def _message(self, partitions: list[Partition]) -> AlterPartitionRequest:
        broker_epoch = self._broker_epoch()
        topics: dict[Any, TopicData] = {}
        for partition in partitions:
            assert partition.leader is not None, str(partition)
            leader_state = partition.leader.state
            members = leader_state.proposed_members(own_broker_epoch=broker_epoch)
            topics.setdefault(partition.topic_id, TopicData(topic_id=partition.topic_id)).partitions.append(
                PartitionData(
                    partition_index=partition.topic_partition.partition,
                    leader_epoch=leader_state.epoch,
                    # Each version of the request encodes one of the two.
                    new_isr=[broker_id for broker_id, _ in members],
                    new_isr_with_epochs=[
                        BrokerState(broker_id=broker_id, broker_epoch=epoch) for broker_id, epoch in members
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
