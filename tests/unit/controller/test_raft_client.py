"""The driver of Raft: effects in order, notifications of listeners, and what ends a node. With a single voter."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from controller_shell import Follower, Shell, create, follow, join

from ottla.controller.metadata_log import snapshots
from ottla.controller.metadata_log.log_cleaning import CLEAN_INTERVAL_MS, MetadataLogSettings
from ottla.controller.metadata_log.new_batches import batches_of
from ottla.controller.quorum.snapshot_generator import SnapshotGenerator
from ottla.controller.raft.effects import Send
from ottla.controller.raft.types import Address, LeaderAndEpoch
from ottla.metadata import records as r
from ottla.metadata.image import InvalidMetadata
from ottla.protocol.errors import NotController, UnsupportedVersion
from ottla.protocol.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from ottla.protocol.messages.vote import VoteRequest


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def topic(number: int) -> r.TopicRecord:
    return r.TopicRecord(name=f"t{number}", topic_id=UUID(int=1_000 + number))


def append(shell: Shell, *records: r.MetadataRecord) -> int:
    epoch = shell.quorum.leader.epoch
    (batch,) = batches_of(records, metadata_version=30)
    return shell.quorum.append(batch, epoch=epoch)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Broken(Follower):
    def on_commit(self, records: Sequence[r.MetadataRecord], base_offset: int, end_offset: int) -> None:
        raise InvalidMetadata("lost my way")


async def test_a_single_voter_leads_when_start_returns(shell: Shell):
    shell.open()
    early = follow(shell)
    assert early.end_offset == 0
    await shell.quorum.start()
    late = follow(shell)
    assert early.leaders == late.leaders == [LeaderAndEpoch(1, 1)]
    assert early.end_offset == late.end_offset == shell.quorum.applied_offset == shell.quorum.end_offset == 6
    assert early.records == late.records
    assert shell.quorum.is_only_voter
    # quorum-state (unknown leader, vote, leader), LeaderChange, its read, first records: no write more than needed
    assert shell.flushes <= 7
    await shell.stop()
    assert early.leaders[-1] == LeaderAndEpoch(None, 1)


async def test_what_was_appended_here_is_replayed_from_memory(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    await shell.start()
    follower = follow(shell)

    def chunks(*_: object) -> Any:
        raise AssertionError("read from the log")

    monkeypatch.setattr(shell.quorum._log, "decoded_batches", chunks)
    records = [topic(1), topic(2)]
    base_offset = append(shell, *records)
    await settle()
    assert follower.records[-2:] == records
    assert follower.end_offset == base_offset + 2
    await shell.stop()


async def test_what_is_appended_beyond_the_bound_is_read_from_the_log(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
):
    """Nothing bounded what was kept in memory while the disk, or a majority, did not answer."""
    await shell.start()
    follower = follow(shell)
    event = asyncio.Event()
    shell.blocked.append(event)
    append(shell, topic(1))
    monkeypatch.setattr(
        "ottla.controller.quorum.listener_dispatch.MAX_APPENDED_BYTES",
        shell.quorum._dispatcher._appended_bytes,
    )
    for number in range(2, 6):
        append(shell, topic(number))
    assert len(shell.quorum._dispatcher._appended) == 1
    event.set()
    shell.blocked.clear()
    await settle()
    await settle()
    assert follower.records[-5:] == [topic(number) for number in range(1, 6)]
    assert shell.quorum._dispatcher._appended_bytes == 0
    append(shell, topic(6))
    await settle()
    assert follower.records[-1] == topic(6)
    await shell.stop()


# KIP-868
async def test_records_of_a_transaction_come_with_its_end(shell: Shell):
    await shell.start()
    follower = follow(shell)
    append(shell, r.BeginTransactionRecord(name="x"), topic(1))
    append(shell, topic(2))
    await settle()
    assert follower.end_offset == shell.quorum.end_offset
    assert follower.image.topics_by_name == {}
    assert shell.quorum.is_transaction_open
    late = follow(shell)
    append(shell, topic(3), r.EndTransactionRecord(), topic(4))
    await settle()
    assert not shell.quorum.is_transaction_open
    for each in (follower, late, follow(shell)):
        assert set(each.image.topics_by_name) == {"t1", "t2", "t3", "t4"}
    await shell.stop()


async def test_a_new_leader_aborts_what_was_left_open(shell: Shell):
    await shell.start()
    append(shell, r.BeginTransactionRecord(name="x"), topic(1))
    await settle()
    await shell.stop()
    await shell.start()
    follower = follow(shell)
    assert not shell.quorum.is_transaction_open
    assert follower.image.topics_by_name == {}
    await shell.stop()


@pytest.mark.logs("the metadata log cannot be processed any further; this node stops")
async def test_a_listener_that_has_lost_its_way_ends_the_node(shell: Shell):
    controller = await shell.start()
    shell.quorum._listeners.add(Broken())
    with pytest.raises(NotController):
        await join(controller)
    assert [str(failure) for failure in shell.failures] == ["lost my way"]
    assert shell.quorum.has_failed
    with pytest.raises(NotController):
        append(shell, topic(1))
    with pytest.raises(NotController):
        await shell.quorum.handle(DescribeQuorumRequest())
    await shell.stop()


async def test_a_disk_that_fails_at_the_start(shell: Shell):
    shell.open()
    shell.error = OSError(5, "I/O error")
    with pytest.raises(OSError, match="I/O error"):
        await shell.quorum.start()
    assert shell.failures == []  # its caller has got the error


async def test_requests_are_answered_or_refused(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    await shell.start()
    asked = DescribeQuorumRequest(
        topics=[TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)])]
    )
    described = await shell.quorum.handle(asked)
    row = described.topics[0].partitions[0]
    assert (row.leader_id, row.leader_epoch, row.high_watermark) == (1, 1, 6)
    monkeypatch.setattr("ottla.controller.quorum.driver.MAX_PENDING_REQUESTS", 0)
    with pytest.raises(NotController, match="Too many"):
        await shell.quorum.handle(asked)
    await shell.stop()


async def test_requests_are_refused_while_too_many_events_wait_for_the_actor(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
):
    """A disk that does not answer: peers give up and ask again, and each request that has been given up still waits."""
    await shell.start()
    event = asyncio.Event()
    shell.blocked.append(event)
    append(shell, topic(1))
    await settle()
    monkeypatch.setattr("ottla.controller.quorum.driver.MAX_QUEUED_EVENTS", 5)
    refused = 0
    for _ in range(20):
        asking = asyncio.ensure_future(shell.quorum.handle(DescribeQuorumRequest()))
        await asyncio.sleep(0)
        asking.cancel()
        try:
            await asking
        except NotController:
            refused += 1
        except asyncio.CancelledError:
            pass
    assert len(shell.quorum._driver._queue) == 5
    assert refused == 15
    shell.blocked.clear()
    event.set()
    await settle()
    assert await shell.quorum.handle(DescribeQuorumRequest())
    await shell.stop()


@pytest.mark.logs("the metadata log cannot be processed any further; this node stops")
async def test_an_actor_whose_awaited_work_is_cancelled_ends_the_node(shell: Shell):
    """asyncio would end the task in silence, and this voter would take no part in anything any more."""
    await shell.start()
    shell.error = asyncio.CancelledError()
    append(shell, topic(1))
    await settle()
    (failure,) = shell.failures
    assert isinstance(failure, asyncio.CancelledError)
    assert shell.quorum.has_failed
    shell.error = None
    await shell.stop()


async def test_a_resigned_leader_that_no_other_voter_can_replace(shell: Shell):
    controller = await shell.start()
    await join(controller)
    follower = follow(shell)
    event = asyncio.Event()
    shell.blocked.append(event)
    waits = asyncio.ensure_future(create(controller, "t"))
    await asyncio.sleep(0)
    shell.quorum.resign(1)
    event.set()
    await settle()
    shell.blocked.clear()
    # Between one and two election timeouts later it runs again, and wins.
    shell.seconds += 2
    shell.quorum._driver._queue.wakeup()
    await settle()
    assert follower.leaders == [LeaderAndEpoch(1, 1), LeaderAndEpoch(None, 1), LeaderAndEpoch(1, 3)]
    assert controller.epoch == 3
    assert (await waits).topics[0].error_code == 0  # it was committed before the resignation had its turn
    assert controller.image == follower.image
    await shell.stop()


# -- snapshots -----------------------------------------------------------------------------------------


# KIP-630
async def test_snapshots_take_the_place_of_the_log(shell: Shell):
    settings = MetadataLogSettings(
        max_record_bytes_between_snapshots=2_000, max_retention_bytes=5_000, log_segment_bytes=1_000
    )
    shell.log_settings = settings
    controller = shell.open()
    follower = follow(shell)
    shell.quorum.subscribe(
        SnapshotGenerator(shell.quorum, image=lambda: follower.image, settings=settings, runtime=shell)
    )
    await shell.quorum.start()
    await join(controller)
    for number in range(60):
        await create(controller, f"t{number}")
        await settle()
    shell.seconds += CLEAN_INTERVAL_MS / 1000
    shell.quorum._driver._queue.wakeup()
    await settle()
    assert shell.quorum._log.log_start_offset > 0
    await shell.stop()
    names = {path.name for path in (shell.log_dir / "__cluster_metadata-0").iterdir()}
    assert f"{0:020d}.log" not in names
    shell.open()
    again = follow(shell)
    await shell.quorum.start()
    assert again.snapshots
    assert again.image == follower.image == shell.controller.image
    late = follow(shell)
    assert late.image == again.image
    await shell.stop()


async def test_no_snapshot_within_a_transaction(shell: Shell):
    await shell.start()
    follower = follow(shell)
    append(shell, r.BeginTransactionRecord(name="x"), topic(1))
    await settle()
    assert not shell.quorum.write_snapshot(follower.image.copy)
    append(shell, r.AbortTransactionRecord(reason="x"))
    await settle()
    assert shell.quorum.write_snapshot(follower.image.copy)
    assert not shell.quorum.write_snapshot(follower.image.copy), "one at a time"
    await shell.stop()
    log_dir = shell.log_dir / "__cluster_metadata-0"
    (name,) = [path.name for path in log_dir.iterdir() if path.suffix == snapshots.SUFFIX]
    assert name == f"{9:020d}-{1:010d}.checkpoint"


async def test_a_snapshot_that_cannot_be_written_is_no_end(shell: Shell, caplog: pytest.LogCaptureFixture):
    await shell.start()
    follower = follow(shell)
    shell.error = OSError(28, "No space left on device")
    assert shell.quorum.write_snapshot(follower.image.copy)
    await settle()
    shell.error = None
    assert "was not written" in caplog.text
    assert not shell.failures
    await shell.stop()


async def test_snapshots_that_are_due_and_cannot_be(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    follower = Follower()
    settings = MetadataLogSettings(max_record_bytes_between_snapshots=1, max_snapshot_interval_ms=0)
    shell.open()
    shell.quorum.subscribe(follower)
    shell.quorum.subscribe(
        SnapshotGenerator(shell.quorum, image=lambda: follower.image, settings=settings, runtime=shell)
    )
    tried: list[int] = []

    def create_snapshot(end_offset: int) -> None:
        tried.append(end_offset)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shell.quorum._log, "create_snapshot", create_snapshot)
    await shell.quorum.start()
    # LeaderChange alone has no metadata.version that a snapshot could be written in: the first records have.
    assert tried == [6]
    assert "a snapshot of the metadata log cannot be started" in caplog.text
    assert "could not follow" not in caplog.text
    await shell.stop()


# -- sending -------------------------------------------------------------------------------------------


async def test_a_voter_that_knows_no_pre_votes(shell: Shell):
    await shell.start()
    answers: list[Any] = []

    async def send(to: Address, message: Any, timeout_ms: int) -> Any:
        raise UnsupportedVersion

    shell.quorum._driver._send = send
    shell.quorum._raft.answered = lambda now_ms, sent, response: answers.append(response) or []
    for message in (VoteRequest(), DescribeQuorumRequest()):
        sent = Send(to=Address("x", 1), node_id=2, message=message, timeout_ms=10, correlation_id=1)
        await shell.quorum._driver._send_request(sent)
    await settle()
    assert answers[0].error_code == UnsupportedVersion.code
    assert answers[1] is None
    await shell.stop()


async def test_a_request_that_fails_as_no_request_should(shell: Shell, caplog: pytest.LogCaptureFixture):
    await shell.start()
    sent = Send(to=Address("x", 1), node_id=2, message=VoteRequest(), timeout_ms=10, correlation_id=1)
    await shell.quorum._driver._send_request(sent)  # the shell's `send` raises AssertionError
    assert "has failed" in caplog.text
    await shell.stop()
