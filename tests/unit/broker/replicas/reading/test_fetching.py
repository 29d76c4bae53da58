"""The time and size of a Fetch response: limits, waiting, errors, sessions."""

import asyncio
import errno

import pytest
from fetching_support import KEY, OTHER_KEY, SIZE, Hosting, sizes, values
from replicas_support import NODE_ID, follower_fetches, image

from ottla.protocol.errors import ErrorCode, KafkaStorageError
from ottla.protocol.records.batch import batches
from ottla.storage.log import WouldBlock
from ottla.stories.partition.replicas import turns


@pytest.fixture
def hosting(simulation):
    return Hosting(simulation.runtime("broker"))


@pytest.mark.parametrize(
    ("max_bytes", "partition_max_bytes", "sent"),
    [
        (10 * SIZE, 10 * SIZE, (3, 3)),
        (10 * SIZE, SIZE,      (1, 1)),
        (4 * SIZE,  10 * SIZE, (3, 1)),
        (3 * SIZE,  10 * SIZE, (3, 0)),
        (1,         10 * SIZE, (1, 0)),    # KIP-74: one batch, larger than all limits, of the first partition
        (10 * SIZE, 1,         (1, 0)),    # the second partition's first batch does not fit any more
        (0,         0,         (1, 0)),
    ],
)  # fmt: skip
def test_limits(hosting, tmp_path, max_bytes, partition_max_bytes, sent):
    for key in (KEY, OTHER_KEY):
        on_disk = hosting.add(tmp_path / key[0], key)
        for _ in range(3):
            on_disk.append(b"x" * 1000)
    answer = hosting.fetch(
        {KEY: 0, OTHER_KEY: 0}, max_bytes=max_bytes, partition_max_bytes=partition_max_bytes, max_wait_ms=0
    )
    whole = {
        key: sum(len(part) for _, part in batches(memoryview(row.records))) for key, row in answer.items()
    }
    assert whole == {KEY: sent[0] * SIZE, OTHER_KEY: sent[1] * SIZE}


def test_the_first_partition_with_records_gets_its_batch(hosting, tmp_path):
    hosting.add(tmp_path / "t")
    hosting.add(tmp_path / "u", OTHER_KEY).append(b"x" * 1000)
    assert sizes(hosting.fetch({KEY: 0, OTHER_KEY: 0}, max_bytes=1)) == {KEY: 0, OTHER_KEY: SIZE}


def test_an_offset_inside_a_batch_gets_the_whole_batch(hosting, tmp_path):
    hosting.add(tmp_path).append(b"a", b"b", b"c")
    assert values(hosting.fetch({KEY: 1})[KEY]) == [b"a", b"b", b"c"]


def test_a_fetch_waits_for_records_and_sees_the_whole_turn(simulation, hosting, tmp_path):
    on_disk = hosting.add(tmp_path)

    async def main():
        waiting = hosting.fetch({KEY: 0})
        assert not waiting.is_done
        on_disk.append(b"a")
        on_disk.append(b"b")
        assert not waiting.is_done  # the Produce is answered first
        return await waiting, simulation.loop.time()

    answer, at = simulation.run(main())
    assert values(answer[KEY]) == [b"a", b"b"]
    assert at < 0.1
    assert hosting.purgatory.delayed_count == 0


def test_time_over(simulation, hosting, tmp_path):
    hosting.add(tmp_path)

    async def main():
        began = simulation.loop.time()
        answer = await hosting.fetch({KEY: 0}, max_wait_ms=500)
        return answer, simulation.loop.time() - began

    answer, took = simulation.run(main())
    assert took == pytest.approx(0.5)
    assert sizes(answer) == {KEY: 0}


def test_min_bytes_add_up_over_partitions_and_appends(simulation, hosting, tmp_path):
    first, second = hosting.add(tmp_path / "t"), hosting.add(tmp_path / "u", OTHER_KEY)
    first.append(b"x" * 1000)

    async def main():
        waiting = hosting.fetch({KEY: 0, OTHER_KEY: 0}, min_bytes=3 * SIZE, max_wait_ms=60_000)
        second.append(b"x" * 1000)
        await asyncio.sleep(1)
        assert not waiting.is_done
        first.append(b"x" * 1000)
        return await waiting, simulation.loop.time()

    answer, at = simulation.run(main())
    assert sizes(answer) == {KEY: 2 * SIZE, OTHER_KEY: SIZE}
    assert at < 2


