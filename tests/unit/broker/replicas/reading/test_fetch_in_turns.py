"""A Fetch of many rows is read in turns of the event loop, between which anything may happen."""

import asyncio
from collections.abc import Awaitable
from itertools import pairwise

import pytest
from replicas_support import NODE_ID, TOPIC_ID, BrokerInFolder, batch, image

from ottla.broker.api import k01_fetch
from ottla.broker.network import NetworkServer, NetworkSettings
from ottla.broker.replicas.partition_leader import PartitionLeader
from ottla.broker.replicas.reading import (
    delayed_fetch,
    fetch,
    fetch_contexts,
    fetch_session_cache,
    fetch_sessions,
    read_from_log,
)
from ottla.broker.request_context import RequestContext
from ottla.metadata.records import PartitionChangeRecord, RemoveTopicRecord
from ottla.protocol.codec import encode_request
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import framed
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from ottla.runtime import turns
from ottla.runtime.simulated import Simulation

COUNT = 6


@pytest.fixture(autouse=True)
def one_row_a_turn(monkeypatch):
    monkeypatch.setattr(fetch, "MAX_ROWS_AT_ONCE", 2)
    monkeypatch.setattr(fetch, "FEW_ROWS", 1)
    monkeypatch.setattr(delayed_fetch, "MAX_ROWS_AT_ONCE", 2)
    monkeypatch.setattr(read_from_log, "ROWS_OF_STEP", 1)
    monkeypatch.setattr(turns, "MAX_STEPS", 1)


def leader(simulation, folder):
    """A broker that leads all partitions."""
    broker = BrokerInFolder(folder, simulation.runtime("broker"))
    broker.create(partitions=dict.fromkeys(range(COUNT), image(replicas=(NODE_ID, 2))))
    return broker


@pytest.fixture
def broker(simulation, tmp_path):
    return leader(simulation, tmp_path / "data")


def append(broker, index, *, is_committed=True):
    partition = broker.replicas.partition(("t", index))
    now_ms = broker.runtime.now_ms()
    partition.leader.append_records(batch(b"value", timestamp=now_ms), required_acks=1, now_ms=now_ms)
    if is_committed:
        partition.log.maybe_increment_high_watermark(partition.log.log_end_offset)
        partition.notify()


def request(offsets, *, follower=False, session_id=0, epoch=0, max_wait_ms=500, **fields):
    rows = [
        FetchPartition(
            partition=index,
            fetch_offset=offset,
            current_leader_epoch=0,
            partition_max_bytes=10**6,
            log_start_offset=0,
        )
        for index, offset in offsets.items()
    ]
    return FetchRequest(
        replica_state=ReplicaState(replica_id=2 if follower else -1),
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=10**6,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic_id=TOPIC_ID, partitions=rows)] if rows else [],
        **fields,
    )


def send(broker, offsets, **fields):
    """Begin a Fetch: a task of its response."""
    found = broker.raw(k01_fetch, request(offsets, **fields), 17)

    async def finish():
        return await found if isinstance(found, Awaitable) else found

    return asyncio.ensure_future(finish())


def rows_of(response):
    return {
        row.partition_index: (row.error_code, len(row.records), row.high_watermark)
        for topic in response.responses
        for row in topic.partitions
    }


async def session(broker, **fields):
    """The id of a session with all partitions, from their ends on."""
    ends = {index: broker.replicas.partition(("t", index)).log.log_end_offset for index in range(COUNT)}
    return (await send(broker, ends, max_wait_ms=0, **fields)).session_id, ends


@pytest.mark.parametrize("follower", [False, True])
@pytest.mark.parametrize("with_records", [(), (1,), (0, 3, 5), tuple(range(COUNT))])
@pytest.mark.parametrize("max_wait_ms", [0, 20])
def test_the_same_as_at_once(tmp_path, monkeypatch, follower, with_records, max_wait_ms):
    """Session, responses, and what is left to be read."""

    def outcome(most):
        monkeypatch.setattr(fetch, "MAX_ROWS_AT_ONCE", most)
        with Simulation(seed=1) as simulation:
            broker = leader(simulation, tmp_path / f"at-once-{most}")

            async def main():
                session_id, ends = await session(broker, follower=follower)
                for index in with_records:
                    append(broker, index)
                named = ends | {9: 0}
                first = await send(
                    broker, named, session_id=session_id, epoch=1, follower=follower, max_wait_ms=max_wait_ms
                )
                dirty = [it.key[1] for it in broker.fetch_sessions.get(session_id).dirty]
                return first, dirty

            return simulation.run(main())

    assert outcome(2) == outcome(1000)


