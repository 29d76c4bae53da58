"""The shell on virtual time, over a log in memory: waiting for replicas, resigning, expiring."""

import asyncio
from uuid import UUID

import pytest

from ottla.broker.groups.cleanup import MAX_TOMBSTONES_A_BATCH
from ottla.broker.groups.coordinator_runtime import LOAD_WAIT_S
from ottla.broker.groups.shard import partition_for
from ottla.broker.groups.shard_runtime import METADATA_LAG_S
from ottla.protocol.errors import (
    ErrorCode,
    KafkaStorageError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
)
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from ottla.protocol.records.batch import HEADER_SIZE_BYTES, read_header
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.control import EndTransactionMarker, build_end_transaction_marker
from ottla.protocol.records.record import records
from ottla.protocol.types import ZERO_UUID
from ottla.storage.log_availability import DESCRIPTORS_RETRY_S, TooManyOpenFiles
from tests.unit.broker.groups.coordinator_support import (
    COUNT,
    PARTITION,
    E,
    MemoryLog,
    MemoryReplica,
    World,
    another_group,
    append,
    elect,
    here,
    resign,
    simulate,
)


def test_a_group_lives_and_its_session_ends():
    async def story(world):
        member_id = await world.member()
        assert member_id.startswith("c-")
        for _ in range(10):
            assert world.heartbeat(member_id) is E.none
            await asyncio.sleep(9)
        await asyncio.sleep(2)
        assert world.heartbeat(member_id) is E.unknown_member_id
        assert world.groups.describe("g", version=6).group_state == "Empty"
        (record,) = world.log.kept(PARTITION)
        assert (record.value.generation, record.value.members) == (2, [])

    simulate(story)


def test_everything_is_there_after_a_restart():
    log = MemoryLog()
    left = {}

    async def before(world):
        left["member"] = await world.member()
        assert await world.committed(7, member_id=left["member"], generation=1) is E.none
        left["described"] = world.groups.describe("g", version=6)
        assert left["described"].group_state == "Stable"

    async def after(world):
        assert world.groups.describe("g", version=6) == left["described"]
        assert world.heartbeat(left["member"]) is E.none
        assert await world.fetched() == [7]
        synced = await here(world.sync_request(left["member"]))
        assert synced.assignment == b"all"

    simulate(before, log)
    simulate(after, log)


@pytest.mark.parametrize("is_deposed", [False, True])
def test_offsets_of_very_many_topics_are_read_in_steps_and_only_by_the_coordinator(is_deposed):
    async def story(world):
        await world.committed(7)
        topics = [
            OffsetFetchRequestTopics(name=f"t{number}", partition_indexes=[0]) for number in range(2_000)
        ]
        topics.append(OffsetFetchRequestTopics(name="t", partition_indexes=[0]))
        asked = OffsetFetchRequestGroup(group_id="g", topics=topics)
        work = world.groups.fetch_offsets(asked, require_stable=True, complete=lambda response: iter(()))
        next(work)
        if is_deposed:
            resign(world.groups.shards, PARTITION, 1)
        response, steps = None, 0
        while response is None:
            try:
                next(work)
                steps += 1
            except StopIteration as done:
                response = done.value
        if is_deposed:
            assert (E(response.error_code), response.topics) == (E.not_coordinator, [])
        else:
            assert steps >= 3
            assert [row.partitions[0].committed_offset for row in response.topics] == [-1] * 2_000 + [7]

    simulate(story)


def test_while_a_partition_is_loaded_its_groups_answer_load_in_progress():
    async def story(world):
        await world.committed(7)
        resign(world.groups.shards, PARTITION, 1)
        assert await world.committed(7) is E.not_coordinator
        assert world.heartbeat("x") is E.not_coordinator
        elect(world.groups.shards, PARTITION, 2)
        assert await world.committed(8) is E.coordinator_load_in_progress
        assert world.heartbeat("x") is E.none, "as if it had been kept"
        assert (await world.join()).error_code == E.coordinator_load_in_progress
        listed = world.groups.list_groups()
        assert (E(listed.error_code), listed.groups) == (E.coordinator_load_in_progress, [])
        assert await world.fetched() is E.coordinator_load_in_progress
        await asyncio.sleep(0)
        assert await world.fetched() == [7]
        assert [row.group_id for row in world.groups.list_groups().groups] == ["g"]

    simulate(story)


