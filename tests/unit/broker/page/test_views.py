"""Views of a node on virtual time, compared with what was written, read and committed; and what odd records do."""

import json

import pytest

from ottla.broker.cluster_client.groups import DEAD
from ottla.broker.page.records import shown
from ottla.broker.page.sources import Sources
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsResponse
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchResponse
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.compression import Compression


async def commit(world, group, topic, *offsets):
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        for index, offset in enumerate(offsets)
    ]
    topics = [OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    request = OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=topics)
    found = await world.coordinator_request(group, ApiKey.OFFSET_COMMIT, 8, request)
    assert [row.error_code for row in found.topics[0].partitions] == [0] * len(offsets)


def test_groups_and_their_lag(world):
    async def scenario():
        await world.create("orders", partitions=2)
        await world.produce("orders", *[b"x"] * 10)
        await commit(world, "kitchen", "orders", 4, 0)
        await commit(world, "bar", "orders", 10)
        found = await world.view("groups")
        assert [(each["group"], each["state"], each["lag"]) for each in found["groups"]] == [
            ("bar", "Empty", 0), ("kitchen", "Empty", 6),
        ]  # fmt: skip
        assert [each["group"] for each in (await world.view("groups?search=KIT"))["groups"]] == ["kitchen"]
        found = await world.view("group?group=kitchen")
        assert [(each["committed"], each["end"], each["lag"]) for each in found["partitions"]] == [
            (4, 10, 6),
            (0, 0, 0),
        ]
        assert found["lags"][-1] == 6
        found = await world.view("group?group=unknown", status=404)
        assert found["error"] == "The cluster has no group 'unknown'."

    world.run(scenario)


@pytest.mark.parametrize(("where", "error", "committed", "sentence"), [
    ("group", ErrorCode.not_coordinator, [],
     "The group 'kitchen' is not described: NOT_COORDINATOR."),
    ("group", ErrorCode.coordinator_load_in_progress, [],
     "The group 'kitchen' is not described: COORDINATOR_LOAD_IN_PROGRESS."),
    ("offsets", ErrorCode.not_coordinator, [],
     "The committed offsets of the group 'kitchen' are not known: NOT_COORDINATOR."),
    ("row", ErrorCode.unstable_offset_commit, [(4, True), (None, False)],
     "The committed offsets of the group 'kitchen' are not known for 1 of 2 partitions: UNSTABLE_OFFSET_COMMIT."),
])  # fmt: skip
def test_errors_of_a_coordinator_are_no_lag_of_zero(world, monkeypatch, where, error, committed, sentence):
    ask = Sources.ask

    async def asked(sources, broker_id, message, expected, **options):
        response = await ask(sources, broker_id, message, expected, **options)
        if where == "group" and expected is DescribeGroupsResponse:
            response.groups = [DescribedGroup(group_id="kitchen", group_state=DEAD, error_code=error)]
        elif where != "group" and expected is OffsetFetchResponse:
            [found] = response.groups
            if where == "row":
                found.topics[0].partitions[1].error_code = error
            else:
                found.error_code, found.topics = error, []
        return response

    async def scenario():
        await world.create("orders", partitions=2)
        await world.produce("orders", *[b"x"] * 10)
        await commit(world, "kitchen", "orders", 4, 0)
        monkeypatch.setattr(Sources, "ask", asked)
        for found in (await world.view("groups"), await world.view("group?group=kitchen")):
            [row] = found.get("groups", [found])
            assert (row["state"], row["lag"], found["problems"]) == ("Empty", None, [sentence])
            assert set(row["lags"]) == {None}
        assert [(each["committed"], each["is_committed_known"]) for each in found["partitions"]] == committed

    world.run(scenario)


def test_records_by_offset_time_and_key(world):
    async def scenario():
        await world.create("orders")
        for number in range(60):
            await world.produce("orders", (b"%d" % (number % 7), b'{"n":%d}' % number))
        at_ms = world.runtime.now_ms()
        await world.pass_time(10)
        await world.produce("orders", (b"last", None))

        async def offsets(parameters):
            found = await world.view(f"records?topic=orders&partition=0&{parameters}")
            return [each["offset"] for each in found["records"]], found["next_offset"]

        assert await offsets("offset=3&count=2") == ([3, 4], 5)
        assert await offsets("") == ([*range(36, 61)], None)
        assert await offsets(f"timestamp={at_ms + 1000}") == ([60], None)
        assert await offsets(f"timestamp={at_ms + 99_999_999}") == ([], None)
        assert await offsets("offset=0&key=3") == ([*range(3, 60, 7)], None)
        assert await offsets("offset=0&key=3&count=2") == ([3, 10], 11)
        assert await offsets("offset=61") == ([], None)
        [row] = (await world.view("records?topic=orders&partition=0&offset=60"))["records"]
        assert (row["key"], row["value"], row["tier"]) == ({"bytes": 4, "text": "last"}, None, "local")

    world.run(scenario)