@pytest.mark.parametrize("follower", [False, True])
@pytest.mark.parametrize("with_records", [(1,), (0, 3, 5), tuple(range(COUNT))])
@pytest.mark.parametrize("most_at_once", [2, 1000])
def test_very_many_rows_are_recorded_and_encoded_in_turns(
    tmp_path, monkeypatch, follower, with_records, most_at_once
):
    """The same rows as at once: of a full fetch, of one that names and forgets partitions, of one that has waited."""
    monkeypatch.setattr(fetch, "MAX_ROWS_AT_ONCE", most_at_once)
    monkeypatch.setattr(delayed_fetch, "MAX_ROWS_AT_ONCE", most_at_once)
    monkeypatch.setattr(fetch_contexts, "_ROWS_OF_STEP", 1)
    monkeypatch.setattr(k01_fetch, "ROWS_OF_STEP", 1)

    def outcome(most):
        monkeypatch.setattr(k01_fetch, "MANY_ROWS", most)
        monkeypatch.setattr(k01_fetch, "LONG_BODY_BYTES", 10 if most == 0 else 10_000)
        with Simulation(seed=1) as simulation:
            broker = leader(simulation, tmp_path / f"many-{most}")

            async def main():
                append(broker, 2)
                found = [await send(broker, dict.fromkeys(range(COUNT), 0), follower=follower, max_wait_ms=0)]
                session_id = found[0].session_id
                for index in with_records:
                    append(broker, index)
                forgotten = [ForgottenTopic(topic_id=TOPIC_ID, partitions=[4])]
                named = {"session_id": session_id, "follower": follower}
                ends = {
                    index: broker.replicas.partition(("t", index)).log.log_end_offset
                    for index in range(COUNT)
                }
                found.append(
                    await send(broker, {1: 0, 2: 1, 9: 0}, epoch=1, forgotten_topics_data=forgotten, **named)
                )
                waiting = send(broker, ends, epoch=2, **named)
                await asyncio.sleep(0.01)
                append(broker, 3)
                append(broker, 5)
                found.append(await waiting)
                known = broker.fetch_sessions.get(session_id)
                rows = {
                    it.key[1]: (it.high_watermark, it.log_start_offset) for it in known.partitions.values()
                }
                stats = str(broker.replicas.topic_stats.all_topics())
                return (
                    [(it.error_code, it.session_id, rows_of(it)) for it in found],
                    rows,
                    {*known.dirty}.__len__(),
                    stats,
                )

            return simulation.run(main())

    assert outcome(0) == outcome(1000)


def test_a_session_is_closed_in_turns(simulation, broker, monkeypatch):
    """No request finds it any more; its partitions are not watched any more, some of them in each turn, and freed."""
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_OF_STEP", 1)
    monkeypatch.setattr(fetch_session_cache, "PARTITIONS_OF_STEP", 1)

    async def main():
        session_id, _ = await session(broker)
        await send(broker, {}, session_id=session_id, epoch=1, max_wait_ms=0)
        watchers = [broker.replicas.partition(("t", index)).watchers for index in range(COUNT)]
        known = broker.fetch_sessions.get(session_id)
        closing = send(broker, {}, session_id=session_id, epoch=-1)
        watched = [COUNT]
        while watched[-1]:
            await asyncio.sleep(0)
            watched.append(sum(len(each.consumers) for each in watchers))
            assert known.is_closed == (broker.fetch_sessions.get(session_id) is None)
        assert (await closing).error_code == ErrorCode.none
        assert max(before - after for before, after in pairwise(watched)) <= 2
        await asyncio.sleep(1)
        assert (known.partitions, known.dirty) == ({}, {})

    simulation.run(main())


def opening_session(broker):
    """A full fetch of all partitions that records its rows in steps, with its context."""
    requested = {("t", index): FetchPartition(partition=index) for index in range(COUNT)}
    context = fetch_contexts.new_context(
        broker.fetch_sessions,
        session_id=0,
        epoch=0,
        requested=requested.items(),
        forgotten=(),
        is_follower=False,
        uses_topic_ids=False,
        is_read_committed=False,
        now_ms=0,
    )
    rows = [(fetched, PartitionData()) for fetched in context.requested.values()]
    return context, context.update_session_in_steps(rows, now_ms=lambda: 0)


