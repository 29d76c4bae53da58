"""When a Fetch is answered, and with how much: limits, waiting, errors, sessions."""

import asyncio
import errno
import sys
from random import Random

import pytest
from replicas_support import NODE_ID, PartitionOnDisk, batch, follower_fetches, image

from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.replicas.following.replication_throttle import LeaderThrottle
from ottla.broker.replicas.hosted_partitions import HostedPartitions
from ottla.broker.replicas.reading.fetch import fetch
from ottla.broker.replicas.reading.fetch_contexts import new_context
from ottla.broker.replicas.reading.fetch_params import FetchParams
from ottla.broker.replicas.reading.fetch_session_cache import FetchSessionCache
from ottla.broker.replicas.reading.response_rows import count_and_group
from ottla.broker.replicas.topic_stats import BrokerTopicStats
from ottla.broker.replicas.waiting.delayed_operation import DelayedOperationPurgatory
from ottla.metadata.image import MetadataImage
from ottla.protocol.errors import ErrorCode, KafkaStorageError
from ottla.protocol.messages.fetch import FetchPartition
from ottla.protocol.records.batch import batches
from ottla.protocol.records.record import records
from ottla.replication.replication_quota import ReplicationQuota
from ottla.storage.log import WouldBlock
from tests.harness.replicas import turns

SIZE = len(batch(b"x" * 1000))
KEY, OTHER_KEY = ("t", 0), ("u", 0)


class Hosting:
    """Partitions and a purgatory, without the rest of a replica manager."""

    def __init__(self, runtime, *, session_slots=10):
        self.runtime = runtime
        self.purgatory = DelayedOperationPurgatory(
            call_later=runtime.call_later, call_soon=runtime.loop.call_soon, turns=runtime.turns
        )
        self.sessions = FetchSessionCache(slots=session_slots, random=Random(1))
        unbounded = ReplicationQuota(rate=lambda: sys.maxsize)
        self.throttle = LeaderThrottle(unbounded, node_id=NODE_ID, now_ms=runtime.now_ms)
        self.topic_stats = BrokerTopicStats()
        self.metadata = MetadataCache(MetadataImage())
        self.hosted = HostedPartitions(
            node_id=NODE_ID, metadata=self.metadata, is_being_created=lambda topic_partition: False
        )

    def add(self, folder, key=KEY, **config) -> PartitionOnDisk:
        folder.mkdir(exist_ok=True)
        on_disk = PartitionOnDisk(folder, **config)
        on_disk.partition.watchers._signal = self.purgatory.signal
        on_disk.partition.apply(image())
        self.hosted.by_key[key] = on_disk.partition
        return on_disk

    def fetch(self, offsets, *, session=(0, -1), forgotten=(), **params):
        asked = {
            key: FetchPartition(
                partition=key[1], partition_max_bytes=params.get("partition_max_bytes", 10**6), **fields
            )
            for key, fields in (
                (key, value if isinstance(value, dict) else {"fetch_offset": value})
                for key, value in offsets.items()
            )
        }
        params.pop("partition_max_bytes", None)
        replica_id = params.get("replica_id")
        context = new_context(
            self.sessions,
            session_id=session[0],
            epoch=session[1],
            requested=asked.items(),
            forgotten=forgotten,
            is_follower=replica_id is not None,
            uses_topic_ids=False,
            is_read_committed=params.get("is_read_committed", False),
            now_ms=0,
        )

        def respond(answers):
            error, self.session_id = context.update_session(answers, now_ms=lambda: 0)
            assert error == ErrorCode.none
            count_and_group(answers, context.session, self, is_follower=replica_id is not None)
            return {fetched.key: row for fetched, row in answers}

        defaults = {
            "version": 12, "replica_id": None, "max_wait_ms": 500, "min_bytes": 1, "max_bytes": 10**6,
            "is_read_committed": False, "now_ms": 0,
        }  # fmt: skip
        return fetch(self, None, context, FetchParams(**(defaults | params)), respond)


@pytest.fixture
def hosting(simulation):
    return Hosting(simulation.runtime("broker"))


def values(row):
    return [record.value for _, part in batches(memoryview(row.records)) for record in records(part)]


def sizes(answer):
    return {key: len(row.records) for key, row in answer.items()}


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


# -- followers (KIP-392, "High watermark propagation") ----------------------------------------------------

#: What a row says that does not say which high watermark its follower knows: before version 18, and Kafka's.
UNTOLD = FetchPartition().high_watermark


def led(hosting, folder, key=KEY) -> PartitionOnDisk:
    """A partition whose one record is committed: its follower, broker 2, has fetched up to its end."""
    on_disk = hosting.add(folder, key)
    on_disk.partition.apply(image(epoch=1, replicas=(NODE_ID, 2, 3), isr=(NODE_ID, 2)))
    on_disk.append(b"a")
    follower_fetches(on_disk.partition, 2, 1)
    assert on_disk.log.high_watermark == 1
    return on_disk


