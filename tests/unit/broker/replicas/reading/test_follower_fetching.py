"""When a follower's Fetch is answered, and which high watermark it gets (KIP-392)."""

import asyncio

import pytest
from fetching_support import KEY, OTHER_KEY, Hosting, values
from replicas_support import NODE_ID, PartitionOnDisk, follower_fetches, image

from ottla.protocol.messages.fetch import FetchPartition
from ottla.stories.partition.replicas import turns


@pytest.fixture
def hosting(simulation):
    return Hosting(simulation.runtime("broker"))


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
