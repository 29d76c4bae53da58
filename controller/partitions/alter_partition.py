"""AlterPartition: the leader of a partition requests a new ISR (KIP-497, KIP-704, KIP-841, KIP-903).

Only the leader knows how far its followers have replicated; only the controller knows which brokers are active. So
the leader proposes an ISR, and the controller accepts it if both have the same version of the partition:

| the request | answer |
|---|---|
| leader or partition epoch larger than the controller's | NOT_CONTROLLER: this controller is behind, find another one |
| leader epoch smaller | FENCED_LEADER_EPOCH |
| the sender does not lead | INVALID_REQUEST |
| partition epoch smaller | INVALID_UPDATE_VERSION: the leader replays the newer record, and sends another request |
| the ISR has a non-replica or a duplicate, or lacks the leader | INVALID_REQUEST |
| RECOVERING with others in the ISR, or of a partition that has recovered | INVALID_REQUEST |
| a member is unknown, fenced, in controlled shutdown, or of another broker epoch | INELIGIBLE_REPLICA |
| a new member is, as far as is known, in a directory that is offline | INELIGIBLE_REPLICA |
| valid, but the change completes a reassignment that removes the leader | NEW_LEADER_ELECTED; the change is made |

A member may have its local log with it, which elections may prefer it by (draft KIP-1303). A request with the
same ISR and another local log is a change like others: a new partition epoch, but no election and no new leader epoch.

Versions: v2 has broker ids in the ISR, v3 broker epochs, too: a broker that was restarted in between is not
the one that was in sync. Rows are independent; OPERATION_NOT_ATTEMPTED is never returned, as in Kafka 4.3.1.
Differs from Kafka: an unknown leader recovery state is INVALID_REQUEST for the row, and does not fail the request;
the second row of a partition that is named twice is checked against the result of the first; directories are checked.
Source: ReplicationControlManager.alterPartition; the leader's side is Kafka's AlterPartitionManager.
"""

from collections.abc import Sequence
from uuid import UUID

from ottla.controller.partitions.draft import Draft
from ottla.controller.partitions.partition_change import directory_of
from ottla.controller.result import Result
from ottla.controller.state import ClusterState
from ottla.metadata.image import (
    LEADER_UNCHANGED,
    NO_LEADER,
    LeaderRecoveryState,
    PartitionImage,
)
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.local_log import LocalLog, LocalLogs
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    PartitionDataResponse,
    TopicDataResponse,
)

#: In place of a broker epoch that the leader does not know: it is not checked.
_ANY_EPOCH = -1
_RECOVERY_STATES = {int(state): state for state in LeaderRecoveryState}


def alter_partition(state: ClusterState, request: AlterPartitionRequest) -> Result[AlterPartitionResponse]:
    """Change the ISRs that a leader requests. Raises StaleBrokerEpoch."""
    if not request.topics:
        return Result(response=AlterPartitionResponse())
    state.check_broker_epoch(request.broker_id, request.broker_epoch)
    draft = Draft(state)
    topics = [
        TopicDataResponse(
            topic_id=topic.topic_id,
            partitions=[_alter(draft, request.broker_id, topic.topic_id, row) for row in topic.partitions],
        )
        for topic in request.topics
    ]
    return Result(response=AlterPartitionResponse(topics=topics), records=draft.records, is_atomic=False)


