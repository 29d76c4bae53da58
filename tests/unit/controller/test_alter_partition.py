"""AlterPartition as tables: what a leader may ask for, and the answers (KIP-497, KIP-704, KIP-841, KIP-903)."""

from typing import Any
from uuid import UUID

import pytest

from ottla.controller.partitions.alter_partition import alter_partition
from ottla.metadata.records import BrokerRegistrationChangeRecord, PartitionChangeRecord
from ottla.protocol.errors import ErrorCode, StaleBrokerEpoch
from ottla.protocol.local_log import LocalLogState, ReplicaLocalLog
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    PartitionDataResponse,
    TopicData,
)
from ottla.stories.elections.machine import Machine, directory


def machine_with(*replicas: int, brokers: tuple[int, ...] = (1, 2, 3, 4), **options: Any) -> Machine:
    """Partition t-0 on these replicas; at most two have to be in sync."""
    machine = Machine(brokers=brokers, **options)
    machine.set_config("min.insync.replicas", "2")
    machine.create("t", list(replicas))
    return machine


def change(machine: Machine, **fields: Any) -> None:
    """Something else happens to t-0."""
    topic_id = machine.state.image.topics_by_name["t"].topic_id
    machine.replay(PartitionChangeRecord(partition_id=0, topic_id=topic_id, **fields))


def row(machine: Machine, *isr: int, epochs: bool = True, **fields: Any) -> PartitionData:
    """The row that a leader of t-0 with complete knowledge would send."""
    now = machine.partition("t")
    brokers = machine.state.image.brokers
    asked = PartitionData(
        partition_index=0,
        leader_epoch=now.leader_epoch,
        partition_epoch=now.partition_epoch,
        leader_recovery_state=now.leader_recovery_state,
    )
    if epochs:
        known = {broker_id: brokers[broker_id].epoch if broker_id in brokers else 5 for broker_id in isr}
        asked.new_isr_with_epochs = [BrokerState(broker_id=each, broker_epoch=known[each]) for each in isr]
    else:
        asked.new_isr = list(isr)
    for name, value in fields.items():
        setattr(asked, name, value)
    return asked


def ask(machine: Machine, *rows: PartitionData, leader: int = 1, topic_id: UUID | None = None) -> list[Any]:
    topic_id = topic_id or machine.state.image.topics_by_name["t"].topic_id
    request = AlterPartitionRequest(
        broker_id=leader,
        broker_epoch=machine.state.image.brokers[leader].epoch,
        topics=[TopicData(topic_id=topic_id, partitions=list(rows))],
    )
    return machine.do(alter_partition(machine.state, request)).topics[0].partitions


@pytest.mark.parametrize("epochs", [True, False])  # version 3 and version 2
def test_the_isr_shrinks_and_grows(epochs: bool):
    machine = machine_with(1, 2, 3)
    assert ask(machine, row(machine, 1, 2, epochs=epochs)) == [
        PartitionDataResponse(
            partition_index=0,
            error_code=0,
            leader_id=1,
            leader_epoch=0,
            isr=[1, 2],
            leader_recovery_state=0,
            partition_epoch=1,
        )
    ]
    assert (machine.partition("t").isr, machine.partition("t").elr) == ((1, 2), ())
    [answer] = ask(machine, row(machine, 1, 2, 3, epochs=epochs))
    assert (answer.isr, answer.partition_epoch, answer.leader_epoch) == ([1, 2, 3], 2, 0)


def test_nothing_changes_is_no_record():
    machine = machine_with(1, 2)
    before = len(machine.log)
    [answer] = ask(machine, row(machine, 1, 2))
    assert (answer.error_code, answer.isr, answer.partition_epoch) == (ErrorCode.none, [1, 2], 0)
    assert len(machine.log) == before


# -- local logs (draft KIP-1303) -------------------------------------------------------------------------


def local(start: int, size: int = 0, oldest: int = -1) -> LocalLogState:
    return LocalLogState(local_log_start_offset=start, local_log_bytes=size, oldest_local_timestamp=oldest)