@pytest.mark.parametrize("is_read_committed", [False, True])
@pytest.mark.parametrize("is_appended_first", [False, True])
def test_min_bytes_are_of_committed_records(
    simulation, hosting, tmp_path, is_appended_first, is_read_committed
):
    """Uncommitted records count at their commit, whether they were appended before the Fetch or after it."""
    on_disk = hosting.add(tmp_path)
    on_disk.partition.apply(image(epoch=1, replicas=(NODE_ID, 2)))

    def append():
        for _ in range(3):
            on_disk.append(b"x" * 1000, acks=1)

    async def main():
        if is_appended_first:
            append()
        waiting = hosting.fetch(
            {KEY: 0}, min_bytes=2 * SIZE, max_wait_ms=60_000, is_read_committed=is_read_committed
        )
        if not is_appended_first:
            append()
        await turns()
        follower_fetches(on_disk.partition, 2, 1)
        await turns()
        assert on_disk.log.high_watermark == 1
        assert not waiting.is_done  # committed is less than min_bytes, appended is more
        follower_fetches(on_disk.partition, 2, 2)
        await turns()
        assert waiting.is_done
        return waiting.result()

    assert sizes(simulation.run(main())) == {KEY: 2 * SIZE}


def test_where_the_size_is_not_known_a_fetch_is_read_again(simulation, hosting, tmp_path, monkeypatch):
    """It reads the disk, or reports its error."""
    on_disk = hosting.add(tmp_path)

    async def main():
        waiting = hosting.fetch({KEY: 0}, min_bytes=100 * SIZE, max_wait_ms=60_000)
        monkeypatch.setattr(on_disk.log.reader, "size_between", lambda offset, end: None)
        on_disk.append(b"x" * 1000)
        await turns()
        return waiting.result()

    assert sizes(simulation.run(main())) == {KEY: SIZE}


def test_records_of_a_closed_segment_do_not_wait_for_more(hosting, tmp_path):
    on_disk = hosting.add(tmp_path, segment_bytes=SIZE + 100)
    for _ in range(3):
        on_disk.append(b"x" * 1000)
    assert sizes(hosting.fetch({KEY: 0}, min_bytes=100 * SIZE)) == {KEY: SIZE}


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"fetch_offset": 9}, ErrorCode.offset_out_of_range),
        ({"fetch_offset": -1}, ErrorCode.offset_out_of_range),
        ({"current_leader_epoch": 7}, ErrorCode.unknown_leader_epoch),
        ({"last_fetched_epoch": 7}, ErrorCode.offset_out_of_range),
    ],
)
def test_errors_do_not_wait(hosting, tmp_path, asked, code):
    hosting.add(tmp_path / "t")
    hosting.add(tmp_path / "u", OTHER_KEY)
    answer = hosting.fetch({KEY: asked, OTHER_KEY: 0}, max_wait_ms=60_000)
    row = answer[KEY]
    assert (row.error_code, row.high_watermark, row.last_stable_offset) == (code, -1, -1)
    assert answer[OTHER_KEY].error_code == 0


