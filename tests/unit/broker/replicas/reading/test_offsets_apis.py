"""ListOffsets, DeleteRecords, OffsetForLeaderEpoch, DescribeLogDirs and InitProducerId through their handlers."""

import asyncio
from contextlib import suppress
from uuid import UUID

import pytest
from replicas_support import NOW_MS, batch, image

from ottla.broker.api import (
    k02_list_offsets,
    k21_delete_records,
    k22_init_producer_id,
    k23_offset_for_leader_epoch,
    k35_describe_log_dirs,
)
from ottla.broker.producer_ids import ProducerIdManager
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.allocate_producer_ids import AllocateProducerIdsResponse
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.runtime import Pool
from ottla.storage import log_reader
from ottla.storage.log_reader import LogReader
from tests.harness.bombs import MANY, understated_batch

CONSUMER, DEBUGGING = -1, -2


# KIP-939, KIP-1075
@pytest.mark.parametrize(
    "module",
    [
        k02_list_offsets,
        k21_delete_records,
        k22_init_producer_id,
        k23_offset_for_leader_epoch,
        k35_describe_log_dirs,
    ],
)
def test_the_versions_are_kafkas(module):
    assert module.API.versions == KAFKA_VERSIONS[ApiKey(module.API.key)]


def append(broker, *values, index=0, timestamp=NOW_MS):
    broker.replicas.partition(("t", index)).as_leader().append_records(
        batch(*values, timestamp=timestamp, key=b"k"), required_acks=-1, now_ms=broker.runtime.now_ms()
    )


def list_offsets(simulation, broker, *asked, version=11, replica_id=CONSUMER, topic="t"):
    rows = [
        ListOffsetsPartition(partition_index=index, timestamp=timestamp, current_leader_epoch=epoch)
        for index, timestamp, epoch in asked
    ]
    request = ListOffsetsRequest(
        replica_id=replica_id, topics=[ListOffsetsTopic(name=topic, partitions=rows)]
    )
    response = simulation.run(broker.call(k02_list_offsets, request, version))
    return [
        (ErrorCode(row.error_code), row.timestamp, row.offset, row.leader_epoch)
        for row in response.topics[0].partitions
    ]


# KIP-79, KIP-405, KIP-734, KIP-1023
@pytest.mark.parametrize(
    ("timestamp", "answer"),
    [
        (-1, (-1, 3, 6)),
        (-2, (-1, 0, 6)),
        (-3, (300, 1, 6)),
        (-4, (-1, 0, 6)),
        (-5, (-1, -1, -1)),
        (-6, (-1, -1, -1)),
        (150, (300, 1, 6)),
        (301, (-1, -1, -1)),
    ],
)
def test_list_offsets(simulation, broker, timestamp, answer):
    broker.create(partitions={0: image(epoch=6)})
    for at in (100, 300, 200):
        append(broker, b"x", timestamp=at)
    assert list_offsets(simulation, broker, (0, timestamp, 6)) == [(ErrorCode.none, *answer)]


@pytest.mark.parametrize("timestamp", [NOW_MS, -3])
def test_a_search_is_cancelled_with_its_client(simulation, broker, monkeypatch, timestamp):
    broker.create()
    append(broker, b"x")
    searches = []

    def search(self, *asked, is_cancelled):
        searches.append(is_cancelled)

    monkeypatch.setattr(LogReader, "offset_for_timestamp", search)
    monkeypatch.setattr(LogReader, "max_timestamp_offset", search)
    rows = [ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=rows)])

    broker.runtime.pools[Pool.LOOK_UPS].blocking_s = lambda: 10  # before it, and after it

    async def main():
        task = broker.runtime.create_task(broker.call(k02_list_offsets, request, 11), name="a request")
        await asyncio.sleep(15)
        assert [is_cancelled() for is_cancelled in searches] == [False]
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert [is_cancelled() for is_cancelled in searches] == [True]

    simulation.run(main())


