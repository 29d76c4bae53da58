"""Log directories that a broker does not register any more: its replicas there have no records, however clean
the stop was.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from ottla.controller.membership import brokers
from ottla.controller.partitions.alter_partition import alter_partition
from ottla.controller.partitions.directory_assignment import assign_replicas
from ottla.controller.partitions.elect_leaders import elect_leaders
from ottla.metadata.image import (
    DIRECTORY_LOST,
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    LeaderRecoveryState,
)
from ottla.metadata.records import BrokerRegistrationChangeRecord, PartitionChangeRecord
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_partition import AlterPartitionRequest, BrokerState, TopicData
from ottla.protocol.messages.alter_partition import PartitionData as AlteredPartition
from ottla.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    DirectoryData,
    PartitionData,
)
from ottla.protocol.messages.assign_replicas_to_dirs import TopicData as AssignedTopic
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, PartitionResult, TopicPartitions
from ottla.stories.elections.machine import CLUSTER_ID, Machine, directory

A, B, NEW = directory(2), UUID(int=5000), UUID(int=5001)  # of broker 2
STRANDED = pytest.mark.logs("was registered without log directory")


class Cluster:
    """Broker 2 has the directories A and B, and its replica of t-0 is in B; min.insync.replicas is 2."""

    def __init__(self, *replicas: int, elr: bool = True, min_isr: int = 2, where: UUID = B) -> None:
        self.machine = machine = Machine(brokers=[1, 2, 3], elr=elr)
        machine.set_config("min.insync.replicas", str(min_isr))
        machine.replay(
            BrokerRegistrationChangeRecord(
                broker_id=2, broker_epoch=machine.state.image.brokers[2].epoch, log_dirs=[A, B]
            )
        )
        machine.create("t", list(replicas))
        self.topic_id = machine.state.image.topics_by_name["t"].topic_id
        directories = [where if each == 2 else directory(each) for each in replicas]
        machine.replay(PartitionChangeRecord(partition_id=0, topic_id=self.topic_id, directories=directories))

    @property
    def state(self) -> tuple[int | None, Sequence[int], Sequence[int]]:
        now = self.machine.partition("t")
        return now.leader, now.isr, now.elr

    def beat(self, broker_id: int, **fields: Any) -> None:
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=self.machine.state.image.brokers[broker_id].epoch,
            current_metadata_offset=len(self.machine.log) - 1,
            cordoned_log_dirs=[],
            **fields,
        )
        self.machine.do(brokers.heartbeat(self.machine.state, request, now_ms=self.machine.now_ms))

    def stop(self, *broker_ids: int) -> None:
        """Controlled shutdowns, one after the other."""
        for broker_id in broker_ids:
            for _ in range(3):
                self.beat(broker_id, want_shut_down=True)
                for other in self.machine.state.image.brokers.values():
                    if not other.is_fenced and other.broker_id != broker_id:
                        self.beat(other.broker_id)

    def register(
        self, broker_id: int, *directories: UUID, is_clean: bool = True, incarnation: int = 0
    ) -> None:
        known = self.machine.state.image.brokers[broker_id]
        request = BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=UUID(int=incarnation) if incarnation else UUID(int=len(self.machine.log) + 10**9),
            log_dirs=list(directories),
            previous_broker_epoch=known.epoch if is_clean else -1,
            features=[
                Feature(name="metadata.version", min_supported_version=7, max_supported_version=33),
                Feature(
                    name="eligible.leader.replicas.version", min_supported_version=0, max_supported_version=1
                ),
            ],
        )
        self.machine.do(brokers.register(self.machine.state, request, now_ms=self.machine.now_ms))

    def start(self, broker_id: int, *directories: UUID, is_clean: bool = True) -> None:
        self.register(broker_id, *directories, is_clean=is_clean)
        self.beat(broker_id)

    def assign(self, to: UUID, broker_id: int = 2) -> int:
        request = AssignReplicasToDirsRequest(
            broker_id=broker_id,
            broker_epoch=self.machine.state.image.brokers[broker_id].epoch,
            directories=[
                DirectoryData(
                    id_=to,
                    topics=[
                        AssignedTopic(topic_id=self.topic_id, partitions=[PartitionData(partition_index=0)])
                    ],
                )
            ],
        )
        [answer] = self.machine.do(assign_replicas(self.machine.state, request)).directories
        return answer.topics[0].partitions[0].error_code

    def elect(self, *, is_named: bool = True) -> PartitionResult:
        """An unclean election that an operator requests, of this partition or of all."""
        named = [TopicPartitions(topic="t", partitions=[0])] if is_named else None
        request = ElectLeadersRequest(election_type=1, topic_partitions=named)
        [topic] = self.machine.do(elect_leaders(self.machine.state, request)).replica_election_results
        return topic.partition_result[0]


@pytest.mark.parametrize(
    ("where", "registered", "stays"),
    [
        # in                registers  in the ELR
        (B,                    [A, B], True),
        (B,                    [B],    True),   # A is gone, which is another matter
        (B,                    [A],    False),
        (B,                    [A, NEW], False),  # an empty disk in its place
        (A,                    [A],    True),
        (UUID(int=6000),       [A, B], False),  # it had failed before it left, or is in another broker now
        (DIRECTORY_LOST,       [A, B], False),  # it has failed, and is not known
        (DIRECTORY_UNASSIGNED, [A],    True),
        (DIRECTORY_MIGRATING,  [A],    True),
    ],
)  # fmt: skip
@STRANDED
def test_a_replica_without_its_directory_leaves_isr_and_elr(where, registered, stays):
    cluster = Cluster(1, 2, where=where)
    cluster.stop(2, 1)
    assert cluster.state == (None, (), (1, 2))
    cluster.register(2, *registered)
    assert cluster.state == (None, (), (1, 2) if stays else (1,))


def test_the_others_are_elected():
    cluster = Cluster(1, 2, 3)
    cluster.stop(3, 2, 1)
    assert cluster.state == (None, (), (1, 2))  # 3 has left while two were in sync
    cluster.start(2, A)
    assert cluster.state == (None, (), (1,))
    assert cluster.assign(A) == ErrorCode.kafka_storage_error  # it may be empty
    cluster.start(1, directory(1))
    assert cluster.state == (1, (1,), ())
    assert cluster.assign(A) == ErrorCode.none  # it follows
    assert cluster.machine.partition("t").directories == (directory(1), A, directory(3))


def test_a_member_of_the_isr_leaves_it_though_others_are_alive():
    cluster = Cluster(1, 2, 3)
    cluster.machine.now_ms += 20_000  # the session of 2 has expired, and no controller has checked
    cluster.register(2, A)
    assert cluster.state == (1, (1, 3), ())


def test_another_registration_of_the_same_process():
    cluster = Cluster(2, 1)
    incarnation = cluster.machine.state.image.brokers[2].incarnation_id.int
    cluster.register(2, A, B, incarnation=incarnation)
    assert cluster.state == (2, (2, 1), ())
    cluster.register(2, A, incarnation=incarnation)
    assert cluster.state == (1, (1,), ())


@STRANDED
@pytest.mark.parametrize("is_clean", [True, False])
def test_the_only_copy_stays_offline_until_its_directory_is_back(is_clean: bool, caplog):
    cluster = Cluster(2)
    cluster.stop(2)
    cluster.start(2, A, is_clean=is_clean)
    assert cluster.state == (None, (), ())
    [line] = [each for each in caplog.messages if "was registered without" in each]
    assert "broker 2" in line
    assert "t-0" in line
    assert "kafka-leader-election --election-type unclean" in line
    assert cluster.assign(A) == ErrorCode.kafka_storage_error
    assert cluster.state == (None, (), ())
    cluster.stop(2)
    cluster.start(2, A, B)  # with the disk that had left
    assert cluster.state == (2, (2,), ())
    assert cluster.machine.partition("t").directories == (B,)


@STRANDED
@pytest.mark.parametrize("elr", [True, False])
def test_an_operator_gives_the_records_up(elr: bool):
    cluster = Cluster(2, elr=elr)
    cluster.stop(2)
    cluster.start(2, A)
    assert cluster.state[0] is None
    assert cluster.elect().error_code == ErrorCode.none
    now = cluster.machine.partition("t")
    assert (now.leader, now.isr, now.directories) == (2, (2,), (DIRECTORY_UNASSIGNED,))
    assert now.leader_recovery_state is LeaderRecoveryState.RECOVERING
    assert cluster.assign(A) == ErrorCode.none
    assert cluster.machine.partition("t").directories == (A,)


@STRANDED
@pytest.mark.parametrize("elr", [True, False])
@pytest.mark.parametrize("other", [None, 1])
def test_an_unclean_election_of_all_partitions_leaves_those_whose_directory_is_away(
    elr: bool, other: int | None
):
    """KIP-460: the operator may think of others; neither an empty log nor one that was not in sync takes the
    place of this one.
    """
    cluster = Cluster(*(2, *([other] if other else ())), elr=elr, min_isr=1)
    if other:
        cluster.stop(1)
    cluster.stop(2)
    cluster.start(2, A)
    if other:
        cluster.start(1, directory(1))
    before = cluster.state
    answer = cluster.elect(is_named=False)
    assert answer.error_code == ErrorCode.eligible_leaders_not_available
    assert "The log directory of replica 2" in answer.error_message
    assert "names the partition" in answer.error_message
    assert (cluster.state, cluster.state[0]) == (before, None)
    cluster.stop(2)
    cluster.start(2, A, B)  # the disk is back, and nothing is lost
    assert cluster.state[:2] == (2, (2,))


@STRANDED
def test_an_unclean_election_of_all_partitions_gives_up_brokers_that_are_down():
    """Kafka does the same. A replica whose directory is away is not elected meanwhile, since its log would be
    empty."""
    cluster = Cluster(1, 2, 3)
    cluster.stop(3, 2, 1)
    cluster.start(2, A)
    assert cluster.state == (None, (), (1,))
    assert cluster.elect(is_named=False).error_code == ErrorCode.eligible_leaders_not_available
    assert cluster.state == (None, (), (1,))
    cluster.start(3, directory(3))
    assert cluster.elect(is_named=False).error_code == ErrorCode.none
    assert cluster.state == (3, (3,), ())


def test_an_unclean_election_of_all_partitions_gives_up_a_directory_that_has_failed():
    """Its replica stays in the ELR, which distinguishes it from one that is away."""
    cluster = Cluster(2, 1)
    cluster.stop(1)
    cluster.start(1, directory(1), is_clean=False)
    cluster.beat(2, offline_log_dirs=[B])
    assert cluster.state == (None, (), (2,))
    assert cluster.elect(is_named=False).error_code == ErrorCode.none
    assert cluster.state == (1, (1,), ())


@STRANDED
def test_an_operator_elects_a_replica_that_has_records_first():
    cluster = Cluster(2, 1, min_isr=1)
    cluster.stop(1)
    cluster.stop(2)
    cluster.start(2, A)
    cluster.start(1, directory(1))
    assert cluster.state == (None, (), ())  # 1 was not in sync
    assert cluster.elect().error_code == ErrorCode.none
    assert cluster.state == (1, (1,), ())
    assert cluster.assign(A) == ErrorCode.none


@STRANDED
def test_an_unclean_topic_does_not_elect_an_empty_replica_by_itself():
    cluster = Cluster(2)
    cluster.machine.set_config("unclean.leader.election.enable", "true", topic="t")
    cluster.stop(2)
    cluster.start(2, A)
    cluster.assign(A)
    cluster.beat(2)
    assert cluster.state == (None, (), ())


@STRANDED
def test_without_an_elr_the_last_member_is_not_elected_elsewhere():
    cluster = Cluster(2, 1, elr=False)
    cluster.stop(1, 2)
    assert cluster.state == (None, (2,), ())
    cluster.start(2, A)
    assert cluster.state == (None, (2,), ())
    assert cluster.assign(A) == ErrorCode.kafka_storage_error
    cluster.start(1, directory(1))
    assert cluster.state == (None, (2,), ())
    cluster.stop(2)
    cluster.start(2, A, B)
    assert cluster.state == (2, (2,), ())


def test_a_directory_that_fails_while_the_broker_runs_keeps_its_replica_eligible():
    """It is a member of the ELR, and has its log still where it was about to move from."""
    cluster = Cluster(2)
    cluster.beat(2, offline_log_dirs=[B])
    assert cluster.state == (None, (), (2,))
    assert cluster.elect().error_code == ErrorCode.eligible_leaders_not_available
    assert cluster.assign(A) == ErrorCode.none
    assert cluster.state == (2, (2,), ())


@STRANDED
def test_directories_that_are_swapped_between_brokers():
    """Each has a log of the partition, but not its own: its last registration says nothing of that one."""
    cluster = Cluster(1, 2)
    cluster.stop(2, 1)
    cluster.register(2, A)
    cluster.register(1, B)
    assert cluster.state == (None, (), ())


@pytest.mark.parametrize(("where", "code"), [(A, 0), (UUID(int=6000), ErrorCode.ineligible_replica)])
def test_a_replica_joins_in_a_registered_directory_only(where: UUID, code: int):
    cluster = Cluster(1, 2, where=where)
    cluster.machine.replay(PartitionChangeRecord(partition_id=0, topic_id=cluster.topic_id, isr=[1]))
    now = cluster.machine.partition("t")
    row = AlteredPartition(
        partition_index=0,
        leader_epoch=now.leader_epoch,
        new_isr_with_epochs=[BrokerState(broker_id=1), BrokerState(broker_id=2)],
        partition_epoch=now.partition_epoch,
    )
    request = AlterPartitionRequest(
        broker_id=1,
        broker_epoch=cluster.machine.state.image.brokers[1].epoch,
        topics=[TopicData(topic_id=cluster.topic_id, partitions=[row])],
    )
    answer = cluster.machine.do(alter_partition(cluster.machine.state, request))
    assert answer.topics[0].partitions[0].error_code == code


def test_before_directories_had_ids():
    machine = Machine(brokers=[1, 2], elr=False, metadata_version=16)
    machine.create("t", [2, 1])
    request = BrokerRegistrationRequest(
        broker_id=2,
        cluster_id=CLUSTER_ID,
        incarnation_id=machine.state.image.brokers[2].incarnation_id,
        log_dirs=[NEW],
        features=[Feature(name="metadata.version", min_supported_version=7, max_supported_version=33)],
    )
    machine.do(brokers.register(machine.state, request, now_ms=machine.now_ms))
    assert machine.partition("t").isr == (2, 1)


@STRANDED
def test_one_line_names_ten_partitions_at_most(caplog):
    cluster = Cluster(2)
    cluster.machine.create("many", *([2] for _ in range(40)))
    topic_id = cluster.machine.state.image.topics_by_name["many"].topic_id
    for index in range(40):
        cluster.machine.replay(PartitionChangeRecord(partition_id=index, topic_id=topic_id, directories=[B]))
    cluster.stop(2)
    cluster.register(2, A)
    [line] = [each for each in caplog.messages if "was registered without" in each]
    assert "and 31 more" in line
    assert len(line) < 700
