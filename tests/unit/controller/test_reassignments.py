"""Reassignments as tables: begun, replaced, completed, cancelled (KIP-455, KIP-860)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.controller.partitions.partition_change import maybe_complete_reassignment
from ottla.controller.partitions.reassignments import (
    alter_partition_reassignments,
    list_partition_reassignments,
)
from ottla.metadata.image import DIRECTORY_MIGRATING, PartitionImage
from ottla.metadata.records import BrokerRegistrationChangeRecord, PartitionChangeRecord
from ottla.protocol.errors import ErrorCode, PolicyViolation
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from ottla.stories.elections.machine import Machine, directory


def request(
    *rows: tuple[int, list[int] | None], topic: str = "t", **fields: Any
) -> AlterPartitionReassignmentsRequest:
    partitions = [ReassignablePartition(partition_index=index, replicas=ids) for index, ids in rows]
    return AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=partitions)], **fields
    )


def reassign(
    machine: Machine, *rows: tuple[int, list[int] | None], **fields: Any
) -> list[tuple[int, str | None]]:
    response = machine.do(alter_partition_reassignments(machine.state, request(*rows, **fields)))
    return [(row.error_code, row.error_message) for row in response.responses[0].partitions]


def change(machine: Machine, **fields: Any) -> None:
    topic_id = machine.state.image.topics_by_name["t"].topic_id
    machine.replay(PartitionChangeRecord(partition_id=0, topic_id=topic_id, **fields))


def shape(partition: PartitionImage) -> tuple[Any, ...]:
    return partition.replicas, partition.adding_replicas, partition.removing_replicas


@pytest.mark.parametrize(
    ("before", "isr", "target", "replicas", "adding", "removing", "isr_after", "leader"),
    [
        # replicas isr        target        replicas          adding  removing  isr        leader
        ([1, 2],    [1, 2],    [3, 2],       (3, 2, 1),        (3,),   (1,),     (1, 2),    1),
        ([1, 2],    [1, 2],    [3, 4],       (3, 4, 1, 2),     (3, 4), (1, 2),   (1, 2),    1),
        ([1, 2],    [1, 2],    [2, 1],       (2, 1),           (),     (),       (1, 2),    1),  # at once
        ([1, 2],    [1, 2],    [1, 2],       (1, 2),           (),     (),       (1, 2),    1),  # nothing
        ([1, 2],    [1, 2],    [1, 2, 3],    (1, 2, 3),        (3,),   (),       (1, 2),    1),  # one more
        ([1, 2, 3], [1, 2, 3], [1, 2],       (1, 2),           (),     (),       (1, 2),    1),  # one less: at once
        ([1, 2, 3], [1, 2, 3], [2, 3],       (2, 3),           (),     (),       (2, 3),    2),  # the leader goes
        ([1, 2, 3], [1],       [2, 3],       (2, 3, 1),        (),     (1,),     (1,),      1),  # no other one in sync
        ([1, 2, 3], [1, 2],    [2, 3],       (2, 3, 1),        (),     (1,),     (1, 2),    1),  # fewer: all have to be
        ([1, 2, 3], [1, 2, 3], [4],          (4, 1, 2, 3),     (4,),   (1, 2, 3), (1, 2, 3), 1),
    ],
)  # fmt: skip
def test_a_reassignment_begins(before, isr, target, replicas, adding, removing, isr_after, leader):
    machine = Machine(brokers=[1, 2, 3, 4])
    machine.create("t", before)
    change(machine, isr=isr)
    epoch = machine.partition("t").leader_epoch
    assert reassign(machine, (0, target)) == [(ErrorCode.none, None)]
    now = machine.partition("t")
    assert shape(now) == (replicas, adding, removing)
    assert (now.isr, now.leader) == (isr_after, leader)
    # A leader that has to let replicas go begins a new epoch.
    assert now.leader_epoch == epoch + (not set(before) <= set(replicas))
    assert now.directories == tuple(directory(replica) for replica in replicas)


def test_another_target_while_under_way():
    machine = Machine(brokers=[1, 2, 3, 4])
    machine.create("t", [1, 2])
    reassign(machine, (0, [3, 2]))
    reassign(machine, (0, [4, 2]))
    assert shape(machine.partition("t")) == ((4, 2, 1, 3), (4,), (1, 3))


def test_to_keep_all_ends_the_removal():
    """Kafka keeps `removing` as it is when nothing is to be removed any more."""
    machine = Machine(brokers=[1, 2, 3])
    machine.create("t", [1, 2])
    reassign(machine, (0, [3, 2]))
    reassign(machine, (0, [1, 2, 3]))
    assert shape(machine.partition("t")) == ((1, 2, 3), (), ())


@pytest.mark.parametrize(
    ("wanted", "code", "said"),
    [
        ((9, [1]), ErrorCode.unknown_topic_or_partition, "Unable to find partition t:9."),
        ((0, []), ErrorCode.invalid_replica_assignment, "empty replica list"),
        ((0, [1, 9]), ErrorCode.invalid_replica_assignment, "includes broker 9, but no such broker"),
        ((0, [1, 1]), ErrorCode.invalid_replica_assignment, "more than once"),
        ((0, [-1]), ErrorCode.invalid_replica_assignment, "no such broker"),
        ((0, None), ErrorCode.no_reassignment_in_progress, ""),
    ],
)
def test_what_is_refused(wanted, code, said):
    machine = Machine(brokers=[1, 2])
    machine.create("t", [1, 2])
    before = len(machine.log)
    [(answer, message)] = reassign(machine, wanted)
    assert answer == code
    assert said in (message or "")
    assert len(machine.log) == before
    [(answer, _)] = reassign(machine, wanted, topic="unknown")
    assert answer == ErrorCode.unknown_topic_or_partition


def test_rows_are_independent_of_each_other():
    machine = Machine(brokers=[1, 2])
    machine.create("t", [1], [1])
    codes = [code for code, _ in reassign(machine, (0, [9]), (1, [2]))]
    assert codes == [ErrorCode.invalid_replica_assignment, ErrorCode.none]
    assert machine.partition("t", 1).adding_replicas == (2,)


@pytest.mark.parametrize(
    ("under_way", "target", "code"),
    [
        (None, [3, 4], ErrorCode.none),
        (None, [3], ErrorCode.invalid_replication_factor),
        (None, [1, 2, 3], ErrorCode.invalid_replication_factor),
        ([1, 2, 3], [1, 2, 4], ErrorCode.none),  # it was on the way to three
        ([1, 2, 3], [1, 4], ErrorCode.invalid_replication_factor),
        ([3, 4], [3, 1], ErrorCode.none),
    ],
)
def test_the_replication_factor_may_have_to_stay(under_way, target, code):
    """KIP-860 adds allow_replication_factor_change to the request."""
    machine = Machine(brokers=[1, 2, 3, 4])
    machine.create("t", [1, 2])
    if under_way is not None:
        reassign(machine, (0, under_way))
    [(answer, message)] = reassign(machine, (0, target), allow_replication_factor_change=False)
    assert answer == code
    if code:
        count = 3 if under_way == [1, 2, 3] else 2
        assert message == f"The replication factor is changed from {count} to {len(target)}"


@pytest.mark.parametrize("allowed", [True, False])
def test_the_answer_says_what_was_allowed(allowed: bool):
    machine = Machine(brokers=[1])
    wanted = request((0, [1]), allow_replication_factor_change=allowed)
    result = alter_partition_reassignments(machine.state, wanted)
    assert result.response.allow_replication_factor_change == allowed


# -- cancelling ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("isr", "elr", "alive", "is_hasty", "code", "isr_after", "leader"),
    [
        # [1, 2] -> [3, 4] is cancelled; in sync:
        ([1, 2],    [],  {1, 2, 3, 4}, False, ErrorCode.none,                       (1, 2), 1),
        ([1, 2, 3], [],  {1, 2, 3, 4}, False, ErrorCode.none,                       (1, 2), 1),
        ([2, 3],    [],  {1, 2, 3, 4}, False, ErrorCode.none,                       (2,),   2),
        ([3],       [],  {1, 2, 3, 4}, False, ErrorCode.invalid_replica_assignment, (3,),   3),
        ([3],       [],  {1, 2, 3, 4}, True,  ErrorCode.none,                       (1,),   1),
        ([3],       [2], {1, 2, 3, 4}, False, ErrorCode.none,                       (2,),   2),     # as good as in sync
        ([],        [2], {1, 3, 4},    False, ErrorCode.none,                       (),     None),  # it may come back
        ([],        [3], {1, 3, 4},    False, ErrorCode.invalid_replica_assignment, (),     None),
    ],
)  # fmt: skip
def test_a_reassignment_is_cancelled(isr, elr, alive, is_hasty, code, isr_after, leader):
    machine = Machine(brokers=[1, 2, 3, 4])
    machine.set_config("min.insync.replicas", "2")
    if is_hasty:
        machine.set_config("unclean.leader.election.enable", "true")
    machine.create("t", [1, 2])
    reassign(machine, (0, [3, 4]))
    change(machine, isr=isr, leader=isr[0] if isr else -1, eligible_leader_replicas=elr)
    for broker_id in {1, 2, 3, 4} - alive:
        epoch = machine.state.image.brokers[broker_id].epoch
        machine.replay(BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=epoch, fenced=1))
    [(answer, _)] = reassign(machine, (0, None))
    assert answer == code
    now = machine.partition("t")
    if code == ErrorCode.none:
        assert shape(now) == ((1, 2), (), ())
        assert now.directories == (directory(1), directory(2))
    assert (now.isr, now.leader) == (isr_after, leader)
    assert set(now.elr) <= set(now.replicas)


def test_cancelled_where_all_replicas_were_added():
    machine = Machine(brokers=[1, 2])
    machine.create("t", [1])
    reassign(machine, (0, [2]))
    change(machine, replicas=[2], adding_replicas=[2], removing_replicas=[], isr=[2], leader=2)
    machine.set_config("unclean.leader.election.enable", "true")
    assert reassign(machine, (0, None))[0][0] == ErrorCode.invalid_replica_assignment


def test_a_partition_that_is_named_twice_is_changed_twice():
    """Each change sees the one before; Kafka judges both by what there was, and mixes them."""
    machine = Machine(brokers=[1, 2, 3, 4])
    machine.create("t", [1, 2])
    assert reassign(machine, (0, [3, 4]), (0, [2, 1])) == [(ErrorCode.none, None)] * 2
    assert shape(machine.partition("t")) == ((2, 1), (), ())


def test_before_directories_had_ids():
    """metadata.version 3.6: the log does not say in which directories replicas are."""
    machine = Machine(brokers=[1, 2, 3], metadata_version=12, elr=False)
    machine.create("t", [1, 2])
    before = len(machine.log)
    reassign(machine, (0, [1, 2, 3]))
    assert machine.log[before].directories is None
    assert machine.partition("t").directories == (DIRECTORY_MIGRATING,) * 3


# -- the list ------------------------------------------------------------------------------------------


def listed(machine: Machine, wanted: dict[str, list[int]] | None) -> dict[tuple[str, int], tuple[Any, ...]]:
    topics = (
        None
        if wanted is None
        else [
            ListPartitionReassignmentsTopics(name=name, partition_indexes=ids) for name, ids in wanted.items()
        ]
    )
    result = list_partition_reassignments(machine.state, ListPartitionReassignmentsRequest(topics=topics))
    assert not result.records
    return {
        (topic.name, row.partition_index): (row.replicas, row.adding_replicas, row.removing_replicas)
        for topic in result.response.topics
        for row in topic.partitions
    }


def test_the_list():
    machine = Machine(brokers=[1, 2, 3])
    machine.create("t", [1, 2], [1, 2])
    machine.create("u", [1])
    assert listed(machine, None) == {}
    reassign(machine, (1, [1, 3]))
    ongoing = {("t", 1): ([1, 3, 2], [3], [2])}
    assert listed(machine, None) == ongoing
    assert listed(machine, {"t": [0, 1, 9], "u": [0], "unknown": [0]}) == ongoing
    assert listed(machine, {"t": [0]}) == {}
    assert listed(machine, {}) == {}
    reassign(machine, (1, None))
    assert listed(machine, None) == {}


def test_too_much_at_once():
    machine = Machine(brokers=[1, 2])
    for name in ("t", "u"):
        machine.create(name, *([1] for _ in range(6_000)))
    wanted = request(*((index, [2]) for index in range(6_000)))
    wanted.topics += request(*((index, [2]) for index in range(6_000)), topic="u").topics
    with pytest.raises(PolicyViolation):
        alter_partition_reassignments(machine.state, wanted)


# -- completion as a rule ------------------------------------------------------------------------------

ids = st.lists(st.integers(1, 6), unique=True)


@given(target=ids.filter(bool), original=ids.filter(bool), data=st.data())
def test_every_completion(target, original, data):
    removing = sorted(set(original) - set(target))
    adding = sorted(set(target) - set(original))
    replicas = [*target, *removing]
    isr = data.draw(st.lists(st.sampled_from(replicas), unique=True))
    before = PartitionImage(
        tuple(replicas), tuple(isr), isr[0] if isr else None, 0, 0, (DIRECTORY_MIGRATING,) * len(replicas),
        adding_replicas=tuple(adding), removing_replicas=tuple(removing),
    )  # fmt: skip
    after = maybe_complete_reassignment(before)
    if after is before:
        if adding or removing:
            kept = set(isr) - set(removing)
            assert (
                not kept or not set(adding) <= kept or (len(adding) < len(removing) and kept != set(target))
            )
        return
    assert list(after.replicas) == target
    assert (after.adding_replicas, after.removing_replicas) == ((), ())
    assert after.isr == tuple(replica for replica in isr if replica in target)
    assert after.isr
    assert set(adding) <= set(after.isr)
    assert len(after.directories) == len(after.replicas)