def test_a_session_that_is_evicted_while_it_is_opened_watches_nothing(simulation, broker, monkeypatch):
    monkeypatch.setattr(fetch_contexts, "_ROWS_OF_STEP", 1)

    async def main():
        cache = broker.fetch_sessions
        context, opening = opening_session(broker)
        next(opening)
        (opened,) = cache._sessions.values()
        assert (len(opened.dirty), len(opened.partitions)) == (1, COUNT)
        cache.remove(opened)
        with pytest.raises(StopIteration) as done:
            next(opening)
        assert done.value.value == (ErrorCode.none, opened.session_id)
        assert cache.get(opened.session_id) is None
        assert not any(fetched.session for fetched in context.requested.values())

    simulation.run(main())


def test_a_session_whose_client_goes_while_it_is_opened_is_not_kept(simulation, broker, monkeypatch):
    """No client knows its id: it would take a slot until another session needs it."""
    monkeypatch.setattr(fetch_contexts, "_ROWS_OF_STEP", 1)

    async def main():
        context, opening = opening_session(broker)
        next(opening)
        assert broker.fetch_sessions.partition_count == COUNT
        opening.close()
        assert (len(broker.fetch_sessions._sessions), broker.fetch_sessions.partition_count) == (0, 0)
        assert not any(fetched.session for fetched in context.requested.values())

    simulation.run(main())


def test_a_later_request_after_the_last_row_is_recorded_makes_the_response_an_error(simulation, broker):
    async def main():
        session_id, _ = await session(broker)
        known = broker.fetch_sessions.get(session_id)
        context = fetch_contexts.IncrementalFetchContext(known)
        rows = [(fetched, PartitionData()) for fetched in known.partitions.values()]
        recording = context.update_session_in_steps(rows, now_ms=broker.runtime.now_ms)
        next(recording)
        known.epoch += 1
        with pytest.raises(StopIteration) as done:
            next(recording)
        assert done.value.value == (ErrorCode.invalid_fetch_session_epoch, session_id)
        assert rows == []

    simulation.run(main())


def test_a_later_request_while_rows_are_recorded_makes_the_response_an_error(simulation, broker, monkeypatch):
    monkeypatch.setattr(fetch_contexts, "_ROWS_OF_STEP", 1)
    monkeypatch.setattr(k01_fetch, "MANY_ROWS", 2)

    async def main():
        session_id, ends = await session(broker)
        for index in range(COUNT):
            append(broker, index)
        first = send(broker, ends, session_id=session_id, epoch=1)
        known = broker.fetch_sessions.get(session_id)
        recorded = next(iter(known.partitions.values()))
        for _ in range(100):
            if recorded.high_watermark == 1:
                break
            await asyncio.sleep(0)
        assert not first.done()
        second = send(broker, {}, session_id=session_id, epoch=2)
        found = await first
        assert (found.error_code, found.responses) == (ErrorCode.invalid_fetch_session_epoch, [])
        assert (await second).error_code == 0

    simulation.run(main())


@pytest.mark.parametrize("follower", [False, True])
@pytest.mark.parametrize("with_records", [(1,), (0, 3, 5), tuple(range(COUNT))])
def test_what_has_waited_is_the_same_as_at_once(tmp_path, monkeypatch, follower, with_records):
    """More rows than are read at once have changed when there is enough."""
    monkeypatch.setattr(fetch, "MAX_ROWS_AT_ONCE", 1000)

    def outcome(most):
        monkeypatch.setattr(delayed_fetch, "MAX_ROWS_AT_ONCE", most)
        with Simulation(seed=1) as simulation:
            broker = leader(simulation, tmp_path / f"waited-{most}")

            async def main():
                session_id, ends = await session(broker, follower=follower)
                waiting = send(broker, ends, session_id=session_id, epoch=1, follower=follower)
                await asyncio.sleep(0.01)
                assert broker.replicas.purgatory.delayed_count == 1
                for index in with_records:
                    append(broker, index)
                turns_count = 0
                while not waiting.done():
                    await asyncio.sleep(0)
                    turns_count += 1
                dirty = [it.key[1] for it in broker.fetch_sessions.get(session_id).dirty]
                stats = str(broker.replicas.topic_stats.all_topics())
                return turns_count, (waiting.result(), dirty, stats)

            return simulation.run(main())

    (turns_count, in_turns), (at_once_count, at_once) = outcome(2), outcome(1000)
    assert in_turns == at_once
    assert (turns_count >= at_once_count + len(with_records)) == (len(with_records) > 2)


