"""Large responses of Fetch are appended in turns: other tasks run in between, and may change what is followed."""

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.replicas.follower_replica import FollowerReplica
from ottla.broker.replicas.following import append_turns
from ottla.broker.replicas.following.append_turns import (
    BATCH_COST,
    PART_COST,
    ROW_COST,
    SMALL_BYTES,
    TURN_COST,
    parts_of,
)
from ottla.protocol.records.batch import batches
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.record import records
from ottla.protocol.types import TopicPartition
from ottla.replication.follower import Records
from ottla.stories.partition.replicas import ReplicaCluster
from tests.harness.waiting import until

AT = TopicPartition("orders", 0)


def batch_of(size, base_offset):
    records = simple_records([(None, b"v" * size)] * 2, timestamp=1, base_offset=base_offset)
    return build_batch(records, base_offset=base_offset)


def records_of(sizes):
    """Batches of two records; after each, one offset is missing, as after a compaction."""
    return b"".join(batch_of(size, 3 * number) for number, size in enumerate(sizes))


# -- the parts of a row --------------------------------------------------------------------------------------


SMALL = {"PART_COST": 2000, "BATCH_COST": 100, "ROW_COST": 50, "SMALL_BYTES": 400}


@given(
    sizes=st.lists(st.sampled_from([0, 10, 100, 400, 1500]), max_size=20),
    tail=st.sampled_from([b"", batch_of(500, 999)[:-1], b"\0" * 100, b"\xff" * 100]),
)
def test_parts_are_whole_batches_within_the_bound(sizes, tail):
    row = Records(records=memoryview(records_of(sizes) + tail), high_watermark=8, log_start_offset=7)
    with patch.multiple(append_turns, **SMALL):
        parts = list(parts_of(row))
    assert b"".join(bytes(part.answer.records) for part in parts) == bytes(row.records)
    assert all((part.answer.log_start_offset, part.answer.high_watermark) == (7, 8) for part in parts)
    assert parts[-1].end_offset is None
    if len(parts) == 1:
        assert parts[0].answer is row
    for part, following in pairwise(parts):
        found = list(batches(part.answer.records))
        assert part.end_offset == found[-1][0].next_offset
        assert part.cost == 50 + sum(100 + len(batch) for _, batch in found)
        assert part.cost <= 2000 or len(found) == 1
        _, first = next(batches(following.answer.records))
        assert part.cost + 100 + len(first) > 2000  # no more would have fitted


@pytest.mark.parametrize("records", [b"", b"\0" * 10, b"x" * SMALL_BYTES, records_of([100] * 10)])
def test_small_rows_are_one_part(records):
    row = Records(records=memoryview(records), high_watermark=8, log_start_offset=7)
    (part,) = parts_of(row)
    assert part.answer is row
    assert part.cost == ROW_COST + len(records)


def test_a_turn_has_at_most_a_few_hundred_batches():
    """A batch takes about 4 us, a MiB 0.4 ms."""
    assert (TURN_COST + PART_COST) / BATCH_COST < 500
    records = memoryview(records_of([10] * 5000))
    parts = list(parts_of(Records(records=records, high_watermark=8, log_start_offset=7)))
    assert max(sum(1 for _ in batches(part.answer.records)) for part in parts) <= PART_COST / BATCH_COST


# -- in a fetcher ----------------------------------------------------------------------------------------------


class Appended(list):
    """The number of batches of each append of a follower."""

    def __init__(self):
        self.turns = []
        """How many appends there had been, each time other tasks ran after one."""


@pytest.fixture
def appended(simulation, monkeypatch):
    """All appends, if a part is one batch."""
    for name in ("PART_COST", "TURN_COST", "SMALL_BYTES"):
        monkeypatch.setattr(append_turns, name, 0)
    counts = Appended()
    append = FollowerReplica.append

    def recorded(self, records, **options):
        append(self, records, **options)
        if len(records):
            counts.append(sum(1 for _ in batches(records)))
            simulation.loop.call_soon(lambda: counts.turns.append(len(counts)))

    monkeypatch.setattr(FollowerReplica, "append", recorded)
    return counts