def with_logs(asked: PartitionData, logs: dict[int, LocalLogState]) -> PartitionData:
    for member in asked.new_isr_with_epochs:
        member.local_log = logs.get(member.broker_id)
    return asked


ONE, TWO, TEN = local(1), local(2, 20, 200), local(10)
KNOWN = {1: ONE, 2: TWO}


@pytest.mark.parametrize(("before", "isr", "logs", "after"), [
    # isr before, isr requested, reported                    known then
    ((1, 2),    (1, 2),    {},                               KNOWN),                # a leader that reports none
    ((1, 2),    (1, 2),    {1: ONE, 2: TEN},                 {1: ONE, 2: TEN}),
    ((1, 2),    (1, 2),    {2: TEN},                         {1: ONE, 2: TEN}),
    ((1, 2),    (1, 2, 3), {1: ONE, 2: TWO, 3: TEN},         {1: ONE, 2: TWO, 3: TEN}),
    ((1, 2),    (1, 2, 3), {1: ONE, 2: TWO},                 KNOWN),                # 3 is unknown
    ((1, 2, 3), (1, 3),    {1: TEN},                         {1: TEN, 2: TWO}),     # 2 may be of the ELR
    ((1, 3),    (1, 2, 3), {1: ONE},                         {1: ONE}),             # 2 joins: what it was is outdated
    ((1, 3),    (1, 2, 3), {1: ONE, 2: TEN},                 {1: ONE, 2: TEN}),
    ((1,),      (1, 2),    {1: local(0), 2: local(0)},       {1: local(0), 2: local(0)}),
])  # fmt: skip
def test_the_controller_keeps_the_local_logs_that_leaders_report(before, isr, logs, after):
    machine = machine_with(1, 2, 3)
    known = [ReplicaLocalLog(replica_id=replica, state=log) for replica, log in KNOWN.items()]
    change(machine, isr=list(before), local_logs=known)
    [answer] = ask(machine, with_logs(row(machine, *isr), logs))
    assert (answer.error_code, answer.isr) == (ErrorCode.none, list(isr))
    now = machine.partition("t")
    assert {replica: log.to_state() for replica, log in now.local_logs} == after
    assert (now.leader, now.leader_epoch) == (1, 0)


def test_other_values_with_the_same_isr_are_a_change():
    machine = machine_with(1, 2)
    end = len(machine.log)
    [answer] = ask(machine, with_logs(row(machine, 1, 2), {1: ONE, 2: TWO}))
    assert (answer.error_code, answer.partition_epoch, answer.leader_epoch) == (ErrorCode.none, 1, 0)
    topic_id = machine.state.image.topics_by_name["t"].topic_id
    known = [ReplicaLocalLog(replica_id=1, state=ONE), ReplicaLocalLog(replica_id=2, state=TWO)]
    assert machine.log[end:] == [PartitionChangeRecord(partition_id=0, topic_id=topic_id, local_logs=known)]
    # The same values again change nothing.
    [answer] = ask(machine, with_logs(row(machine, 1, 2), {1: ONE, 2: TWO}))
    assert (answer.error_code, answer.partition_epoch) == (ErrorCode.none, 1)
    assert len(machine.log) == end + 1


def test_a_change_of_the_isr_alone_does_not_repeat_the_values():
    machine = machine_with(1, 2, 3)
    ask(machine, with_logs(row(machine, 1, 2, 3), {1: ONE, 2: TWO, 3: TEN}))
    ask(machine, with_logs(row(machine, 1, 2), {1: ONE, 2: TWO}))
    assert machine.log[-1].local_logs is None
    assert len(machine.partition("t").local_logs) == 3


def test_stale_values_are_refused_as_a_stale_isr_is():
    machine = machine_with(1, 2)
    stale = with_logs(row(machine, 1, 2), {1: TEN, 2: TEN})
    ask(machine, with_logs(row(machine, 1, 2), {1: ONE, 2: TWO}))
    assert ask(machine, stale)[0].error_code == ErrorCode.invalid_update_version
    assert dict(machine.partition("t").local_logs)[1].start_offset == 1