# KIP-1075
@pytest.mark.parametrize("timestamp", [NOW_MS + 700, -3])
@pytest.mark.parametrize(("version", "timeout_ms", "waits_s"), [(11, 3000, 3), (9, 0, 30)])
def test_a_search_that_takes_too_long_is_continued_by_the_next_one(
    simulation, broker, monkeypatch, timestamp, version, timeout_ms, waits_s
):
    """Each piece takes a second here; other partitions have their turns in between."""
    broker.create(partitions=2)
    leader = broker.replicas.partition(("t", 0)).as_leader()
    for number in range(40):
        sent = understated_batch(
            base_ms=NOW_MS, last_ms=NOW_MS + (1000 if number == 39 else 0), claimed_ms=NOW_MS + 60
        )
        leader.append_records(memoryview(sent), required_acks=-1, now_ms=NOW_MS)
    append(broker, b"x", index=1, timestamp=NOW_MS + 700)
    monkeypatch.setattr(log_reader, "PIECE_BYTES", 1)
    pool = broker.runtime.pools[Pool.LOOK_UPS]
    pool.blocking_s = lambda: 0.5  # before it, and after it
    broker.runtime.resize_pool(Pool.LOOK_UPS, 1)

    async def ask(*indexes):
        rows = [ListOffsetsPartition(partition_index=index, timestamp=timestamp) for index in indexes]
        request = ListOffsetsRequest(
            replica_id=-1,
            timeout_ms=timeout_ms,
            topics=[ListOffsetsTopic(name="t", partitions=rows)],
        )
        began = simulation.loop.time()
        response = await broker.call(k02_list_offsets, request, version)
        rows = response.topics[0].partitions
        return simulation.loop.time() - began, [(ErrorCode(row.error_code), row.offset) for row in rows]

    async def main():
        slow = broker.runtime.create_task(ask(0), name="a slow request")
        await asyncio.sleep(0.1)
        took_s, answers = await ask(1)
        assert answers == [(ErrorCode.none, 0)]
        assert took_s < 4
        took_s, answers = await slow
        assert answers == [(ErrorCode.request_timed_out, -1)]
        assert waits_s <= took_s < waits_s + 2
        tries = 1
        while (answers := (await ask(0))[1]) != [(ErrorCode.none, 40 * MANY - 2)]:
            assert answers == [(ErrorCode.request_timed_out, -1)]
            tries += 1
        assert tries in ((1,) if waits_s == 30 else range(10, 20)), "no piece is read twice"

    simulation.run(main())


# KIP-1005
@pytest.mark.parametrize(
    ("timestamp", "first_version"), [(-1, 1), (-2, 1), (-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 99)]
)
def test_special_timestamps_have_versions(simulation, broker, timestamp, first_version):
    broker.create()
    for version in k02_list_offsets.API.versions:
        (row,) = list_offsets(simulation, broker, (0, timestamp, -1), version=version)
        is_known = version >= first_version
        assert row[0] == (ErrorCode.none if is_known else ErrorCode.unsupported_version)


def test_list_offsets_errors_row_by_row(simulation, broker):
    broker.create(partitions={0: image(epoch=3), 1: image(leader=2, epoch=3, replicas=(1, 2)), 2: image()})
    asked = [(0, -1, 2), (1, -1, -1), (7, -1, -1), (2, -1, -1), (2, -2, -1)]
    codes = [row[0] for row in list_offsets(simulation, broker, *asked)]
    assert codes == [
        ErrorCode.fenced_leader_epoch,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_request,
        ErrorCode.invalid_request,
    ]
    (row,) = list_offsets(simulation, broker, (1, -1, -1), replica_id=DEBUGGING)
    assert row[0] == ErrorCode.none


# KIP-207
@pytest.mark.parametrize(
    ("version", "code"), [(4, ErrorCode.leader_not_available), (5, ErrorCode.offset_not_available)]
)
def test_offsets_that_are_not_known_yet(simulation, broker, version, code):
    broker.create(partitions={0: image(epoch=1, replicas=(1, 2))}, config={"min.insync.replicas": "2"})
    append(broker, b"a")
    broker.replicas.partition(("t", 0)).apply(image(epoch=2, replicas=(1, 2)))
    (row,) = list_offsets(simulation, broker, (0, -1, -1), version=version)
    assert row[0] == code


def delete_records(broker, offsets, *, topic="t"):
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name=topic,
                partitions=[
                    DeleteRecordsPartition(partition_index=index, offset=offset)
                    for index, offset in offsets.items()
                ],
            )
        ]
    )
    response = broker.call(k21_delete_records, request, 2)
    return {
        row.partition_index: (ErrorCode(row.error_code), row.low_watermark)
        for row in response.topics[0].partitions
    }


# KIP-107
def test_delete_records(broker, monkeypatch):
    monkeypatch.setattr(k21_delete_records, "_DELETIONS_OF_STEP", 5)  # all at once
    broker.create(partitions=4)
    for index in range(4):
        append(broker, b"a", b"b", b"c", index=index)
    assert delete_records(broker, {0: 2, 1: -1, 2: 4, 3: -2, 9: 0}) == {
        0: (ErrorCode.none, 2),
        1: (ErrorCode.none, 3),
        2: (ErrorCode.offset_out_of_range, -1),
        3: (ErrorCode.offset_out_of_range, -1),
        9: (ErrorCode.unknown_topic_or_partition, -1),
    }
    assert broker.replicas.partition(("t", 0)).log.log_start_offset == 2


@pytest.mark.parametrize(
    ("topic", "config", "code"),
    [
        ("t", {"cleanup.policy": "compact"}, ErrorCode.policy_violation),
        ("t", {"cleanup.policy": "compact,delete"}, ErrorCode.none),
        ("__consumer_offsets", {}, ErrorCode.invalid_topic_exception),
    ],
)
def test_where_records_cannot_be_deleted(broker, topic, config, code):
    broker.create(topic, config=config)
    assert delete_records(broker, {0: 0}, topic=topic)[0][0] == code