def test_large_and_odd_records_are_cut_and_said(world):
    async def scenario():
        await world.create("odd")
        await world.produce("odd", (b"k" * 1_000_000, "é".encode() * 10_000), (b"\xff\x00", b"\x1b[31m<b>"))
        batch = build_batch(
            simple_records([(None, bytes(20_000_000))], timestamp=1), compression=Compression.ZSTD
        )
        await world.append("odd", batch)
        await world.produce("odd", b"after it")
        found = await world.get("/view/records?topic=odd&partition=0&offset=0")
        assert len(found.body) < 60_000
        assert b"\x1b" not in found.body
        first, second, bomb, last = json.loads(found.body)["records"]
        assert first["key"] == {"bytes": 1_000_000, "text": "k" * 512}
        assert first["value"] == {"bytes": 20_000, "text": "é" * (16 * 1024 // 2)}
        assert (second["key"], second["value"]["text"]) == ({"bytes": 2, "hex": "ff00"}, "\x1b[31m<b>")
        assert bomb["offset"] == 2
        assert "unreadable" in bomb
        assert last["value"]["text"] == "after it"
        pages = [
            await world.view(f"records?topic=odd&partition=0&offset={each}&count=1") for each in (1, 2, 3)
        ]
        assert [[row["offset"] for row in each["records"]] for each in pages] == [[1], [2], [3]]
        assert [each["next_offset"] for each in pages] == [2, 3, None]

    world.run(scenario)


@pytest.mark.parametrize(("magic", "sentence"), [
    (1, "Record batches of magic 1 are not supported"), (77, "Not a record batch: magic 77"),
])  # fmt: skip
def test_bytes_that_are_no_batch_are_said(world, monkeypatch, magic, sentence):
    ask = Sources.ask

    async def asked(sources, broker_id, message, expected, **options):
        response = await ask(sources, broker_id, message, expected, **options)
        if expected is FetchResponse:
            [row] = response.responses[0].partitions
            second = bytearray(row.records)
            second[16] = magic
            row.records = bytes(row.records) + second
        return response

    async def scenario():
        await world.create("odd")
        await world.produce("odd", b"x")
        monkeypatch.setattr(Sources, "ask", asked)
        found = await world.view("records?topic=odd&partition=0&offset=0")
        assert [each["offset"] for each in found["records"]] == [0]
        assert sentence in found["problem"]

    world.run(scenario)


@pytest.mark.parametrize(("data", "most", "expected"), [
    (None,              9, None),
    (b"",               9, {"bytes": 0, "text": ""}),
    ("aé".encode(),     2, {"bytes": 3, "text": "a"}),
    ("aé".encode()[:2], 9, {"bytes": 2, "hex": "61c3"}),
    (b"a\xffb",         1, {"bytes": 3, "text": "a"}),
])  # fmt: skip
def test_bytes_are_text_or_digits(data, most, expected):
    assert shown(data, most) == expected


def test_a_partition_in_both_tiers(world, tmp_path):
    async def scenario():
        await world.create("tiered", **{"remote.storage.enable": "true", "segment.bytes": "1048576"})
        for _ in range(30):
            await world.produce("tiered", bytes(100_000))
        await world.pass_time(120)
        found = await world.view("partition?topic=tiered&partition=0")
        copies, segments = found["tier"]["copies"], found["log"]["segments"]
        assert [each["state"] for each in copies] == ["COPY_SEGMENT_FINISHED"] * 2
        assert [each["end_offset"] for each in copies] == [10, 20]
        assert found["replicas"][0]["tier_end_offset"] == 20
        assert (tmp_path / "tier" / "kafka-tiered-storage" / copies[0]["object"]).exists()
        assert [each["base_offset"] for each in segments] == [0, 10, 20]
        assert found["log"]["epochs"] == [[0, 0]]

    world.run(scenario, tier=f"{tmp_path}/tier")