def _alter(draft: Draft, broker_id: int, topic_id: UUID, row: PartitionData) -> PartitionDataResponse:
    topic = draft.state.image.topics_by_id.get(topic_id)
    if topic is None:
        return _refused(row, ErrorCode.unknown_topic_id)
    partition = draft.partition(topic, row.partition_index)
    if partition is None:
        return _refused(row, ErrorCode.unknown_topic_or_partition)
    members = row.new_isr_with_epochs or [BrokerState(broker_id=replica) for replica in row.new_isr]
    isr = tuple(member.broker_id for member in members)
    if (
        error := _check(partition, broker_id, row, isr) or _check_members(draft, partition, members)
    ) is not None:
        return _refused(row, error)
    wanted = partition._replace(
        isr=isr,
        leader_recovery_state=_RECOVERY_STATES[row.leader_recovery_state],
        local_logs=_local_logs(partition, members),
    )
    change = draft.change(topic, row.partition_index, wanted)
    now = draft.partition(topic, row.partition_index)
    assert now is not None
    # The leader drops an answer that is older than what it knows.
    assert now.partition_epoch == partition.partition_epoch + (change is not None), (partition, now)
    assert now.leader_epoch >= partition.leader_epoch, (partition, now)
    if change is not None and change.leader not in (LEADER_UNCHANGED, broker_id):
        return _refused(row, ErrorCode.new_leader_elected)
    return PartitionDataResponse(
        partition_index=row.partition_index,
        error_code=ErrorCode.none,
        leader_id=NO_LEADER if now.leader is None else now.leader,
        leader_epoch=now.leader_epoch,
        isr=list(now.isr),
        leader_recovery_state=now.leader_recovery_state,
        partition_epoch=now.partition_epoch,
    )


def _local_logs(partition: PartitionImage, members: Sequence[BrokerState]) -> LocalLogs:
    """The known local logs after the request: a member that it names none for keeps its own, or is unknown if it joins.

    A leader of another version, or of a topic in which the preference is off, names none.
    """
    known = dict(partition.local_logs)
    for member in members:
        if member.local_log is not None:
            known[member.broker_id] = LocalLog.from_state(member.local_log)
        elif member.broker_id not in partition.isr:
            known.pop(member.broker_id, None)
    return tuple(sorted(known.items()))


def _check(
    partition: PartitionImage, broker_id: int, row: PartitionData, isr: Sequence[int]
) -> ErrorCode | None:
    """The error if the request is for another version of the partition, or its ISR is invalid; else None."""
    if row.leader_epoch > partition.leader_epoch or row.partition_epoch > partition.partition_epoch:
        return ErrorCode.not_controller
    if row.leader_epoch < partition.leader_epoch:
        return ErrorCode.fenced_leader_epoch
    if broker_id != partition.leader:
        return ErrorCode.invalid_request
    if row.partition_epoch < partition.partition_epoch:
        return ErrorCode.invalid_update_version
    is_isr = broker_id in isr and len(set(isr)) == len(isr) and set(isr) <= set(partition.replicas)
    return None if is_isr and _is_recovery(partition, row, isr) else ErrorCode.invalid_request


def _is_recovery(partition: PartitionImage, row: PartitionData, isr: Sequence[int]) -> bool:
    """Whether the leader recovery state is valid: after an unclean election the leader is alone in the ISR until it
    is RECOVERED, and does not return to RECOVERING (KIP-704).
    """
    match _RECOVERY_STATES.get(row.leader_recovery_state):
        case LeaderRecoveryState.RECOVERED:
            return True
        case LeaderRecoveryState.RECOVERING:
            return len(isr) == 1 and partition.leader_recovery_state is LeaderRecoveryState.RECOVERING
        case _:
            return False


def _check_members(
    draft: Draft, partition: PartitionImage, members: Sequence[BrokerState]
) -> ErrorCode | None:
    for member in members:
        broker = draft.broker(member.broker_id)
        if broker is None or not broker.is_active or member.broker_epoch not in (_ANY_EPOCH, broker.epoch):
            return ErrorCode.ineligible_replica
        directory = directory_of(partition, member.broker_id)
        if member.broker_id not in partition.isr and not draft.is_online(broker, directory):
            # The next registration would judge by this directory whether the replica still has its log.
            return ErrorCode.ineligible_replica
    return None


def _refused(row: PartitionData, error: ErrorCode) -> PartitionDataResponse:
    return PartitionDataResponse(partition_index=row.partition_index, error_code=error)