def test_offset_for_leader_epoch(broker):
    broker.create(partitions={0: image(epoch=1), 1: image(leader=2, replicas=(1, 2))})
    append(broker, b"a", b"b")
    broker.replicas.partition(("t", 0)).apply(image(epoch=4))
    append(broker, b"c")
    asked = [
        # partition, the leader epoch that the requester knows, the epoch asked for
        ((0, 4, 1), (ErrorCode.none, 1, 2)),
        ((0, -1, 3), (ErrorCode.none, 1, 2)),
        ((0, 4, 4), (ErrorCode.none, 4, 3)),
        ((0, 4, 5), (ErrorCode.none, -1, -1)),
        ((0, -1, -1), (ErrorCode.none, -1, -1)),
        ((0, 3, 1), (ErrorCode.fenced_leader_epoch, -1, -1)),
        ((0, 5, 1), (ErrorCode.unknown_leader_epoch, -1, -1)),
        ((1, -1, 0), (ErrorCode.not_leader_or_follower, -1, -1)),
        ((9, -1, 0), (ErrorCode.unknown_topic_or_partition, -1, -1)),
    ]
    request = OffsetForLeaderEpochRequest(
        topics=[
            OffsetForLeaderTopic(
                topic="t",
                partitions=[
                    OffsetForLeaderPartition(
                        partition=index, current_leader_epoch=current, leader_epoch=epoch
                    )
                    for (index, current, epoch), _ in asked
                ],
            )
        ]
    )
    response = broker.call(k23_offset_for_leader_epoch, request, 4)
    rows = [
        (ErrorCode(row.error_code), row.leader_epoch, row.end_offset) for row in response.topics[0].partitions
    ]
    assert rows == [answer for _, answer in asked]


@pytest.mark.parametrize(
    ("replica_id", "may_be_deposed", "error"),
    [
        (CONSUMER, True, ErrorCode.unknown_leader_epoch),
        (CONSUMER, False, ErrorCode.none),  # of a topic that was deleted and created again
        (DEBUGGING, True, ErrorCode.none),
        (2, True, ErrorCode.none),
    ],
)
def test_a_consumer_that_has_read_from_a_successor(broker, replica_id, may_be_deposed, error):
    """A leader that may have one sends it there; to a client, -1 is a log that was cut off."""
    broker.create(partitions={0: image(epoch=1, replicas=(1, 2))})
    broker.lifecycle.may_be_deposed = may_be_deposed
    asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=2)
    request = OffsetForLeaderEpochRequest(
        replica_id=replica_id, topics=[OffsetForLeaderTopic(topic="t", partitions=[asked])]
    )
    (row,) = broker.call(k23_offset_for_leader_epoch, request, 4).topics[0].partitions
    assert (row.error_code, row.leader_epoch, row.end_offset) == (error, -1, -1)


# KIP-113, KIP-827
@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (None, {("t", 0), ("t", 1), ("u", 0)}),
        ([("t", [1, 5]), ("unknown", [0])], {("t", 1)}),
        ([], set()),
    ],
)
def test_describe_log_dirs(broker, tmp_path, asked, found):
    broker.create(partitions=2)
    broker.create("u", topic_id=UUID(int=2))
    append(broker, b"a", index=1)
    topics = None
    if asked is not None:
        topics = [DescribableLogDirTopic(topic=topic, partitions=indexes) for topic, indexes in asked]
    (result,) = broker.call(k35_describe_log_dirs, DescribeLogDirsRequest(topics=topics), 5).results
    assert (result.error_code, result.log_dir) == (0, str(tmp_path / "data"))
    sizes = {
        (topic.name, row.partition_index): row.partition_size
        for topic in result.topics
        for row in topic.partitions
    }
    assert set(sizes) == found
    assert sizes.get(("t", 1), 1) > 0
    assert result.total_bytes > result.usable_bytes > 0


# -- InitProducerId --------------------------------------------------------------------------------------


@pytest.fixture
def with_ids(broker):
    async def allocate(request):
        return AllocateProducerIdsResponse(producer_id_start=4000, producer_id_len=1000)

    broker.producer_ids = ProducerIdManager(
        allocate, broker_id=1, broker_epoch=lambda: 0, runtime=broker.runtime
    )
    return broker


# KIP-360
def test_producer_ids_are_new_each_time(simulation, with_ids):
    async def main():
        first = await with_ids.call(k22_init_producer_id, InitProducerIdRequest(transactional_id=None), 5)
        request = InitProducerIdRequest(transactional_id=None, producer_id=4000, producer_epoch=0)
        return first, with_ids.call(k22_init_producer_id, request, 5)

    answers = [(row.error_code, row.producer_id, row.producer_epoch) for row in simulation.run(main())]
    assert answers == [(0, 4000, 0), (0, 4001, 0)]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transactional_id": ""}, ErrorCode.invalid_request),
        ({"transactional_id": "tx"}, ErrorCode.transactional_id_authorization_failed),
        ({"transactional_id": None, "producer_id": 5}, ErrorCode.invalid_request),
        ({"transactional_id": None, "producer_epoch": 5}, ErrorCode.invalid_request),
    ],
)
def test_refused_producer_ids(with_ids, fields, code):
    response = with_ids.call(k22_init_producer_id, InitProducerIdRequest(**fields), 5)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (code, -1, -1)
