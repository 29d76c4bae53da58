"""AssignReplicasToDirs: a broker reports the log directories of its replicas (KIP-858).

The controller needs them because a broker that loses one of several directories reports only the directory: which
partitions need another leader follows from the assignments. If the assigned directory is offline, the same record
removes the replica from the ISR.
A replica that was in a directory which its broker has not registered any more may be an empty one, made in its
place. Where the partition has no leader, such a replica might be elected as the last known leader, or as the
last member of an ISR that cannot be empty (without KIP-966). So its new directory is refused with
KAFKA_STORAGE_ERROR until the partition has a leader: then the replica follows. A member of the ELR is not
refused: it has every committed record, since a registration without its directory would have removed it.
Differs from Kafka, which writes two records in that case and decides the second without the first: so the lost
replica could become the leader of a partition that has none.
Source: ReplicationControlManager.handleAssignReplicasToDirs of Kafka 4.3.1; the broker's side is AssignmentsManager.
"""

from uuid import UUID

from ottla.controller.partitions.draft import Draft
from ottla.controller.partitions.leader_and_isr_updates import without
from ottla.controller.partitions.leader_election import Election
from ottla.controller.partitions.partition_change import directory_of
from ottla.controller.result import Result
from ottla.controller.state import ClusterState
from ottla.metadata.features import DIRECTORIES_3_7_IV2
from ottla.metadata.image import BrokerImage
from ottla.protocol.errors import ErrorCode, UnsupportedVersion
from ottla.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    DirectoryDataResponse,
    PartitionDataResponse,
    TopicDataResponse,
)


def assign_replicas(
    state: ClusterState, request: AssignReplicasToDirsRequest
) -> Result[AssignReplicasToDirsResponse]:
    """Record the directories. Raises StaleBrokerEpoch, and UnsupportedVersion below metadata.version 3.7-IV2."""
    if state.metadata_version < DIRECTORIES_3_7_IV2:
        raise UnsupportedVersion("Directory assignment is not supported yet.")
    broker = state.check_broker_epoch(request.broker_id, request.broker_epoch)
    draft = Draft(state)
    directories = [
        DirectoryDataResponse(
            id_=directory.id_,
            topics=[
                TopicDataResponse(
                    topic_id=topic.topic_id,
                    partitions=[
                        PartitionDataResponse(
                            partition_index=row.partition_index,
                            error_code=_assign(
                                draft, broker, directory.id_, topic.topic_id, row.partition_index
                            ),
                        )
                        for row in topic.partitions
                    ],
                )
                for topic in directory.topics
            ],
        )
        for directory in request.directories
    ]
    return Result(
        response=AssignReplicasToDirsResponse(directories=directories), records=draft.records, is_atomic=False
    )


def _assign(draft: Draft, broker: BrokerImage, directory: UUID, topic_id: UUID, index: int) -> ErrorCode:
    topic = draft.state.image.topics_by_id.get(topic_id)
    if topic is None:
        return ErrorCode.unknown_topic_id
    partition = draft.partition(topic, index)
    if partition is None:
        return ErrorCode.unknown_topic_or_partition
    if broker.broker_id not in partition.replicas:
        return ErrorCode.not_leader_or_follower
    wanted = partition._replace(
        directories=tuple(
            directory if replica == broker.broker_id else known
            for replica, known in zip(partition.replicas, partition.directories, strict=True)
        )
    )
    if draft.is_online(broker, directory):
        if (
            partition.leader is None
            and broker.broker_id not in partition.elr
            and not draft.is_online(broker, directory_of(partition, broker.broker_id))
        ):
            return ErrorCode.kafka_storage_error
        draft.change(topic, index, wanted, election=Election.ONLINE)
    else:
        draft.change(topic, index, without(wanted, broker.broker_id))
    return ErrorCode.none
