"""AlterPartition: a leader says who is in sync with it (KIP-497, KIP-704, KIP-841, KIP-903).

The leader alone knows how far its followers are; the controller alone knows who is alive. So the leader
proposes and the controller agrees, as long as both speak of the same partition:

| the leader's view | answer |
|---|---|
| leader or partition epoch larger than ours | NOT_CONTROLLER: we are the ones who are behind, look for another |
| leader epoch smaller | FENCED_LEADER_EPOCH |
| it does not lead | INVALID_REQUEST |
| partition epoch smaller | INVALID_UPDATE_VERSION: it will hear of what it missed, and ask again |
| an ISR of other than replicas, with one twice, or without the leader | INVALID_REQUEST |
| still recovering, or recovering again, with others in sync | INVALID_REQUEST |
| a member that is unknown, fenced, leaving, or of another broker epoch | INELIGIBLE_REPLICA |
| all is well, but the change ends a reassignment that takes the leader away | NEW_LEADER_ELECTED, and the change holds |

Versions: v2 names the ISR by broker ids, v3 with broker epochs: a broker that was restarted in between is not
the one that was in sync. Rows are independent; OPERATION_NOT_ATTEMPTED is never answered, as in Kafka 4.3.1.
Differs from Kafka: an unknown leader recovery state is the row's INVALID_REQUEST, not the end of the request;
a partition that is named twice is judged the second time by what the first made of it.
Source: ReplicationControlManager.alterPartition.
"""

from collections.abc import Sequence
from uuid import UUID

from controller.brokers import check_epoch
from controller.draft import Draft
from controller.result import Result
from controller.state import ClusterState
from protocol.error_code import ErrorCode
from protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    PartitionDataResponse,
    TopicDataResponse,
)
from protocol.metadata.image import (
    LEADER_UNCHANGED,
    NO_LEADER,
    LeaderRecoveryState,
    PartitionImage,
)

#: In place of a broker epoch: the leader does not know it, and it is not checked.
_ANY_EPOCH = -1
_RECOVERY_STATES = {int(state): state for state in LeaderRecoveryState}


def alter_partition(state: ClusterState, request: AlterPartitionRequest) -> Result[AlterPartitionResponse]:
    """Change the ISRs that a broker asks for as their leader. Raises StaleBrokerEpoch."""
    if not request.topics:
        return Result(response=AlterPartitionResponse())
    check_epoch(state, request.broker_id, request.broker_epoch)
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
    if (error := _check(partition, broker_id, row, isr) or _check_members(draft, members)) is not None:
        return _refused(row, error)
    wanted = partition._replace(isr=isr, leader_recovery_state=_RECOVERY_STATES[row.leader_recovery_state])
    change = draft.change(topic, row.partition_index, wanted)
    now = draft.partition(topic, row.partition_index)
    assert now is not None
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


def _check(
    partition: PartitionImage, broker_id: int, row: PartitionData, isr: Sequence[int]
) -> ErrorCode | None:
    """Whether the leader and we speak of the same partition, and it asks for something that can be."""
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
    """A leader recovers from an unclean election alone, and once (KIP-704)."""
    match _RECOVERY_STATES.get(row.leader_recovery_state):
        case LeaderRecoveryState.RECOVERED:
            return True
        case LeaderRecoveryState.RECOVERING:
            return len(isr) == 1 and partition.leader_recovery_state is LeaderRecoveryState.RECOVERING
        case _:
            return False


def _check_members(draft: Draft, members: Sequence[BrokerState]) -> ErrorCode | None:
    for member in members:
        broker = draft.broker(member.broker_id)
        if broker is None or not broker.is_active or member.broker_epoch not in (_ANY_EPOCH, broker.epoch):
            return ErrorCode.ineligible_replica
    return None


def _refused(row: PartitionData, error: ErrorCode) -> PartitionDataResponse:
    return PartitionDataResponse(partition_index=row.partition_index, error_code=error)
