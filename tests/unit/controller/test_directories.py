"""Log directories of brokers: assigned, lost, cordoned (KIP-858, KIP-1066)."""

from typing import Any
from uuid import UUID

import pytest

from ottla.controller.membership import brokers
from ottla.controller.partitions.directory_assignment import assign_replicas
from ottla.metadata.image import DIRECTORY_LOST, DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED
from ottla.metadata.records import BrokerRegistrationChangeRecord, PartitionChangeRecord
from ottla.protocol.errors import ErrorCode, StaleBrokerEpoch, UnsupportedVersion
from ottla.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    DirectoryData,
    PartitionData,
    TopicData,
)
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.stories.elections.machine import Machine, directory

SECOND = UUID(int=5000)  # another directory of broker 1


def two_directories(**options: Any) -> Machine:
    machine = Machine(brokers=[1, 2, 3], **options)
    machine.set_config("min.insync.replicas", "2")
    epoch = machine.state.image.brokers[1].epoch
    machine.replay(
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=epoch, log_dirs=[directory(1), SECOND])
    )
    machine.create("t", [1, 2])
    return machine


def assign(
    machine: Machine, to: UUID, *indexes: int, broker_id: int = 1, topic_id: UUID | None = None
) -> list[int]:
    topic_id = topic_id or machine.state.image.topics_by_name["t"].topic_id
    rows = [PartitionData(partition_index=index) for index in indexes]
    request = AssignReplicasToDirsRequest(
        broker_id=broker_id,
        broker_epoch=machine.state.image.brokers[broker_id].epoch,
        directories=[DirectoryData(id_=to, topics=[TopicData(topic_id=topic_id, partitions=rows)])],
    )
    [answer] = machine.do(assign_replicas(machine.state, request)).directories
    assert answer.id_ == to
    return [row.error_code for row in answer.topics[0].partitions]


def beat(machine: Machine, broker_id: int = 1, **fields: Any) -> Any:
    request = BrokerHeartbeatRequest(
        broker_id=broker_id,
        broker_epoch=machine.state.image.brokers[broker_id].epoch,
        current_metadata_offset=len(machine.log) - 1,
        **fields,
    )
    return machine.do(brokers.heartbeat(machine.state, request, now_ms=machine.now_ms))


def test_a_broker_says_where_its_replica_is():
    machine = two_directories()
    assert machine.partition("t").directories == (DIRECTORY_UNASSIGNED, directory(2))
    assert assign(machine, SECOND, 0) == [ErrorCode.none]
    now = machine.partition("t")
    assert now.directories == (SECOND, directory(2))
    assert (now.leader, now.leader_epoch, now.partition_epoch) == (1, 0, 1)
    before = len(machine.log)
    assert assign(machine, SECOND, 0) == [ErrorCode.none]
    assert len(machine.log) == before


@pytest.mark.parametrize("lost", [UUID(int=6000), DIRECTORY_LOST])
def test_a_replica_in_an_offline_directory_is_out(lost: UUID):
    machine = two_directories()
    assert assign(machine, lost, 0) == [ErrorCode.none]
    now = machine.partition("t")
    assert (now.directories[0], now.isr, now.elr, now.leader, now.leader_epoch) == (lost, (2,), (1,), 2, 1)


def test_a_lost_replica_is_not_elected_on_the_way_out():
    """The partition has no leader, and 1 could lead: but the directory in its report is gone."""
    machine = two_directories(elr=False)
    topic_id = machine.state.image.topics_by_name["t"].topic_id
    machine.replay(PartitionChangeRecord(partition_id=0, topic_id=topic_id, leader=-1, isr=[1]))
    assign(machine, UUID(int=6000), 0)
    assert machine.partition("t").leader is None


def test_what_is_refused():
    machine = two_directories()
    assert assign(machine, SECOND, 9) == [ErrorCode.unknown_topic_or_partition]
    assert assign(machine, directory(3), 0, broker_id=3) == [ErrorCode.not_leader_or_follower]
    assert assign(machine, SECOND, 0, topic_id=UUID(int=9)) == [ErrorCode.unknown_topic_id]
    with pytest.raises(StaleBrokerEpoch):
        assign_replicas(machine.state, AssignReplicasToDirsRequest(broker_id=1, broker_epoch=-1))
    old = Machine(brokers=[1], metadata_version=16, elr=False)
    epoch = old.state.image.brokers[1].epoch
    with pytest.raises(UnsupportedVersion):
        assign_replicas(old.state, AssignReplicasToDirsRequest(broker_id=1, broker_epoch=epoch))


@pytest.mark.parametrize(
    ("where", "offline", "leader"),
    [
        (SECOND, [SECOND], 2),
        (directory(1), [SECOND], 1),
        (DIRECTORY_UNASSIGNED, [SECOND], 1),  # unknown until the broker reports it
        (DIRECTORY_MIGRATING, [SECOND], 1),
        (SECOND, [SECOND, directory(1)], 2),
        (SECOND, [UUID(int=6000)], 1),  # none that it registered
    ],
)
def test_directories_go_offline(where: UUID, offline: list[UUID], leader: int):
    machine = two_directories()
    topic_id = machine.state.image.topics_by_name["t"].topic_id
    machine.replay(
        PartitionChangeRecord(partition_id=0, topic_id=topic_id, directories=[where, directory(2)])
    )
    beat(machine, offline_log_dirs=offline)
    assert machine.partition("t").leader == leader
    if offline == [SECOND]:
        assert machine.state.image.brokers[1].log_dirs == (directory(1),)


def test_let_in_and_lost_in_one_heartbeat():
    """The broker is unfenced, and reports a directory lost that it had at registration: it must not lead there."""
    machine = two_directories(elr=False)
    assign(machine, SECOND, 0)
    for broker_id in (2, 1):
        beat(machine, broker_id, want_fence=True)
    assert machine.partition("t").isr == (1,)
    assert machine.partition("t").leader is None
    assert not beat(machine, offline_log_dirs=[SECOND]).is_fenced
    now = machine.partition("t")
    assert (now.leader, now.leader_epoch) == (None, 1)


def test_cordoned_directories_are_noted_once():
    machine = two_directories()
    before = len(machine.log)
    for cordoned in (None, [SECOND], [SECOND], [SECOND, directory(1)], [directory(1), SECOND], []):
        beat(machine, cordoned_log_dirs=cordoned)
    noted = [record.cordoned_log_dirs for record in machine.log[before:]]
    assert noted == [[SECOND], [SECOND, directory(1)], []]