@pytest.mark.parametrize("follower", [False, True])
@pytest.mark.parametrize("most", [2, 1000])
def test_a_fetch_that_is_read_again_counts_once(simulation, broker, monkeypatch, most, follower):
    """It counts once as a request and as progress: by then the follower may have fetched on in another
    session."""
    monkeypatch.setattr(fetch, "MAX_ROWS_AT_ONCE", most)
    recorded = []
    real = PartitionLeader.on_follower_fetch

    def on_follower_fetch(leader, replica_id, *, fetch_offset, **fields):
        recorded.append(leader.log.directory.name)
        real(leader, replica_id, fetch_offset=fetch_offset, **fields)

    monkeypatch.setattr(PartitionLeader, "on_follower_fetch", on_follower_fetch)

    async def main():
        session_id, ends = await session(broker, follower=follower)
        recorded.clear()
        stats = broker.replicas.topic_stats.all_topics
        began_count = stats().total_fetch_requests
        fetching = send(broker, dict.fromkeys(ends, 0), session_id=session_id, epoch=1, follower=follower)
        await asyncio.sleep(0.01)
        assert broker.replicas.purgatory.delayed_count == 1
        for index in range(COUNT):
            append(broker, index)
        assert len(rows_of(await fetching)) == COUNT
        assert stats().total_fetch_requests - began_count == COUNT
        assert sorted(recorded) == [f"t-{index}" for index in range(COUNT * follower)]

    simulation.run(main())


def test_records_of_a_refused_response_are_not_counted(simulation, broker):
    """Another request of the session has come: what was read is not sent."""

    async def main():
        session_id, ends = await session(broker, follower=True)
        append(broker, 0)
        delay = broker.fetch_sessions.get(session_id).high_watermark_delay
        delay.on_new_high_watermark(broker.runtime.monotonic())
        first = send(broker, ends, session_id=session_id, epoch=1, follower=True)
        for _ in range(3):
            await asyncio.sleep(0)
        assert not first.done()
        second = send(broker, {}, session_id=session_id, epoch=2, follower=True)
        assert (await first).error_code == ErrorCode.invalid_fetch_session_epoch
        stats = broker.replicas.topic_stats.all_topics()
        assert (stats.replication_bytes_out, delay.are_records_expected) == (0, False)
        size = rows_of(await second)[0][1]
        assert size
        stats = broker.replicas.topic_stats.all_topics()
        assert (stats.replication_bytes_out, delay.are_records_expected) == (size, True)

    simulation.run(main())


def test_what_changes_between_the_turns_completes_the_fetch(simulation, broker):
    """The row had been read, and nothing waited for it: the signal is not repeated."""

    async def main():
        session_id, ends = await session(broker)
        began_at = broker.runtime.monotonic()
        fetching = send(broker, ends, session_id=session_id, epoch=1)
        for _ in range(4):
            await asyncio.sleep(0)
        dirty = broker.fetch_sessions.get(session_id).dirty
        assert 0 < len(dirty) < COUNT
        append(broker, 0)
        response = await fetching
        assert broker.runtime.monotonic() - began_at < 0.1
        return response

    ((index, (error, size, high_watermark)),) = rows_of(simulation.run(main())).items()
    assert (index, error, high_watermark) == (0, 0, 1)
    assert size > 0


def test_what_changes_between_the_turns_is_in_the_next_response(simulation, broker):
    async def main():
        session_id, ends = await session(broker)
        append(broker, 5)
        fetching = send(broker, ends, session_id=session_id, epoch=1)
        for _ in range(3):
            await asyncio.sleep(0)
        append(broker, 0)
        first = rows_of(await fetching)
        second = rows_of(await send(broker, {5: 1}, session_id=session_id, epoch=2))
        return first.keys(), second.keys()

    assert simulation.run(main()) == ({5}, {0})


def test_another_request_of_the_session_between_the_turns(simulation, broker):
    """A client that has reconnected may send one: the first request gets no rows, and records no more
    progress."""

    async def main():
        session_id, ends = await session(broker, follower=True)
        for index in range(COUNT):
            append(broker, index, is_committed=False)
        first = send(broker, dict.fromkeys(ends, 1), session_id=session_id, epoch=1, follower=True)
        for _ in range(3):
            await asyncio.sleep(0)
        second = send(broker, {}, session_id=session_id, epoch=2, follower=True)
        first, second = await first, await second
        assert first.error_code == ErrorCode.invalid_fetch_session_epoch
        assert not first.responses
        assert second.error_code == 0
        assert broker.fetch_sessions.get(session_id).epoch == 3

    simulation.run(main())


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (
            PartitionChangeRecord(partition_id=5, topic_id=TOPIC_ID, leader=2),
            ErrorCode.fenced_leader_epoch,
        ),
        (RemoveTopicRecord(topic_id=TOPIC_ID), ErrorCode.unknown_topic_or_partition),
    ],
)
def test_a_partition_that_goes_between_the_turns(simulation, broker, record, error):
    async def main():
        session_id, ends = await session(broker, follower=True)
        fetching = send(broker, ends, session_id=session_id, epoch=1, follower=True, max_wait_ms=50)
        for _ in range(3):
            await asyncio.sleep(0)
        broker.replay(record)
        return rows_of(await fetching)

    found = simulation.run(main())
    assert found[5][0] == error