def test_a_completed_reassignment_forgets_the_local_logs_of_removed_replicas():
    machine = machine_with(1, 2)
    ask(machine, with_logs(row(machine, 1, 2), {1: ONE, 2: TWO}))
    change(
        machine, replicas=[1, 3, 2], adding_replicas=[3], removing_replicas=[2],
        directories=[directory(1), directory(3), directory(2)],
    )  # fmt: skip
    ask(machine, with_logs(row(machine, 1, 2, 3), {1: ONE, 2: TWO, 3: TEN}))
    now = machine.partition("t")
    assert now.replicas == (1, 3)
    assert [(replica, log.start_offset) for replica, log in now.local_logs] == [(1, 1), (3, 10)]


def test_the_successor_of_a_removed_leader_has_the_most_local_data():
    machine = machine_with(1, 2, 4)
    machine.set_config("remote.storage.enable", "true", topic="t")
    machine.set_config("leader.election.prefer.early.local.log.start.offset", "true")  # of all brokers
    change(
        machine, replicas=[3, 2, 1], adding_replicas=[3], removing_replicas=[1],
        directories=[directory(3), directory(2), directory(1)],
    )  # fmt: skip
    [answer] = ask(machine, with_logs(row(machine, 1, 2, 3), {1: local(0), 2: local(0), 3: local(50_000)}))
    assert answer.error_code == ErrorCode.new_leader_elected
    now = machine.partition("t")
    assert (now.replicas, now.leader) == ((3, 2), 2)


@pytest.mark.parametrize(
    ("isr", "fields", "leader", "code"),
    [
        # The leader knows more than we do: we are not the controller any more.
        ((1, 2), {"leader_epoch": 2}, 1, ErrorCode.not_controller),
        ((1, 2), {"partition_epoch": 2}, 1, ErrorCode.not_controller),
        # It knows less: it has to learn first.
        ((1, 2), {"leader_epoch": 0}, 1, ErrorCode.fenced_leader_epoch),
        ((1, 2), {"partition_epoch": 0}, 1, ErrorCode.invalid_update_version),
        ((1, 2), {"leader_epoch": 0, "partition_epoch": 0}, 1, ErrorCode.fenced_leader_epoch),
        ((1, 2), {"leader_epoch": 2, "partition_epoch": 0}, 1, ErrorCode.not_controller),
        ((2, 1), {}, 2, ErrorCode.invalid_request),               # it does not lead
        # What cannot be an ISR.
        ((2,), {}, 1, ErrorCode.invalid_request),                 # without the leader
        ((), {}, 1, ErrorCode.invalid_request),
        ((1, 4), {}, 1, ErrorCode.invalid_request),               # no replica
        ((1, 2, 2), {}, 1, ErrorCode.invalid_request),
        ((1, -1), {}, 1, ErrorCode.invalid_request),
        # KIP-704: RECOVERED stays so, and who recovers is alone.
        ((1,), {"leader_recovery_state": 1}, 1, ErrorCode.invalid_request),
        ((1, 2), {"leader_recovery_state": 1}, 1, ErrorCode.invalid_request),
        ((1, 2), {"leader_recovery_state": 2}, 1, ErrorCode.invalid_request),
        ((1, 2), {"leader_recovery_state": -1}, 1, ErrorCode.invalid_request),
        # KIP-841, KIP-903: members that may not be in sync.
        ((1, 3), {}, 1, ErrorCode.ineligible_replica),            # fenced
        ((1, 5), {}, 1, ErrorCode.ineligible_replica),            # leaving
        ((1, 2), {"new_isr_with_epochs": [BrokerState(broker_id=1), BrokerState(broker_id=2, broker_epoch=0)]}, 1,
         ErrorCode.ineligible_replica),                           # restarted since
        ((1, 2), {"new_isr_with_epochs": [BrokerState(broker_id=1), BrokerState(broker_id=2)]}, 1,
         ErrorCode.none),                                         # -1: not checked
        ((1, 2), {"partition_index": 9}, 1, ErrorCode.unknown_topic_or_partition),
    ],
)  # fmt: skip
def test_what_is_returned_to_the_leader(isr: tuple, fields: dict, leader: int, code: ErrorCode):
    machine = machine_with(1, 2, 3, 5, brokers=(1, 2, 3, 4, 5))
    change(machine, leader=1, isr=[1])  # epochs are 1
    brokers = machine.state.image.brokers
    machine.replay(BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=brokers[3].epoch, fenced=1))
    machine.replay(
        BrokerRegistrationChangeRecord(broker_id=5, broker_epoch=brokers[5].epoch, in_controlled_shutdown=1)
    )
    before = machine.partition("t")
    [answer] = ask(machine, row(machine, *isr, **fields), leader=leader)
    assert answer.error_code == code
    assert answer.partition_index == fields.get("partition_index", 0)
    if code != ErrorCode.none:
        assert machine.partition("t") == before
        assert (answer.isr, answer.partition_epoch) == ([], 0)