def test_a_diverging_epoch_does_not_wait(hosting, tmp_path):
    hosting.add(tmp_path).append(b"a")
    asked = {"fetch_offset": 5, "last_fetched_epoch": 0}
    row = hosting.fetch({KEY: asked}, max_wait_ms=60_000)[KEY]
    assert (row.error_code, row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (0, 0, 1)


def test_an_unknown_topic_waits_with_the_others_but_not_alone(simulation, hosting, tmp_path):
    hosting.add(tmp_path)

    async def main():
        alone = hosting.fetch({OTHER_KEY: 0})
        assert alone[OTHER_KEY].error_code == ErrorCode.unknown_topic_or_partition
        began = simulation.loop.time()
        answer = await hosting.fetch({KEY: 0, OTHER_KEY: 0})
        return answer, simulation.loop.time() - began

    answer, took = simulation.run(main())
    assert took == pytest.approx(0.5)
    assert answer[OTHER_KEY].error_code == ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("claim", [{}, {"current_leader_epoch": 0}])
def test_a_client_that_claims_to_be_a_follower_is_refused(hosting, tmp_path, claim):
    """CVE-2018-1288: a client's replica id must not move the high watermark."""
    on_disk = hosting.add(tmp_path)
    on_disk.append(b"a")
    row = hosting.fetch({KEY: {"fetch_offset": 0} | claim}, replica_id=7)[KEY]
    assert row.error_code == (ErrorCode.unknown_leader_epoch if claim else ErrorCode.not_leader_or_follower)
    assert not row.records


def test_a_delayed_fetch_is_completed_when_its_partition_is_removed(simulation, hosting, tmp_path):
    on_disk = hosting.add(tmp_path)

    async def main():
        waiting = hosting.fetch({KEY: 0}, max_wait_ms=60_000)
        del hosting.hosted.by_key[KEY]
        on_disk.partition.resign()
        return await waiting, simulation.loop.time()

    answer, at = simulation.run(main())
    assert answer[KEY].error_code == ErrorCode.unknown_topic_or_partition
    assert at < 1


def test_a_parked_fetch_is_fenced_by_a_new_epoch(simulation, hosting, tmp_path):
    on_disk = hosting.add(tmp_path)

    async def main():
        waiting = hosting.fetch({KEY: {"current_leader_epoch": 0}}, max_wait_ms=60_000)
        on_disk.partition.apply(image(epoch=1))
        return await waiting

    assert simulation.run(main())[KEY].error_code == ErrorCode.fenced_leader_epoch


# KIP-392
@pytest.mark.parametrize(("version", "code"), [(10, ErrorCode.not_leader_or_follower), (11, ErrorCode.none)])
def test_consumers_read_from_followers_since_version_11(hosting, tmp_path, version, code):
    on_disk = hosting.add(tmp_path)
    on_disk.partition.apply(image(leader=2, epoch=1, replicas=(NODE_ID, 2)))
    assert hosting.fetch({KEY: 0}, version=version, max_wait_ms=0)[KEY].error_code == code


def test_a_cancelled_fetch_leaves_the_purgatory(simulation, hosting, tmp_path):
    hosting.add(tmp_path)

    async def main():
        waiting = hosting.fetch({KEY: 0}, max_wait_ms=2**31 - 1)
        waiting.cancel()
        await asyncio.sleep(0)

    simulation.run(main())
    assert hosting.purgatory.delayed_count == 0


def test_cold_records_are_read_in_a_thread(simulation, hosting, tmp_path, monkeypatch):
    on_disk = hosting.add(tmp_path)
    on_disk.append(b"a")
    really_read = on_disk.log.reader.read
    is_cold = True

    def read(offset, *, may_block=True, **others):
        nonlocal is_cold
        if is_cold and not may_block:
            raise WouldBlock
        is_cold = False
        return really_read(offset, may_block=may_block, **others)

    monkeypatch.setattr(on_disk.log.reader, "read", read)
    monkeypatch.setattr(on_disk.log.reader, "read_newest", lambda *_, **__: None)

    async def main():
        return await hosting.fetch({KEY: 0})

    assert values(simulation.run(main())[KEY]) == [b"a"]


def test_what_a_follower_is_sent_counts_once_however_often_it_was_read(
    simulation, hosting, tmp_path, monkeypatch
):
    """A cold partition, which is usual where one moves, makes all of them be read again."""
    counted = []
    monkeypatch.setattr(hosting.throttle, "record_sent", lambda partition, size: counted.append(size))
    warm, cold = hosting.add(tmp_path / "t"), hosting.add(tmp_path / "u", OTHER_KEY)
    for on_disk in (warm, cold):
        on_disk.partition.apply(image(epoch=1, replicas=(NODE_ID, 2)))
        on_disk.append(b"a")
    really_read = cold.log.reader.read

    def read(offset, *, may_block=True, **others):
        if not may_block:
            raise WouldBlock
        return really_read(offset, may_block=may_block, **others)

    monkeypatch.setattr(cold.log.reader, "read", read)
    monkeypatch.setattr(cold.log.reader, "read_newest", lambda *_, **__: None)

    async def main():
        asked = {key: {"fetch_offset": 0, "current_leader_epoch": 1} for key in (KEY, OTHER_KEY)}
        return await hosting.fetch(asked, replica_id=2, replica_epoch=-1)

    assert sizes(simulation.run(main())) == {KEY: counted[0], OTHER_KEY: counted[1]}
    assert len(counted) == 2


# -- a failing disk --------------------------------------------------------------------------------------


@pytest.mark.logs("is offline")
def test_a_read_that_fails_is_an_error_of_its_partition_and_takes_the_log_offline(
    hosting, tmp_path, monkeypatch
):
    on_disk = hosting.add(tmp_path)
    on_disk.append(b"a")

    def fails(*_, **__):
        raise OSError(errno.EIO, "the disk")

    monkeypatch.setattr(on_disk.log.files.file_system, "pread", fails)
    assert hosting.fetch({KEY: 0})[KEY].error_code == ErrorCode.kafka_storage_error
    assert not on_disk.log.is_writable


def test_an_error_of_a_read_in_a_thread_is_returned_by_the_second_read(
    simulation, hosting, tmp_path, monkeypatch
):
    """Between the two the records may have been deleted: that is a row's error, not the connection's end."""
    on_disk = hosting.add(tmp_path)
    on_disk.append(b"a")
    on_disk.append(b"b")
    real = on_disk.log.reader.read

    def read(offset, *, may_block=True, **how):
        if not may_block:
            raise WouldBlock
        return real(offset, **how)

    def warm_up(offset, **how):  # in the thread
        on_disk.log.maybe_increment_log_start_offset(1)
        raise KafkaStorageError

    monkeypatch.setattr(on_disk.log.reader, "read", read)
    monkeypatch.setattr(on_disk.log.reader, "read_newest", lambda *_, **__: None)
    monkeypatch.setattr(on_disk.log.reader, "warm_up", warm_up)

    async def main():
        return await hosting.fetch({KEY: 0})

    assert simulation.run(main())[KEY].error_code == ErrorCode.offset_out_of_range


# -- sessions --------------------------------------------------------------------------------------------


def test_a_session_returns_changes_only_and_waits_as_a_whole(simulation, hosting, tmp_path):
    first, second = hosting.add(tmp_path / "t"), hosting.add(tmp_path / "u", OTHER_KEY)
    first.append(b"a")

    async def main():
        answer = hosting.fetch({KEY: 0, OTHER_KEY: 0}, session=(0, 0))
        assert set(answer) == {KEY, OTHER_KEY}
        session_id = hosting.session_id
        waiting = hosting.fetch({KEY: 1}, session=(session_id, 1))
        session = hosting.sessions.get(session_id)
        assert not session.dirty
        second.append(b"b")
        answer = await waiting
        assert set(answer) == {OTHER_KEY}
        assert values(answer[OTHER_KEY]) == [b"b"]
        waiting = hosting.fetch({OTHER_KEY: 1}, session=(session_id, 2))
        assert await waiting == {}
        # Forgotten partitions complete no delayed fetch.
        waiting = hosting.fetch({}, session=(session_id, 3), forgotten=[OTHER_KEY])
        second.append(b"c")
        assert await waiting == {}
        assert not second.partition.watchers.consumers

    simulation.run(main())
    assert hosting.purgatory.delayed_count == 0


def test_a_fetch_that_does_not_wait_sees_an_append_of_the_same_turn(simulation, hosting, tmp_path):
    on_disk = hosting.add(tmp_path)

    async def main():
        hosting.fetch({KEY: 0}, session=(0, 0), max_wait_ms=0)
        assert hosting.fetch({}, session=(hosting.session_id, 1), max_wait_ms=0) == {}
        on_disk.append(b"a")
        answer = hosting.fetch({}, session=(hosting.session_id, 2), max_wait_ms=0)
        assert values(answer[KEY]) == [b"a"]

    simulation.run(main())


def test_records_that_did_not_fit_come_with_the_next_fetch(simulation, hosting, tmp_path):
    for key in (KEY, OTHER_KEY):
        hosting.add(tmp_path / key[0], key).append(b"x" * 1000)

    async def main():
        answer = hosting.fetch({KEY: 0, OTHER_KEY: 0}, session=(0, 0), max_bytes=SIZE)
        assert sizes(answer) == {KEY: SIZE, OTHER_KEY: 0}
        answer = hosting.fetch({KEY: 1}, session=(hosting.session_id, 1), max_bytes=SIZE)
        assert sizes(answer) == {OTHER_KEY: SIZE}

    simulation.run(main())


def test_moved_log_starts_are_returned(simulation, hosting, tmp_path):
    on_disk = hosting.add(tmp_path)
    on_disk.append(b"a", b"b")

    async def main():
        hosting.fetch({KEY: 2}, session=(0, 0), max_wait_ms=0)
        assert hosting.fetch({}, session=(hosting.session_id, 1), max_wait_ms=0) == {}
        on_disk.log.maybe_increment_log_start_offset(1)  # as retention does, unasked
        on_disk.partition.notice_retention()
        answer = hosting.fetch({}, session=(hosting.session_id, 2), max_wait_ms=0)
        assert answer[KEY].log_start_offset == 1

    simulation.run(main())
