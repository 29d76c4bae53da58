"""Requests about many replicas are handled in turns of the event loop, between which anything may happen."""

import asyncio
from collections.abc import Awaitable, Coroutine

import pytest
from replicas_support import NODE_ID, NOW_MS, BrokerInFolder, batch, image

from ottla.broker.api import (
    k02_list_offsets,
    k21_delete_records,
    k23_offset_for_leader_epoch,
    k34_alter_replica_log_dirs,
    k35_describe_log_dirs,
)
from ottla.protocol.codec import encode_response
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.runtime import turns

COUNT = 8
ELSEWHERE, UNKNOWN = 3, COUNT
INDEXES = range(COUNT + 1)
ROWS = "ROWS_OF_STEP"


@pytest.fixture
def broker(simulation, tmp_path):
    """It leads all partitions but one, and has replicas of its own only, with records in each."""
    broker = BrokerInFolder(tmp_path / "data", simulation.runtime("broker"))
    partitions = dict.fromkeys(range(COUNT), image(replicas=(NODE_ID,)))
    partitions[ELSEWHERE] = image(leader=2, replicas=(2, 3))
    broker.create(partitions=partitions)
    for partition in broker.replicas.partitions():
        for value in range(1 + partition.topic_partition.partition):
            records = batch(b"%d" % value, timestamp=NOW_MS + value)
            partition.as_leader().append_records(records, required_acks=-1, now_ms=broker.runtime.now_ms())
    return broker


def list_offsets(timestamp):
    rows = [ListOffsetsPartition(partition_index=index, timestamp=timestamp) for index in INDEXES]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=rows)])


def offset_for_leader_epoch():
    rows = [OffsetForLeaderPartition(partition=index, leader_epoch=9) for index in INDEXES]
    return OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=rows)])


def delete_records(indexes=INDEXES):
    rows = [DeleteRecordsPartition(partition_index=index, offset=1) for index in indexes]
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=rows)], timeout_ms=1000)


def alter_replica_log_dirs(path):
    topics = [AlterReplicaLogDirTopic(name="t", partitions=list(INDEXES))]
    return AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=str(path), topics=topics)])


def describe_log_dirs(*, is_named):
    named = [DescribableLogDirTopic(topic="t", partitions=list(INDEXES))]
    return DescribeLogDirsRequest(topics=named if is_named else None)


#: Module, its constant, version, request for a path.
LONG = [
    *[(k02_list_offsets, ROWS, 7, lambda path, at=at: list_offsets(at)) for at in (-1, -2, -3, NOW_MS + 2)],
    (k23_offset_for_leader_epoch, ROWS, 4, lambda path: offset_for_leader_epoch()),
    (k21_delete_records, "_DELETIONS_OF_STEP", 2, lambda path: delete_records()),
    (k34_alter_replica_log_dirs, "_MOVES_OF_STEP", 2, alter_replica_log_dirs),
    *[(k35_describe_log_dirs, ROWS, 3, lambda path, is_named=is_named: describe_log_dirs(is_named=is_named))
      for is_named in (False, True)],
]  # fmt: skip


def ask(simulation, broker, module, version, request):
    """Whether it is answered in turns, and the answer."""

    async def scenario():
        response = broker.call(module, request, version)
        is_later = isinstance(response, Awaitable)
        return is_later, encode_response(module.API.key, version, await response if is_later else response)

    return simulation.run(scenario())


@pytest.mark.parametrize(("module", "constant", "version", "request_of"), LONG)
def test_the_same_answer_in_turns(
    simulation, broker, tmp_path, monkeypatch, module, constant, version, request_of
):
    def answer():
        return ask(simulation, broker, module, version, request_of(tmp_path / "data"))

    monkeypatch.setattr(module, constant, 2 * COUNT)
    is_later, expected = answer()
    assert is_later == (module is k02_list_offsets), "ListOffsets may search in a thread"
    for size in (1, 2, COUNT - 2):
        monkeypatch.setattr(module, constant, size)
        assert answer() == (True, expected)


@pytest.mark.parametrize("is_named", [False, True])
def test_replicas_that_are_deleted_meanwhile_are_described(simulation, broker, monkeypatch, is_named):
    """The list of replicas is of one moment: no replica is missing because others were described first."""
    monkeypatch.setattr(k35_describe_log_dirs, ROWS, 1)
    monkeypatch.setattr(turns, "MAX_STEPS", 1)
    deleted = broker.replicas.logs.logs[("t", COUNT - 1)]

    async def scenario():
        describing = asyncio.ensure_future(
            broker.call(k35_describe_log_dirs, describe_log_dirs(is_named=is_named), 5)
        )
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not describing.done()
        broker.replicas.logs.delete(deleted.topic_partition)
        assert list(broker.replicas.logs.rename_deleted(NOW_MS))
        return await describing

    response = simulation.run(scenario())
    (directory,) = response.results
    (topic,) = directory.topics
    assert [row.partition_index for row in topic.partitions] == [at for at in range(COUNT) if at != ELSEWHERE]
    assert all(row.partition_size > 0 for row in topic.partitions)


def test_records_whose_deletion_is_not_complete_are_waited_for(simulation, broker, monkeypatch):
    """With two replicas, the follower's log start is not known to be beyond the offset."""
    monkeypatch.setattr(k21_delete_records, "_DELETIONS_OF_STEP", 1)
    partition = broker.replicas.partition(("t", 5))
    partition.apply(image(epoch=1, replicas=(NODE_ID, 2)))
    broker.replicas.cluster.is_alive = lambda broker_id: True

    async def scenario():
        began_at = broker.runtime.monotonic()
        reply = broker.call(k21_delete_records, delete_records([4, 5, 6]), 2)
        assert isinstance(reply, Coroutine)
        response = await reply
        assert broker.runtime.monotonic() - began_at == pytest.approx(1)
        return [(ErrorCode(row.error_code), row.low_watermark) for row in response.topics[0].partitions]

    done = ErrorCode.none, 1
    assert simulation.run(scenario()) == [done, (ErrorCode.request_timed_out, -1), done]