def write(broker, value):
    batch = build_batch(simple_records([(None, value)], timestamp=1))
    broker.partition(AT).as_leader().append_records(bytearray(batch), required_acks=1, now_ms=1)


def end(broker):
    return broker.partition(AT).log.log_end_offset


@asynccontextmanager
async def behind(simulation):
    """Broker 1 leads with ten batches, which broker 2 has not fetched yet."""
    cluster = ReplicaCluster(simulation, [1, 2])
    leader, follower = cluster.brokers.values()
    cluster.create("orders", {0: [1, 2]})
    follower.replays = False
    cluster.elect(AT, 1)
    for number in range(10):
        write(leader, b"value %d" % number)
    for broker in cluster.brokers.values():
        await broker.listen()
    yield cluster
    for broker in cluster.brokers.values():
        await broker.stop()


def follow(follower):
    follower.replays = True
    follower.replay()


def test_a_row_is_appended_in_turns_between_which_others_run(simulation, appended):
    async def story():
        async with behind(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            sizes = []
            leader.tamper = lambda response: sizes.append(len(response)) or response
            follow(follower)
            await until(lambda: end(follower) == 10)
            assert appended == [1] * 10
            assert appended.turns == list(range(1, 11))
            assert sum(size > 700 for size in sizes) == 1
            await until(lambda: follower.partition(AT).log.high_watermark == 10)

    simulation.run(story())


def test_the_rest_of_a_row_is_ignored_when_it_is_not_followed_any_more(simulation, appended, monkeypatch):
    """Between two parts the broker becomes the leader, and writes a record of its own."""

    async def story():
        async with behind(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            append = FollowerReplica.append

            def elected_after_three(self, records, **options):
                append(self, records, **options)
                if len(appended) == 3:
                    simulation.loop.call_soon(cluster.elect, AT, 2)

            monkeypatch.setattr(FollowerReplica, "append", elected_after_three)
            follow(follower)
            await until(lambda: follower.partition(AT).is_leader)
            monkeypatch.setattr(FollowerReplica, "append", append)
            assert appended == [1] * 3
            assert end(follower) == 3
            write(follower, b"own")
            await until(lambda: end(leader) == 4)

    simulation.run(story())


def test_the_rest_of_a_row_is_fetched_again_after_an_error(simulation, appended, caplog):
    """A batch in the middle is damaged in transit: those before it are kept."""

    async def story():
        async with behind(simulation) as cluster:
            leader, follower = cluster.brokers.values()

            def damaged(response):
                damaged = response.replace(b"value 4", b"value x")
                if damaged != response:
                    leader.tamper = None
                return damaged

            leader.tamper = damaged
            follow(follower)
            await until(lambda: appended)
            await asyncio.sleep(0.5)
            assert end(follower) == 4
            await until(lambda: end(follower) == 10)
            assert "cannot be appended" in caplog.text
            assert appended == [1] * 10

    simulation.run(story())


def test_a_part_that_is_appended_in_part_only_ends_the_row(simulation, appended, monkeypatch):
    """A batch of a newer epoch than the leader's is dropped (KAFKA-18723); so is what follows it."""

    async def story():
        async with behind(simulation) as cluster:
            leader, follower = cluster.brokers.values()

            def newer(response):
                at_value = response.find(b"value 4")
                if at_value < 0:
                    return response
                leader.tamper = None
                response = bytearray(response)
                header_at = response.rfind((4).to_bytes(8), 0, at_value)
                response[header_at + 12 : header_at + 16] = (9).to_bytes(4)
                return bytes(response)

            leader.tamper = newer
            follow(follower)
            await until(lambda: end(follower) == 10)
            values = [
                record.value
                for _, data in follower.partition(AT).log.reader.records_since(0)
                for record in records(data)
            ]
            assert values == [b"value %d" % number for number in range(10)]

    simulation.run(story())
