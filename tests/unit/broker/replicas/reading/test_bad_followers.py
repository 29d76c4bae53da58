"""A client that claims to be a follower, or a follower in another epoch, does not advance the high watermark
(CVE-2018-1288, KIP-320, KIP-903).
"""

from uuid import UUID

import pytest

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.types import TopicPartition
from ottla.runtime.simulated import Simulation
from ottla.stories.partition.replicas import TOPIC_ID, ReplicaCluster

ORDERS = TopicPartition("orders", 0)
#: The leader epoch that the leader is in, and an epoch of broker 2 that is over.
EPOCH, OLD = 1, 0


@pytest.fixture
def cluster():
    with Simulation(seed=1) as simulation:
        cluster = ReplicaCluster(simulation, [1, 2, 3])
        # No broker runs fetchers: nothing listens, and the test sends the Fetch requests.
        cluster.create("orders", {0: [1, 2]})
        cluster.elect(ORDERS, 1)
        cluster.elect(ORDERS, 1)
        yield cluster
        simulation.run(stop(cluster))


async def stop(cluster):
    for broker in cluster.brokers.values():
        await broker.stop()


@pytest.mark.parametrize(("replica_id", "broker_epoch", "leader_epoch", "offset", "topic_id", "code"), [
    # Replica broker epoch leader epoch offset topic           answer
    (2,       None,        EPOCH,       1,     TOPIC_ID,       ErrorCode.none),  # the real one
    (2,       -1,          EPOCH,       1,     TOPIC_ID,       ErrorCode.none),  # of before KIP-903
    (3,       None,        EPOCH,       1,     TOPIC_ID,       ErrorCode.unknown_leader_epoch),
    (3,       None,        -1,          1,     TOPIC_ID,       ErrorCode.not_leader_or_follower),
    (1,       None,        EPOCH,       1,     TOPIC_ID,       ErrorCode.unknown_leader_epoch),  # the leader himself
    (9,       -1,          EPOCH,       1,     TOPIC_ID,       ErrorCode.unknown_leader_epoch),  # no broker at all
    (2,       OLD,         EPOCH,       1,     TOPIC_ID,       ErrorCode.not_leader_or_follower),
    (2,       None,        EPOCH - 1,   1,     TOPIC_ID,       ErrorCode.fenced_leader_epoch),
    (2,       None,        EPOCH + 1,   1,     TOPIC_ID,       ErrorCode.unknown_leader_epoch),
    (2,       None,        EPOCH,       2,     TOPIC_ID,       ErrorCode.offset_out_of_range),
    (2,       None,        EPOCH,       -1,    TOPIC_ID,       ErrorCode.offset_out_of_range),
    (2,       None,        EPOCH,       1,     UUID(int=0xBAD), ErrorCode.unknown_topic_id),
])  # fmt: skip
def test_who_moves_the_high_watermark(
    cluster, replica_id, broker_epoch, leader_epoch, offset, topic_id, code
):
    leader = cluster.brokers[1]
    partition = leader.partition(ORDERS)
    now_ms = leader.runtime.now_ms()
    batch = bytearray(build_batch(simple_records([(None, b"a")], timestamp=now_ms)))
    partition.as_leader().append_records(batch, required_acks=1, now_ms=now_ms)
    row = FetchPartition(
        partition=0,
        current_leader_epoch=leader_epoch,
        fetch_offset=offset,
        log_start_offset=0,
        partition_max_bytes=1 << 20,
        high_watermark=2**63 - 1,
    )
    epoch = cluster.brokers[2].epoch if broker_epoch is None else broker_epoch
    request = FetchRequest(
        replica_state=ReplicaState(replica_id=replica_id, replica_epoch=epoch),
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[FetchTopic(topic_id=topic_id, partitions=[row])],
    )
    response = leader.answer(ApiKey.FETCH, request, 18)
    (answer,) = response.responses[0].partitions
    assert ErrorCode(answer.error_code) == code
    assert not answer.records
    assert partition.log.high_watermark == (1 if code == ErrorCode.none else 0)
    assert partition.isr == (1, 2)
    assert not cluster.proposals


def test_a_partition_that_is_not_here(cluster):
    row = FetchPartition(partition=0, current_leader_epoch=EPOCH, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_state=ReplicaState(replica_id=2, replica_epoch=cluster.brokers[2].epoch),
        max_wait_ms=0,
        session_epoch=-1,
        topics=[FetchTopic(topic_id=TOPIC_ID, partitions=[row])],
    )
    for broker_id in (2, 3):  # a follower, and no replica at all
        response = cluster.brokers[broker_id].answer(ApiKey.FETCH, request, 18)
        (answer,) = response.responses[0].partitions
        assert answer.error_code == ErrorCode.not_leader_or_follower
