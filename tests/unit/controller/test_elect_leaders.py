"""Elections on request and unasked: preferred, unclean, all of them (KIP-183, KIP-460)."""

from typing import Any

import pytest

from ottla.controller.partitions.elect_leaders import balance_leaders, elect_leaders, elect_unclean
from ottla.metadata.image import LeaderRecoveryState
from ottla.metadata.records import BrokerRegistrationChangeRecord, PartitionChangeRecord
from ottla.protocol.errors import ErrorCode, InvalidRequest, PolicyViolation
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.stories.elections.machine import Machine

PREFERRED, UNCLEAN = 0, 1


def change(machine: Machine, topic: str = "t", index: int = 0, **fields: Any) -> None:
    topic_id = machine.state.image.topics_by_name[topic].topic_id
    machine.replay(PartitionChangeRecord(partition_id=index, topic_id=topic_id, **fields))


def fence(machine: Machine, broker_id: int, fenced: int = 1) -> None:
    epoch = machine.state.image.brokers[broker_id].epoch
    machine.replay(BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=epoch, fenced=fenced))


def elect(machine: Machine, election: int, wanted: dict[str, list[int]] | None) -> dict[tuple[str, int], int]:
    """(topic, partition) -> error code."""
    request = ElectLeadersRequest(
        election_type=election,
        topic_partitions=None
        if wanted is None
        else [TopicPartitions(topic=name, partitions=indexes) for name, indexes in wanted.items()],
    )
    response = machine.do(elect_leaders(machine.state, request))
    return {
        (topic.topic, row.partition_id): row.error_code
        for topic in response.replica_election_results
        for row in topic.partition_result
    }


@pytest.mark.parametrize(
    ("leader", "isr", "elr", "alive", "election", "code", "leads"),
    [
        # leader isr        elr   alive      asked      answer                                     leads
        (1,  (1, 2, 3),     (),   {1, 2, 3}, PREFERRED, ErrorCode.election_not_needed,             1),
        (2,  (1, 2, 3),     (),   {1, 2, 3}, PREFERRED, ErrorCode.none,                            1),
        (2,  (2, 3),        (),   {1, 2, 3}, PREFERRED, ErrorCode.preferred_leader_not_available,  2),
        (2,  (1, 2, 3),     (),   {2, 3},    PREFERRED, ErrorCode.preferred_leader_not_available,  2),
        (-1, (2,),          (),   {2},       PREFERRED, ErrorCode.none,                            2),  # the next best
        (-1, (),            (1,), {1},       PREFERRED, ErrorCode.none,                            1),  # of the ELR
        (-1, (2,),          (),   {1},       PREFERRED, ErrorCode.preferred_leader_not_available,  None),
        (2,  (1, 2, 3),     (),   {1, 2, 3}, UNCLEAN,   ErrorCode.election_not_needed,             2),
        (-1, (2,),          (),   {2, 3},    UNCLEAN,   ErrorCode.none,                            2),  # clean
        (-1, (2,),          (),   {3},       UNCLEAN,   ErrorCode.none,                            3),
        (-1, (2,),          (),   set(),     UNCLEAN,   ErrorCode.eligible_leaders_not_available,  None),
    ],
)  # fmt: skip
def test_elections(leader, isr, elr, alive, election, code, leads):
    machine = Machine(brokers=[1, 2, 3])
    machine.set_config("min.insync.replicas", "2")
    machine.create("t", [1, 2, 3])
    change(machine, leader=leader, isr=list(isr), eligible_leader_replicas=list(elr))
    for broker_id in {1, 2, 3} - alive:
        fence(machine, broker_id)
    before = machine.partition("t")
    assert elect(machine, election, {"t": [0]}) == {("t", 0): code}
    now = machine.partition("t")
    assert now.leader == leads
    assert now.leader_epoch == before.leader_epoch + (now.leader != before.leader)
    is_unclean = leads is not None and leads not in (*isr, *elr)
    assert (now.leader_recovery_state is LeaderRecoveryState.RECOVERING) == is_unclean
    if is_unclean:
        assert (now.isr, now.elr) == ((leads,), ())