@pytest.mark.parametrize(
    ("is_elected", "events", "codes"),
    [
        (False, ["elect"], (E.none, E.none, [7])),
        (True, [], (E.none, E.none, [7])),
        (True, ["resign"], (E.not_coordinator,) * 3),
        (False, [], (E.not_coordinator,) * 3),  # after a second
        (False, ["stop"], (E.coordinator_not_available,) * 3),
    ],
)
def test_the_broker_that_the_metadata_names_answers_when_it_has_loaded_the_partition(
    is_elected, events, codes
):
    async def story(world):
        await world.committed(7)
        resign(world.groups.shards, PARTITION, 1)
        world.named = {PARTITION}
        if is_elected:
            elect(world.groups.shards, PARTITION, 2)
        commit = asyncio.ensure_future(world.committed(7))
        join = asyncio.ensure_future(world.join())
        fetch = asyncio.ensure_future(world.fetched())
        lost = world.commit(99)
        lost.cancel()  # its connection is closed
        if not is_elected:
            await asyncio.sleep(0)
        for event in events:
            if event == "elect":
                elect(world.groups.shards, PARTITION, 2)
            elif event == "resign":
                resign(world.groups.shards, PARTITION, 2)
            else:
                world.groups.stop()
        assert not any(each.done() for each in (commit, join, fetch))
        runtime = world.groups._runtime
        began = runtime.monotonic()
        assert (await commit, E((await join).error_code), await fetch) == codes
        assert runtime.monotonic() - began <= LOAD_WAIT_S

    simulate(story)


@pytest.mark.parametrize("error", [KafkaStorageError(), ValueError("a record that makes no sense")])
@pytest.mark.logs("groups and offsets could not be loaded")
def test_loading_a_partition_that_cannot_be_read_ends(monkeypatch, error):
    async def story(world):
        await world.committed(7)
        resign(world.groups.shards, PARTITION, 1)

        def fails(*_, **__):
            raise error

        world.log.replicas.clear()
        monkeypatch.setattr(MemoryReplica, "read_for_replay", fails)
        elect(world.groups.shards, PARTITION, 2)
        await asyncio.sleep(0.001)
        assert await world.committed(8) is E.not_coordinator
        listed = world.groups.list_groups()
        assert (E(listed.error_code), listed.groups) == (E.none, [])

    simulate(story)


@pytest.mark.logs("cannot be loaded now")
def test_a_partition_for_which_no_descriptor_is_free_is_loaded_later(monkeypatch):
    """Otherwise its groups would have no coordinator until the next election."""

    async def story(world):
        await world.committed(7)
        resign(world.groups.shards, PARTITION, 1)

        def fails(*_, **__):
            raise TooManyOpenFiles("no descriptor")

        world.log.replicas.clear()
        with monkeypatch.context() as patch:
            patch.setattr(MemoryReplica, "read_for_replay", fails)
            elect(world.groups.shards, PARTITION, 2)
            await asyncio.sleep(2.5 * DESCRIPTORS_RETRY_S)
            assert await world.fetched() is E.coordinator_load_in_progress
        await asyncio.sleep(DESCRIPTORS_RETRY_S)
        assert await world.fetched() == [7]

    simulate(story)