def test_an_unregistered_member_is_ineligible():
    machine = machine_with(1, 2)
    change(machine, isr=[1])
    asked = row(machine, 1, 2)
    del machine.state.image.brokers[2]
    assert ask(machine, asked)[0].error_code == ErrorCode.ineligible_replica


def test_unknown_topics_and_strangers():
    machine = machine_with(1, 2)
    assert ask(machine, row(machine, 1), topic_id=UUID(int=9))[0].error_code == ErrorCode.unknown_topic_id
    request = AlterPartitionRequest(broker_id=1, broker_epoch=10**6, topics=[TopicData()])
    with pytest.raises(StaleBrokerEpoch):
        alter_partition(machine.state, request)
    request = AlterPartitionRequest(broker_id=1, broker_epoch=10**6)
    assert alter_partition(machine.state, request).response.topics == []  # nothing asked, as Kafka


def test_a_partition_that_is_named_twice_is_judged_by_what_the_first_made_of_it():
    machine = machine_with(1, 2, 3)
    first, second = ask(machine, row(machine, 1, 2), row(machine, 1))
    assert (first.error_code, second.error_code) == (ErrorCode.none, ErrorCode.invalid_update_version)
    assert machine.partition("t").isr == (1, 2)


# -- reassignments end here ----------------------------------------------------------------------------


# KIP-455
def test_a_reassignment_ends_when_those_that_come_are_in_sync():
    machine = machine_with(1, 2)
    change(
        machine, replicas=[1, 3, 2], adding_replicas=[3], removing_replicas=[2],
        directories=[directory(1), directory(3), directory(2)],
    )  # fmt: skip
    [answer] = ask(machine, row(machine, 1, 2, 3))
    # 2 is gone with the same change, and the leader has to begin a new epoch to let it go.
    assert (answer.error_code, answer.isr, answer.leader_id, answer.leader_epoch) == (0, [1, 3], 1, 1)
    now = machine.partition("t")
    assert (now.replicas, now.adding_replicas, now.removing_replicas) == ((1, 3), (), ())
    assert now.directories == (directory(1), directory(3))


def test_a_leader_that_its_reassignment_removes_gets_new_leader_elected():
    machine = machine_with(1, 2)
    change(
        machine, replicas=[3, 2, 1], adding_replicas=[3], removing_replicas=[1],
        directories=[directory(3), directory(2), directory(1)],
    )  # fmt: skip
    [answer] = ask(machine, row(machine, 1, 2, 3))
    assert answer.error_code == ErrorCode.new_leader_elected
    now = machine.partition("t")
    assert (now.leader, now.leader_epoch, now.isr, now.replicas) == (3, 1, (2, 3), (3, 2))
    assert now.elr == ()


def test_a_replica_that_was_removed_is_not_eligible():
    """Below min.insync.replicas 1 and 2 would stay in Kafka's ELR, though their logs are deleted."""
    machine = machine_with(1, 2)
    change(
        machine, replicas=[3, 1, 2], adding_replicas=[3], removing_replicas=[1, 2],
        directories=[directory(3), directory(1), directory(2)],
    )  # fmt: skip
    ask(machine, row(machine, 1, 2, 3))
    now = machine.partition("t")
    assert (now.replicas, now.isr, now.elr, now.leader) == ((3,), (3,), (), 3)