@pytest.mark.parametrize(
    ("slots", "known", "is_answered_at_once"),
    [
        # The first fetch of a session does not block ...
        (10,      1, True),
        (10, UNTOLD, True),
        # ... but where no session is opened every fetch is a first one, and only new data counts.
        ( 0,      0, None),  # in a moment: producers go first
        ( 0,      1, False),
        ( 0, UNTOLD, False),
    ],
)  # fmt: skip
def test_a_followers_first_fetch(simulation, tmp_path, slots, known, is_answered_at_once):
    hosting = Hosting(simulation.runtime("broker"), session_slots=slots)
    led(hosting, tmp_path)

    async def main():
        answer = hosting.fetch(
            {KEY: {"fetch_offset": 1, "high_watermark": known}}, session=(0, 0), replica_id=2
        )
        assert isinstance(answer, dict) is (is_answered_at_once is True)
        if not isinstance(answer, dict):
            await turns()
            assert answer.is_done is (is_answered_at_once is None)
            answer = await answer
        assert answer[KEY].high_watermark == 1

    simulation.run(main())


@pytest.mark.parametrize("sends_high_watermark", [True, False])
def test_a_follower_gets_a_new_high_watermark_at_once_and_waits_then(
    simulation, hosting, tmp_path, sends_high_watermark
):
    on_disk = led(hosting, tmp_path)

    async def main():
        session_id = None

        def ask(epoch, *, known):
            row = {"fetch_offset": on_disk.log.log_end_offset}
            row["high_watermark"] = known if sends_high_watermark else UNTOLD
            return hosting.fetch(
                {KEY: row}, session=(session_id or 0, epoch), replica_id=2, max_wait_ms=10**6
            )

        on_disk.partition.apply(
            image(epoch=1, partition_epoch=2, replicas=(NODE_ID, 2, 3), isr=(NODE_ID, 2, 3))
        )
        assert ask(0, known=1)[KEY].high_watermark == 1
        session_id = hosting.session_id
        on_disk.append(b"b")
        waiting = ask(1, known=1)
        await turns()
        assert not waiting.is_done  # broker 3 does not have it yet
        began = simulation.loop.time()
        follower_fetches(on_disk.partition, 3, 2)
        assert (await waiting)[KEY].high_watermark == 2
        assert simulation.loop.time() - began < 0.001
        waiting = ask(2, known=2)
        await turns()
        assert not waiting.is_done
        waiting.cancel()

    simulation.run(main())


class Follower:
    """Broker 2, which fetches from the end of the log, as one that has appended what it was sent."""

    def __init__(self, hosting, on_disks):
        self.hosting, self.on_disks, self.epoch = hosting, on_disks, 1
        hosting.fetch(self.rows(), session=(0, 0), replica_id=2)
        self.session = hosting.sessions.get(hosting.session_id)

    def rows(self, known=None):
        return {
            key: {
                "fetch_offset": on_disk.log.log_end_offset,
                "high_watermark": on_disk.log.high_watermark if known is None else known,
            }
            for key, on_disk in self.on_disks.items()
        }

    def fetch(self, **options):
        """It has the high watermark of the last response, as the partition's is before this Fetch."""
        self.epoch += 1
        session = (self.session.session_id, self.epoch - 1)
        return self.hosting.fetch(
            self.rows(), session=session, replica_id=2, **{"max_wait_ms": 10**6} | options
        )


def test_producers_go_first(simulation, hosting, tmp_path):
    """A producer's next records, sent on its response, may be appended before the followers are answered."""
    on_disk = led(hosting, tmp_path)

    async def main():
        follower = Follower(hosting, {KEY: on_disk})
        on_disk.append(b"b")
        waiting = follower.fetch()
        await asyncio.sleep(0)
        assert (
            on_disk.log.high_watermark == 2
        )  # the producer of b is answered, and its next request is handled
        assert not waiting.is_done
        on_disk.append(b"c")
        row = (await waiting)[KEY]
        assert (values(row), row.high_watermark) == ([b"c"], 2)

    simulation.run(main())


async def replicate(on_disk, follower, *, pause_s):
    """The responses to the follower when twice a new high watermark is followed, `pause_s` later, by a
    record.
    """
    rows = []
    for _ in range(2):
        waiting = follower.fetch()
        await turns()
        if waiting.is_done:
            rows.append((await waiting)[KEY])
            waiting = follower.fetch()
        await asyncio.sleep(pause_s)
        on_disk.append(b"x")
        rows.append((await waiting)[KEY])
    return [(len(values(row)), row.high_watermark) for row in rows]


@pytest.mark.parametrize(
    ("pause_s", "responses"),
    [
        #        (records, high watermark)
        (0.0005, [(0, 2), (1, 2), (1, 3)]),
        (0.0008, [(0, 2), (1, 2), (0, 3), (1, 3)]),
        (0.0100, [(0, 2), (1, 2), (0, 3), (1, 3)]),
    ],
)  # fmt: skip
def test_where_records_follow_closely_a_high_watermark_is_sent_with_the_next_ones(
    simulation, hosting, tmp_path, pause_s, responses
):
    on_disk = led(hosting, tmp_path)

    async def main():
        follower = Follower(hosting, {KEY: on_disk})
        on_disk.append(b"b")
        assert await replicate(on_disk, follower, pause_s=pause_s) == responses

    simulation.run(main())
    assert hosting.purgatory.delayed_count == 0