@pytest.mark.parametrize("most", [1000, 2])
def test_a_fetch_that_waits_is_given_up_with_its_connection(simulation, broker, monkeypatch, most):
    """It may ask for weeks."""
    monkeypatch.setattr(fetch, "MAX_ROWS_AT_ONCE", most)

    def dispatch(frame, connection):
        context = RequestContext(1, 17, 1, "client", "127.0.0.1", "PLAINTEXT")
        return k01_fetch.handle_raw(frame, context, broker)

    async def main():
        server = NetworkServer(broker.runtime, dispatch, NetworkSettings())
        port = (await server.listen("PLAINTEXT", "broker", 0)).port
        transport, _ = await simulation.runtime("client").connect("broker", port, asyncio.Protocol)
        message = encode_request(
            1, 17, request(dict.fromkeys(range(COUNT), 0), epoch=-1, max_wait_ms=2**31 - 1)
        )
        transport.write(framed(message))
        await asyncio.sleep(1)
        assert broker.replicas.purgatory.delayed_count == 1
        transport.close()
        await asyncio.sleep(1)
        assert not server.connections
        assert broker.replicas.purgatory.delayed_count == 0

    simulation.run(main())


def test_what_has_waited_is_given_up_with_its_connection_between_the_turns(simulation, broker, monkeypatch):
    monkeypatch.setattr(fetch, "MAX_ROWS_AT_ONCE", 1000)
    sent = []

    def dispatch(frame, connection):
        context = RequestContext(1, 17, 1, "client", "127.0.0.1", "PLAINTEXT")
        return k01_fetch.handle_raw(frame, context, broker)

    def count_and_group(rows, *_, **__):
        sent.append(rows)
        return []

    monkeypatch.setattr(k01_fetch, "count_and_group", count_and_group)

    async def main():
        server = NetworkServer(broker.runtime, dispatch, NetworkSettings())
        port = (await server.listen("PLAINTEXT", "broker", 0)).port
        transport, _ = await simulation.runtime("client").connect("broker", port, asyncio.Protocol)
        offsets = dict.fromkeys(range(COUNT), 0)
        transport.write(framed(encode_request(1, 17, request(offsets, epoch=-1, max_wait_ms=2**31 - 1))))
        await asyncio.sleep(1)
        for index in range(COUNT):
            append(broker, index)
        for _ in range(3):
            await asyncio.sleep(0)
        assert broker.replicas.purgatory.delayed_count == 0
        (connection,) = server.connections
        connection.abort()
        await asyncio.sleep(1)
        assert not server.connections
        assert not sent

    simulation.run(main())


def test_a_session_that_is_closed_between_the_turns(simulation, broker):
    """Its follower goes on in another one: the rest of the old request records no progress."""

    async def main():
        session_id, ends = await session(broker, follower=True)
        for index in range(COUNT):
            append(broker, index, is_committed=False)
            append(broker, index, is_committed=False)
        old = send(broker, dict.fromkeys(ends, 1), session_id=session_id, epoch=1, follower=True)
        for _ in range(3):
            await asyncio.sleep(0)
        new = await send(broker, {5: 1}, session_id=session_id, follower=True)
        assert broker.fetch_sessions.get(session_id) is None
        await send(broker, {5: 2}, session_id=new.session_id, epoch=1, follower=True, max_wait_ms=0)
        progress = broker.replicas.partition(("t", 5)).leader.state.followers[2]
        assert progress.log_end_offset == 2
        await old
        assert progress.log_end_offset == 2

    simulation.run(main())


def test_a_request_that_is_cancelled_between_the_turns(simulation, broker):
    """Nothing was sent: the rows are read again by a later request."""

    async def main():
        session_id, ends = await session(broker)
        for index in range(COUNT):
            append(broker, index)
        fetching = send(broker, ends, session_id=session_id, epoch=1)
        for _ in range(3):
            await asyncio.sleep(0)
        fetching.cancel()
        await asyncio.sleep(0.01)
        assert broker.replicas.purgatory.delayed_count == 0
        return rows_of(await send(broker, {}, session_id=session_id, epoch=2))

    assert len(simulation.run(main())) == COUNT