def test_a_refused_join_names_the_member_except_where_the_shard_cannot_be_used():
    """Kafka does the same, and also checks the session timeout first."""

    async def story(world):
        async def refused(member_id="x", **fields):
            response = await world.join(member_id, **fields)
            return E(response.error_code), response.member_id

        stopped = World(world.groups._runtime, MemoryLog())
        assert E((await stopped.join("x")).error_code) is E.coordinator_not_available
        assert (await stopped.join("x")).member_id == "x"
        assert await refused() == (E.unknown_member_id, "x")
        resign(world.groups.shards, PARTITION, 1)
        assert await refused(session=1) == (E.invalid_session_timeout, "x")
        assert await refused() == (E.not_coordinator, "")
        elect(world.groups.shards, PARTITION, 2)
        assert await refused() == (E.coordinator_load_in_progress, "")

    simulate(story)


def test_before_the_start_and_without_a_group_id():
    async def story(world):
        stopped = World(world.groups._runtime, MemoryLog())
        assert (await stopped.join()).error_code == E.coordinator_not_available
        assert await stopped.fetched() is E.coordinator_not_available
        assert E(stopped.groups.list_groups().error_code) is E.coordinator_not_available
        request = JoinGroupRequest(session_timeout_ms=10_000)
        answer = world.groups.join(request, version=9, client_id="c", client_host="/h")
        assert answer.error_code == E.invalid_group_id
        assert await world.committed(1, group="") is E.none, "offsets may belong to the group without a name"
        assert await world.fetched("") == [1]
        assert E((await world.join(session=1)).error_code) is E.invalid_session_timeout
        assert E((await world.join("x")).error_code) is E.unknown_member_id
        left = world.groups.leave(LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="x")]))
        assert [E(row.error_code) for row in left.members] == [E.unknown_member_id]

    simulate(story)


def test_no_offset_is_returned_before_it_is_committed():
    async def story(world):
        await world.committed(1)
        world.log.is_held = True
        commit, fetch = world.commit(2), world.fetch()
        await asyncio.sleep(1)
        assert not commit.done()
        assert not fetch.done(), "it would show an offset that could go back"
        assert await world.fetched("another group") == []
        world.log.settle()
        assert (await commit).topics[0].partitions[0].error_code == E.none
        assert (await fetch).topics[0].partitions[0].committed_offset == 2

    simulate(story)


@pytest.mark.parametrize(
    ("error", "commit", "fetch"),
    [
        (RequestTimedOut(), E.coordinator_not_available, E.not_coordinator),
        (NotLeaderOrFollower(), E.not_coordinator, E.not_coordinator),
    ],
)
def test_replicas_that_do_not_follow(error, commit, fetch):
    async def story(world):
        world.log.is_held = True
        committing, fetching = world.commit(2), world.fetch()
        world.log.settle(error)
        assert (await committing).topics[0].partitions[0].error_code == commit
        assert (await fetching).error_code == fetch

    simulate(story)


def test_what_the_replicas_did_not_have_before_is_not_returned_after_either():
    """The previous leader has appended it, and its client has no answer yet, or a timeout."""

    async def story(world):
        await world.committed(1)
        world.log.is_held = True
        commit = world.commit(2)
        world.log.settle(RequestTimedOut())
        assert (await commit).topics[0].partitions[0].error_code == E.coordinator_not_available
        assert not world.fetch().done()
        resign(world.groups.shards, PARTITION, 1)
        elect(world.groups.shards, PARTITION, 2)
        await asyncio.sleep(0)
        refused, fetch = world.fetch(), world.fetch()
        world.log.settle(RequestTimedOut())
        assert (await refused).error_code == (await fetch).error_code == E.not_coordinator
        another = next(name for name in map(str, range(99)) if partition_for(name, COUNT) == PARTITION)
        fetches = [world.fetch(), world.fetch(another)]
        await asyncio.sleep(1)
        assert not any(fetch.done() for fetch in fetches)
        world.log.settle()
        first, second = await asyncio.gather(*fetches)
        assert (first.topics[0].partitions[0].committed_offset, second.topics) == (2, [])
        assert await world.fetched() == [2], "at once"

    simulate(story)