def expecting(follower):
    """Records have followed the last high watermark closely."""
    follower.session.high_watermark_delay.are_records_expected = True
    return follower


def test_a_high_watermark_waits_for_two_milliseconds_at_most(simulation, hosting, tmp_path):
    on_disk = led(hosting, tmp_path)

    async def main():
        follower = expecting(Follower(hosting, {KEY: on_disk}))
        for waits_s in (0.002, 0):
            on_disk.append(b"x")
            began = simulation.loop.time()
            waiting = follower.fetch()
            assert bool(hosting.purgatory._signalled) is not bool(waits_s)  # it is not checked again
            row = (await waiting)[KEY]
            assert (values(row), row.high_watermark) == ([], on_disk.log.log_end_offset)
            assert simulation.loop.time() - began == pytest.approx(waits_s)

    simulation.run(main())


def test_a_fetch_that_waits_already_waits_on_for_records(simulation, hosting, tmp_path):
    """The high watermark is advanced by another follower's Fetch."""
    on_disk = led(hosting, tmp_path)
    on_disk.partition.apply(image(epoch=1, partition_epoch=2, replicas=(NODE_ID, 2, 3), isr=(NODE_ID, 2, 3)))

    async def main():
        follower = expecting(Follower(hosting, {KEY: on_disk}))
        on_disk.append(b"b")
        waiting = follower.fetch()
        await asyncio.sleep(1)
        began = simulation.loop.time()
        follower_fetches(on_disk.partition, 3, 2)
        row = (await waiting)[KEY]
        assert (values(row), row.high_watermark) == ([], 2)
        assert simulation.loop.time() - began == pytest.approx(0.002)

    simulation.run(main())


def test_the_time_until_records_begins_with_the_high_watermark_whatever_is_checked_meanwhile(
    simulation, hosting, tmp_path
):
    on_disk = led(hosting, tmp_path)

    async def main():
        follower = expecting(Follower(hosting, {KEY: on_disk}))
        on_disk.append(b"b")
        waiting = follower.fetch()
        await asyncio.sleep(0.001)
        on_disk.partition.notify()
        await asyncio.sleep(0.0005)
        on_disk.append(b"c")
        row = (await waiting)[KEY]
        assert (values(row), row.high_watermark) == ([b"c"], 2)
        assert not follower.session.high_watermark_delay.are_records_expected  # 1.5 ms

    simulation.run(main())


def test_records_of_another_partition_bring_the_high_watermark_along(simulation, hosting, tmp_path):
    on_disks = {KEY: led(hosting, tmp_path / "t"), OTHER_KEY: led(hosting, tmp_path / "u", OTHER_KEY)}

    async def main():
        follower = expecting(Follower(hosting, on_disks))
        on_disks[KEY].append(b"b")
        waiting = follower.fetch()
        await asyncio.sleep(0.0005)
        assert not waiting.is_done
        on_disks[OTHER_KEY].append(b"c")
        answer = await waiting
        assert {key: (values(row), row.high_watermark) for key, row in answer.items()} == {
            KEY: ([], 2),
            OTHER_KEY: ([b"c"], 1),
        }
        # The timer is cancelled: it would say that nothing has followed.
        await asyncio.sleep(1)
        assert follower.session.high_watermark_delay.are_records_expected

    simulation.run(main())


def test_a_follower_that_leaves_while_its_high_watermark_waits(simulation, hosting, tmp_path):
    on_disk = led(hosting, tmp_path)

    async def main():
        follower = expecting(Follower(hosting, {KEY: on_disk}))
        on_disk.append(b"b")
        follower.fetch().cancel()
        await asyncio.sleep(1)
        assert follower.session.high_watermark_delay.are_records_expected

    simulation.run(main())
    assert hosting.purgatory.delayed_count == 0


def test_a_late_request_of_an_earlier_connection_does_not_hide_what_the_session_says(
    simulation, hosting, tmp_path
):
    """A follower of an idle partition has nothing new to say: what it has said is looked up again."""
    on_disk = led(hosting, tmp_path)
    row = {"fetch_offset": 1, "high_watermark": 1}

    async def main():
        hosting.fetch({KEY: row}, session=(0, 0), replica_id=2)
        session_id = hosting.session_id
        parked = hosting.fetch({}, session=(session_id, 1), replica_id=2)
        hosting.fetch({KEY: row | {"fetch_offset": 0}}, session=(0, -1), replica_id=2)
        progress = on_disk.partition.leader.state.followers[2]
        assert progress.log_end_offset == 0
        await parked  # sent before: its response shows nothing new of the follower
        assert progress.log_end_offset == 0
        hosting.fetch({}, session=(session_id, 2), replica_id=2)
        assert progress.log_end_offset == 1

    simulation.run(main())


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
