"""DescribeQuorum: every field of it."""

from typing import Any

import pytest
from raft_support import Cluster, elected, fetch_request

from ottla.controller.raft.describe_quorum import MOST_REFUSED
from ottla.controller.raft.types import TOPIC
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    TopicData,
)
from ottla.stories.quorum.raft_replicas import LISTENER, Replica, address, directory, settings


def request(topic: str = TOPIC, *partitions: int) -> DescribeQuorumRequest:
    rows = [PartitionData(partition_index=index) for index in partitions or (0,)]
    return DescribeQuorumRequest(topics=[TopicData(topic_name=topic, partitions=rows)])


def test_the_leader_describes_voters_and_observers() -> None:
    cluster = Cluster.dynamic([1, 2, 3])
    leader = cluster.elect()
    cluster.run_until(lambda: leader.raft.high_watermark == 3)
    leader.pass_time(1_000)
    now_ms, epoch = leader.now_ms, leader.role.epoch
    a, b = sorted({1, 2, 3} - {leader.id})
    leader.ask(fetch_request(a, offset=3, epoch=epoch, leader_epoch=epoch, max_wait_ms=0))
    leader.ask(fetch_request(9, offset=1, epoch=0, leader_epoch=epoch, max_wait_ms=0))
    leader.pass_time(10)
    answer = leader.ask(request())
    assert (answer.error_code, answer.error_message) == (0, None)
    row = answer.topics[0].partitions[0]
    assert (row.error_code, row.error_message, row.partition_index) == (0, None, 0)
    assert (row.leader_id, row.leader_epoch, row.high_watermark) == (leader.id, epoch, 3)
    states = {each.replica_id: each for each in row.current_voters}
    assert states[leader.id] == ReplicaState(
        replica_id=leader.id,
        replica_directory_id=directory(leader.id),
        log_end_offset=3,
        last_fetch_timestamp=now_ms + 10,
        last_caught_up_timestamp=now_ms + 10,
    )
    assert states[a] == ReplicaState(
        replica_id=a,
        replica_directory_id=directory(a),
        log_end_offset=3,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    assert states[b].last_fetch_timestamp < now_ms
    assert [node for node in answer.nodes if node.node_id == b] == [
        Node(node_id=b, listeners=[Listener(name=LISTENER, host=address(b).host, port=address(b).port)])
    ]
    assert len(answer.nodes) == 3
    assert row.observers == []  # its fetch was refused, as it diverges


def test_an_observer_stays_for_five_minutes() -> None:
    leader = Replica(settings(1, [1]))
    leader.ask(fetch_request(9, offset=0, epoch=0, leader_epoch=1, max_wait_ms=0))

    def observers() -> list[ReplicaState]:
        found: list[ReplicaState] = leader.ask(request()).topics[0].partitions[0].observers
        return found

    (state,) = observers()
    assert (state.replica_id, state.replica_directory_id, state.log_end_offset) == (9, directory(9), 0)
    assert (state.last_fetch_timestamp, state.last_caught_up_timestamp) == (leader.now_ms, -1)
    leader.pass_time(299_999)
    assert observers()
    leader.pass_time(1_000)
    assert not observers()


def test_voters_that_have_never_fetched() -> None:
    row = elected().ask(request()).topics[0].partitions[0]
    other = row.current_voters[1]
    assert (other.log_end_offset, other.last_fetch_timestamp, other.last_caught_up_timestamp) == (-1, -1, -1)
    assert row.high_watermark == -1


@pytest.mark.parametrize(
    ("asked", "partitions"),
    [(request("t", 0), [0]), (request(TOPIC, 1), [1]), (request(TOPIC, 0, 1), [0, 1])],
)
def test_other_partitions_are_not_known(asked: Any, partitions: list[int]) -> None:
    answer = Replica(settings(1, [1])).ask(asked)
    rows = answer.topics[0].partitions
    assert [each.partition_index for each in rows] == partitions
    assert {each.error_code for each in rows} == {ErrorCode.unknown_topic_or_partition}


@pytest.mark.parametrize(
    "asked", [DescribeQuorumRequest(), DescribeQuorumRequest(topics=[TopicData(topic_name=TOPIC)])]
)
def test_lists_that_are_empty(asked: DescribeQuorumRequest) -> None:
    answer = Replica(settings(1, [1])).ask(asked)
    assert [topic.partitions for topic in answer.topics] == [[] for _ in asked.topics]


def test_only_the_leader_knows() -> None:
    row = Replica(settings(1)).ask(request()).topics[0].partitions[0]
    assert row.error_code == ErrorCode.not_leader_or_follower


@pytest.mark.parametrize("topic", [TOPIC, "t"])
def test_many_partitions_are_refused_as_a_whole(topic: str) -> None:
    leader = elected(1, [1])
    answer = leader.ask(request(topic, *range(MOST_REFUSED)))
    assert (answer.error_code, len(answer.topics[0].partitions)) == (0, MOST_REFUSED)
    for many in (
        request(topic, *range(MOST_REFUSED + 1)),
        DescribeQuorumRequest(topics=request(topic).topics * (MOST_REFUSED + 1)),
        DescribeQuorumRequest(topics=[TopicData(topic_name=topic)] * (MOST_REFUSED + 1)),
    ):
        answer = leader.ask(many)
        assert (answer.error_code, answer.topics) == (ErrorCode.invalid_request, [])