def test_committed_offsets_are_returned_also_where_the_isr_is_too_small():
    async def story(world):
        await world.committed(1)
        resign(world.groups.shards, PARTITION, 1)
        elect(world.groups.shards, PARTITION, 2)
        await asyncio.sleep(0)
        world.log.refuse_commitment = NotEnoughReplicasAfterAppend()
        assert await world.fetched() == [1]

    simulate(story)


@pytest.mark.logs("the record of group")
def test_what_the_log_refuses_has_not_happened():
    async def story(world):
        world.log.refuse = NotEnoughReplicas()
        assert await world.committed(1) is E.coordinator_not_available
        assert await world.fetched() == []
        assert E((await world.join()).error_code) is E.coordinator_not_available
        assert (await world.join(version=4)).error_code == E.member_id_required
        assert world.groups.list_groups().groups == []
        world.log.refuse = None
        assert await world.committed(1) is E.none
        member_id = (await world.join()).member_id
        world.log.refuse = NotEnoughReplicas()
        synced = await here(world.sync_request(member_id, {member_id: b"all"}))
        assert E(synced.error_code) is E.coordinator_not_available
        assert world.heartbeat(member_id) is E.rebalance_in_progress

    simulate(story)


def test_a_log_that_refuses_is_complained_of_once(caplog):
    """Members try again at once: without this, an ISR that is too small for seconds would fill the disk."""

    async def story(world):
        member_id = await world.member()

        async def assign() -> ErrorCode:
            joined = await world.join(member_id)
            assert joined.error_code == E.none
            assignments = {member_id: b"all"}
            synced = await here(world.sync_request(member_id, assignments, generation=joined.generation_id))
            return E(synced.error_code)

        for _ in range(2):
            world.log.refuse = NotEnoughReplicas()
            assert [await assign() for _ in range(9)] == [E.coordinator_not_available] * 9
            world.log.refuse = None
            assert await assign() is E.none

    simulate(story)
    complaints = [record for record in caplog.records if "is not written" in record.getMessage()]
    assert len(complaints) == 2


@pytest.mark.parametrize("error", [None, NotLeaderOrFollower()])
def test_a_coordinator_that_resigns_answers_not_coordinator(error, caplog):
    async def story(world):
        member_id = await world.member()
        waiting = asyncio.ensure_future(world.join())
        await asyncio.sleep(0)
        world.log.is_held = True
        commit = world.commit(1, member_id=member_id, generation=1)
        resign(world.groups.shards, PARTITION, 1)
        assert E((await waiting).error_code) is E.not_coordinator
        world.log.settle(error)
        assert (await commit).topics[0].partitions[0].error_code == E.not_coordinator

    simulate(story)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_a_client_that_went_away_while_it_waited_is_no_harm():
    async def story(world):
        member_id = await world.member()
        request = asyncio.ensure_future(world.join())
        await asyncio.sleep(0)
        request.cancel()
        await asyncio.sleep(0)
        joined = await world.join(member_id)
        assert len(joined.members) == 2

    simulate(story)


def test_groups_are_deleted():
    async def story(world):
        member_id = await world.member()
        assert E((await here(world.groups.delete("g"))).error_code) is E.non_empty_group
        await world.committed(7, member_id=member_id, generation=1)
        world.groups.leave(LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member_id)]))
        assert E((await here(world.groups.delete("g"))).error_code) is E.none
        assert E((await here(world.groups.delete("g"))).error_code) is E.group_id_not_found
        assert await world.fetched() == []
        assert world.log.kept(PARTITION) == []

    simulate(story)


def test_what_expires_is_taken_out_of_the_log():
    async def story(world):
        await world.committed(7)
        await asyncio.sleep(7 * 24 * 3600 - 1)
        assert await world.fetched() == [7]
        await asyncio.sleep(601)
        assert await world.fetched() == []
        assert world.log.kept(PARTITION) == []

    simulate(story)