def test_what_is_not_there():
    machine = Machine(brokers=[1])
    machine.create("t", [1])
    assert elect(machine, PREFERRED, {"t": [1], "u": [0]}) == {
        ("t", 1): ErrorCode.unknown_topic_or_partition,
        ("u", 0): ErrorCode.unknown_topic_or_partition,
    }
    assert elect(machine, PREFERRED, {}) == {}
    request = ElectLeadersRequest(
        election_type=2, topic_partitions=[TopicPartitions(topic="t", partitions=[0])]
    )
    with pytest.raises(InvalidRequest):
        elect_leaders(machine.state, request)


def test_all_partitions_returns_only_those_that_need_an_election():
    machine = Machine(brokers=[1, 2])
    machine.create("t", [1, 2], [2, 1], [1, 2])
    machine.create("u", [1])
    change(machine, index=1, leader=1)
    change(machine, index=2, leader=2, isr=[2])
    assert elect(machine, PREFERRED, None) == {
        ("t", 1): ErrorCode.none,
        ("t", 2): ErrorCode.preferred_leader_not_available,
    }
    request = ElectLeadersRequest(topic_partitions=None)
    topics = elect_leaders(machine.state, request).response.replica_election_results
    assert [topic.topic for topic in topics] == ["t", "u"]  # with or without rows, as Kafka


def test_a_partition_that_is_named_twice_is_elected_once():
    machine = Machine(brokers=[1, 2])
    machine.create("t", [1, 2])
    change(machine, leader=2)
    elect(machine, PREFERRED, {"t": [0, 0]})
    assert machine.partition("t").leader_epoch == 2


def test_too_many_elections():
    machine = Machine(brokers=[1, 2])
    for number in range(3):
        machine.create(f"t{number}", *([1, 2] for _ in range(4_000)))
    for topic in machine.state.image.topics_by_id.values():
        for index in topic.partitions:
            change(machine, topic.name, index, leader=2)
    with pytest.raises(PolicyViolation):
        elect(machine, PREFERRED, None)
    assert elect(machine, PREFERRED, {"t1": [7]}) == {("t1", 7): ErrorCode.none}


# -- unasked -------------------------------------------------------------------------------------------


def test_preferred_leaders_are_elected_automatically():
    machine = Machine(brokers=[1, 2])
    machine.create("t", [1, 2], [1, 2], [2, 1])
    change(machine, index=0, leader=2)
    change(machine, index=1, leader=2, isr=[2])  # 1 is not in sync
    before = len(machine.log)
    assert machine.do(balance_leaders(machine.state, machine.now_ms)) is False
    assert [machine.partition("t", index).leader for index in range(3)] == [1, 2, 2]
    assert len(machine.log) == before + 1
    assert machine.do(balance_leaders(machine.state, machine.now_ms)) is False
    assert len(machine.log) == before + 1


def test_many_elections_take_turns_with_requests():
    machine = Machine(brokers=[1, 2])
    machine.create("t", *([1, 2] for _ in range(2_500)))
    for index in range(2_500):
        change(machine, index=index, leader=2)
    lengths = []
    more = True
    while more:
        result = balance_leaders(machine.state, machine.now_ms)
        lengths.append(len(result.records))
        more = machine.do(result)
    assert lengths == [1_000, 1_000, 500]
    assert all(machine.partition("t", index).leader == 1 for index in range(2_500))


@pytest.mark.parametrize("elr", [True, False])
def test_unclean_elections_where_the_policy_allows_them(elr: bool):
    """The policy may be changed while there is no leader: no broker comes or goes then."""
    machine = Machine(brokers=[1, 2], elr=elr)
    for name in ("careful", "hasty"):
        machine.create(name, [1, 2])
        change(machine, name, leader=-1, isr=[1])
    fence(machine, 1)
    machine.set_config("unclean.leader.election.enable", "true", topic="hasty")
    assert machine.do(elect_unclean(machine.state, machine.now_ms)) is False
    assert machine.partition("careful").leader is None
    hasty = machine.partition("hasty")
    assert (hasty.leader, hasty.isr, hasty.elr) == (2, (2,), ())
    assert hasty.leader_recovery_state is LeaderRecoveryState.RECOVERING
    before = len(machine.log)
    fence(machine, 2)
    machine.do(elect_unclean(machine.state, machine.now_ms))  # no broker is live: no record, no error
    assert len(machine.log) == before + 1