@pytest.mark.parametrize("max_batch_bytes", [2**20, 450, 330])
def test_tombstones_that_are_too_many_for_a_batch_go_in_several(max_batch_bytes, caplog):
    """A batch of them is bounded by its bytes, too; one that no batch can hold does not keep the others."""
    groups = [f"{number}" + "x" * (300 if number == 5 else 100) for number in range(20)]
    groups = [group for group in groups if partition_for(group, COUNT) == partition_for(groups[5], COUNT)]

    async def story(world):
        for group in groups:
            assert await world.committed(7, group=group) is E.none
        world.log.max_batch_bytes = max_batch_bytes
        world.groups.on_topics_deleted([(UUID(int=1), "t")])
        await asyncio.sleep(0.001)
        left = [group for group in groups if await world.fetched(group)]
        assert left == [group for group in groups if max_batch_bytes == 330 and len(group) > 300]

    simulate(story)
    assert sum("not written" in record.getMessage() for record in caplog.records) == (max_batch_bytes == 330)


def test_no_batch_of_tombstones_is_longer_than_a_step_of_the_loop():
    """Earlier groups may leave any rest of a step: 70 offsets of each one are no multiple of the bound."""

    async def story(world):
        for group in groups:
            for number in range(70):
                assert await world.committed(7, group=group, topic=f"t-{number}") is E.none
        written = len(world.log.batches[PARTITION])
        world.groups.on_topics_deleted([(UUID(int=1), f"t-{number}") for number in range(70)])
        await asyncio.sleep(0.001)
        sizes = [read_header(batch).records_count for batch in world.log.batches[PARTITION][written:]]
        assert sum(sizes) == 70 * len(groups)
        assert max(sizes) == MAX_TOMBSTONES_A_BATCH

    groups = [name for name in map(str, range(30)) if partition_for(name, COUNT) == PARTITION]
    assert len(groups) > 3
    simulate(story)


def test_a_name_that_fills_a_string_leaves_room_in_the_member_id():
    async def story(world):
        name = "x" * 32_767
        for fields in ({"client": name}, {"instance": name, "client": name}):
            joining = asyncio.ensure_future(world.join(**fields))
            while not joining.done():
                await asyncio.sleep(1)
                for member in world.groups.describe("g", version=6).members:
                    await world.join(member.member_id)
            joined = await joining
            assert (E(joined.error_code), len(joined.member_id)) == (E.none, 255 + 1 + 36)

    simulate(story)


def test_what_no_record_can_say_is_refused():
    async def story(world):
        assert await world.committed(7, topic="t" * 40_000) is E.unknown_server_error
        assert await world.fetched() == []
        assert world.log.kept(PARTITION) == []

    simulate(story)


def test_offsets_of_a_deleted_topic_go():
    async def story(world):
        await world.committed(7)
        world.groups.on_topics_deleted([(UUID(int=2), "t")])
        await asyncio.sleep(0.001)
        assert await world.fetched() == [7]
        world.groups.on_topics_deleted([(UUID(int=1), "t")])
        await asyncio.sleep(0.001)
        assert await world.fetched() == []

    simulate(story)


@pytest.mark.parametrize("has_new_log", [True, False])
def test_offsets_of_a_topic_that_was_deleted_without_a_coordinator_are_not_those_of_its_namesake(has_new_log):
    """The broker loads the partition after the deletion, or continues an earlier replay: no deletion is
    reported to it.
    """
    by_name = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]

    async def story(world):
        await world.committed(7)
        await world.committed(8, group=another_group())
        resign(world.groups.shards, PARTITION, 1)
        if has_new_log:
            world.log.replicas.clear()
        world.topics.replace("t", UUID(int=2))
        elect(world.groups.shards, PARTITION, 2)
        await asyncio.sleep(0.001)
        assert await world.fetched(topics=by_name) == [-1]
        assert await world.fetched() == [-1]
        # The topic may be younger than this broker's metadata: nothing is deleted yet.
        await world.groups.shards.expire_all()
        assert len(world.log.kept(PARTITION)) == 2
        await asyncio.sleep(METADATA_LAG_S)
        # A commit for the new topic is not deleted with the old one.
        assert await world.committed(3, topic_id=UUID(int=2)) is E.none
        await world.groups.shards.expire_all()
        assert await world.fetched(topics=by_name) == [3]
        assert [record.value.offset for record in world.log.kept(PARTITION)] == [3]

    simulate(story)


def test_offsets_without_a_topic_id_are_kept():
    """Brokers before 4.3 write none."""

    async def story(world):
        await world.committed(7, topic_id=ZERO_UUID)
        world.topics.replace("t", UUID(int=2))
        await asyncio.sleep(METADATA_LAG_S)
        await world.groups.shards.expire_all()
        assert await world.fetched() == [7]

    simulate(story)


def test_an_open_transaction_keeps_its_offset_for_the_namesake_of_a_lost_topic():
    log, other = MemoryLog(), MemoryLog()

    async def commit_to_the_lost_topic(world):
        await world.committed(7)

    async def commit_to_its_namesake(world):
        await world.committed(9, topic_id=UUID(int=2))

    async def clean_up(world):
        world.topics.replace("t", UUID(int=2))
        await asyncio.sleep(METADATA_LAG_S)
        await world.groups.shards.expire_all()

    async def committed(world):
        world.topics.replace("t", UUID(int=2))
        assert await world.fetched() == [9]

    simulate(commit_to_the_lost_topic, log)
    simulate(commit_to_its_namesake, other)
    pairs = [(record.key, record.value) for record in records(other.batches[PARTITION][0])]
    written = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    append(log, build_batch(simple_records(pairs, timestamp=0), **written))
    simulate(clean_up, log)
    marker = EndTransactionMarker(is_commit=True, coordinator_epoch=0, timestamp=0)
    append(log, build_end_transaction_marker(marker, producer_id=9, producer_epoch=0))
    simulate(committed, log)


def test_many_offsets_of_a_lost_topic_are_deleted_in_bounded_batches():
    async def story(world):
        for number in range(250):
            await world.committed(number, topic=f"t-{number}")
        written = len(world.log.batches[PARTITION])
        world.topics.ids.clear()
        await asyncio.sleep(METADATA_LAG_S)
        await world.groups.shards.expire_all()
        sizes = [read_header(batch).records_count for batch in world.log.batches[PARTITION][written:]]
        # The group is empty and has no offsets afterwards: its tombstone follows.
        assert sizes == [100, 100, 50, 1]
        assert world.log.kept(PARTITION) == []

    simulate(story)


# KIP-848, KIP-1071
@pytest.mark.logs("the batch at offset", "the record at offset")
def test_what_others_left_in_the_log_is_read():
    """Transactions, kinds of record that we do not know, and records that make no sense."""
    log, transactional = MemoryLog(), MemoryLog()

    async def commit(world):
        await world.committed(7)

    simulate(commit, transactional)
    (plain,) = transactional.batches[PARTITION]
    pairs = [(record.key, record.value) for record in records(plain)]
    written = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    append(log, build_batch(simple_records(pairs, timestamp=0), **written))
    strange = [(b"\0\x03\0\1g", b"\0\0"), (None, b""), (b"\0", None), (pairs[0][0], b"\0\x63")]
    append(log, build_batch(simple_records(strange, timestamp=0)))
    append(log, plain[:HEADER_SIZE_BYTES] + bytes(len(plain) - HEADER_SIZE_BYTES))

    async def pending(world):
        response = await here(world.fetch())
        assert response.topics == [], "the transaction is open"

    simulate(pending, log)
    marker = EndTransactionMarker(is_commit=True, coordinator_epoch=0, timestamp=0)
    append(log, build_end_transaction_marker(marker, producer_id=9, producer_epoch=0))

    async def committed(world):
        assert await world.fetched() == [7]

    simulate(committed, log)
