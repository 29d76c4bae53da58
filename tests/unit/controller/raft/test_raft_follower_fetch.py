"""Responses to Fetch and FetchSnapshot change a follower and its log."""

from typing import Any
from uuid import UUID

import pytest
from raft_support import fetch_answer

from ottla.controller.raft.effects import Committed, Fatal, Flush, Freeze, LeaderChanged, Send, SnapshotLoaded
from ottla.controller.raft.follower_fetch import truncation_offset
from ottla.controller.raft.roles import Follower, Prospective, Unattached
from ottla.controller.raft.types import TOPIC, TOPIC_ID, ElectionState, LeaderAndEpoch, OffsetAndEpoch
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.messages import fetch, fetch_snapshot
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from ottla.protocol.messages.vote import VoteRequest
from ottla.stories.quorum.raft_replicas import LISTENER, MemoryLog, Replica, address, directory, settings

EPOCH = 5


def follower(log: MemoryLog | None = None, **others: Any) -> Replica:
    """Node 1 follows node 2 in epoch 5, and has sent its first Fetch."""
    state = ElectionState(leader_epoch=EPOCH, leader_id=2, kraft_version=0)
    replica = Replica(settings(1, **others), log=log, election=state)
    assert isinstance(replica.role, Follower)
    return replica


def log_of(*epochs: int) -> MemoryLog:
    """One record of each epoch."""
    log = MemoryLog()
    for epoch in epochs:
        log.append(f"{epoch}", epoch=epoch)
    return log


def records_of(*epochs: int, at: int = 0) -> bytes:
    """The records in the leader's log from `at` on."""
    return log_of(*epochs).read(at, max_bytes=10_000)


def answer_fetch(replica: Replica, answer: FetchResponse | None) -> list[Any]:
    (sent,) = replica.sent(FetchRequest)
    return replica.answer(sent, answer)


def asked(replica: Replica) -> fetch.FetchPartition:
    """The Fetch that is under way."""
    (sent,) = replica.sent(FetchRequest)
    row: fetch.FetchPartition = sent.message.topics[0].partitions[0]
    return row


def test_a_fetch_has_the_log_end_offset_the_last_epoch_and_the_high_watermark() -> None:
    replica = follower(log_of(1, 3))
    (sent,) = replica.sent(FetchRequest)
    assert (sent.to, sent.node_id) == (address(2), 2)
    request, row = sent.message, asked(replica)
    assert (request.cluster_id, request.replica_state.replica_id) == (replica.settings.cluster_id, 1)
    assert (request.max_wait_ms, request.max_bytes) == (500, 1024 * 1024)
    assert (row.fetch_offset, row.last_fetched_epoch, row.current_leader_epoch) == (2, 3, EPOCH)
    assert (row.replica_directory_id, row.high_watermark) == (directory(1), -1)


def test_records_are_durable_before_the_next_fetch() -> None:
    replica = follower()
    effects = answer_fetch(replica, fetch_answer(records_of(1, 1, 3), high_watermark=2))
    assert effects[0] == Flush(3)
    kinds = [type(each) for each in effects]
    assert kinds.index(Flush) < kinds.index(Send)
    assert Committed(2) in effects
    assert asked(replica).fetch_offset == 3
    assert asked(replica).high_watermark == 2
    assert replica.role.has_fetched


def test_a_broker_does_not_flush() -> None:
    replica = Replica(
        settings(9, can_become_voter=False),
        election=ElectionState(leader_epoch=EPOCH, leader_id=2, kraft_version=0),
    )
    effects = answer_fetch(replica, fetch_answer(records_of(1)))
    assert Flush not in [type(each) for each in effects]
    assert asked(replica).fetch_offset == 1


def test_the_high_watermark_is_what_is_here_and_never_moves_back() -> None:
    replica = follower()
    answer_fetch(replica, fetch_answer(records_of(1, 1), high_watermark=9))
    assert replica.raft.high_watermark == 2
    answer_fetch(replica, fetch_answer(records_of(1, 1, 1, at=2), high_watermark=1))
    assert replica.raft.high_watermark == 2
    answer_fetch(replica, fetch_answer(high_watermark=-1))
    answer_fetch(replica, fetch_answer(high_watermark=3))
    assert replica.raft.high_watermark == 3
    assert replica.of(Committed) == [Committed(2), Committed(3)]


@pytest.mark.parametrize("cut", [1, 30, 61])
@pytest.mark.logs("are valid; the others are fetched again")
def test_damaged_records_are_asked_for_again_after_a_pause(cut: int) -> None:
    replica = follower()
    sound = records_of(1)
    damaged = bytearray(records_of(1, 1))
    damaged[-cut] ^= 0xFF
    answer_fetch(replica, fetch_answer(bytes(damaged)))
    assert replica.log.end.offset == 1
    assert replica.log.read(0, max_bytes=9_999) == sound
    assert [each.node_id for each in replica.sent(FetchRequest)] == [3]  # which may know a better leader
    answer_fetch(replica, None)
    replica.pass_time(20)
    assert [each.node_id for each in replica.sent(FetchRequest)] == [2]


def test_records_that_the_own_disk_refuses_end_the_node() -> None:
    """A retry would not help: the log is offline, and the follower would seem alive and never catch up."""

    class FullDisk(MemoryLog):
        def append_as_follower(self, data: bytes | memoryview, *, epoch: int) -> None:
            raise KafkaStorageError("no space left on the device")

    replica = follower(FullDisk())
    with pytest.raises(KafkaStorageError):
        answer_fetch(replica, fetch_answer(records_of(1)))


@pytest.mark.logs("are valid; the others are fetched again")
def test_records_of_a_later_epoch_than_the_leaders_are_not_taken() -> None:
    replica = follower()
    answer_fetch(replica, fetch_answer(records_of(EPOCH + 1)))
    assert replica.log.end.offset == 0


# KIP-595
@pytest.mark.parametrize(
    ("mine", "diverging", "offset"),
    [
        #  my epochs          leader's end   cut at
        ((1, 1, 3, 3),        (2, 1),        2),   # epoch 3 is only mine
        ((1, 1, 1),           (2, 1),        2),   # I have more of epoch 1
        ((1, 3, 3),           (4, 3),        3),   # the leader has more of epoch 3: what I have agrees so far
        ((1, 1, 4, 4),        (5, 3),        2),   # the leader's epoch 3 is not mine: epoch 1 is all that may agree
        ((2, 2),              (1, 1),        0),
        ((1, 1),              (0, 0),        0),
    ],
)  # fmt: skip
def test_where_a_log_is_cut(mine: tuple[int, ...], diverging: tuple[int, int], offset: int) -> None:
    log = log_of(*mine)
    assert truncation_offset(log, OffsetAndEpoch(*diverging)) == offset
    replica = follower(log)
    effects = answer_fetch(replica, fetch_answer(diverging=diverging))
    assert replica.log.end.offset == offset
    kinds = [type(each) for each in effects]
    assert kinds.index(Flush) < kinds.index(Send)
    assert asked(replica).fetch_offset == offset


@pytest.mark.logs("this node's replica of the metadata log stops")
def test_what_is_committed_is_never_cut() -> None:
    replica = follower()
    answer_fetch(replica, fetch_answer(records_of(1, 1, 3), high_watermark=3))
    effects = answer_fetch(replica, fetch_answer(diverging=(2, 1)))
    assert [each for each in effects if isinstance(each, Fatal)]
    assert replica.log.end.offset == 3
    assert not replica.raft.tick(replica.now_ms + 10_000)


@pytest.mark.parametrize(
    ("answer", "role", "leader", "epoch"),
    [
        (fetch_answer(error=ErrorCode.fenced_leader_epoch, leader=3, epoch=8), Follower, 3, 8),
        (fetch_answer(error=ErrorCode.not_leader_or_follower, leader=3, epoch=8), Follower, 3, 8),
        (fetch_answer(error=ErrorCode.fenced_leader_epoch, leader=-1, epoch=8), Unattached, None, 8),
        (fetch_answer(error=ErrorCode.fenced_leader_epoch, leader=9, epoch=8), Unattached, 9, 8),
        (fetch_answer(error=ErrorCode.fenced_leader_epoch, leader=9, epoch=8, endpoint=True), Follower, 9, 8),
        (fetch_answer(epoch=4, leader=3), Follower, 2, EPOCH),
        (fetch_answer(error=ErrorCode.unknown_leader_epoch, epoch=4, leader=3), Follower, 2, EPOCH),
        (fetch_answer(leader=3), Follower, 2, EPOCH),  # two leaders in one epoch: not believed
        (fetch_answer(error=ErrorCode.invalid_request), Follower, 2, EPOCH),
        (fetch_answer(error=ErrorCode.broker_not_available), Follower, 2, EPOCH),
        (fetch_answer(error=ErrorCode.unknown_server_error), Follower, 2, EPOCH),
        (FetchResponse(), Follower, 2, EPOCH),
        (FetchResponse(error_code=ErrorCode.inconsistent_cluster_id), Follower, 2, EPOCH),
        (FetchResponse(responses=[fetch.FetchableTopicResponse(topic_id=TOPIC_ID)]), Follower, 2, EPOCH),
        (fetch_answer(snapshot=(3, -1)), Follower, 2, EPOCH),
        (fetch_answer(snapshot=(-1, 3)), Follower, 2, EPOCH),
        (None, Follower, 2, EPOCH),
    ],
)
@pytest.mark.logs("inconsistent with the known leader", "names an invalid snapshot", "returned an error in")
def test_what_an_answer_teaches(
    answer: FetchResponse | None, role: type, leader: int | None, epoch: int
) -> None:
    replica = follower()
    answer_fetch(replica, answer)
    assert type(replica.role) is role
    assert (replica.role.leader_id, replica.role.epoch) == (leader, epoch)
    assert replica.election is not None
    assert replica.election.leader_epoch == epoch
    if epoch > EPOCH and leader is not None:
        assert replica.of(LeaderChanged)[-1] == LeaderChanged(LeaderAndEpoch(leader, epoch))


@pytest.mark.logs("names an invalid snapshot")
def test_a_snapshot_of_a_later_epoch_than_the_leaders_is_refused() -> None:
    """Its records would be in the log before the leader of their epoch is known."""
    replica = follower()
    answer_fetch(replica, fetch_answer(snapshot=(3, EPOCH + 1)))
    assert isinstance(replica.role, Follower)
    assert replica.role.download is None
    answer_fetch(replica, fetch_answer(snapshot=(3, EPOCH)))
    assert replica.role.download is not None


def test_while_the_leader_is_silent_others_are_asked_and_then_an_election_is_tried() -> None:
    replica = follower()
    answer_fetch(replica, None)
    asked_nodes = []
    for _ in range(200):
        replica.pass_time(10)
        for sent in replica.sent(FetchRequest):
            asked_nodes.append(sent.node_id)
            replica.answer(sent, None)
        if not isinstance(replica.role, Follower):
            break
    assert {2, 3} <= set(asked_nodes)
    assert isinstance(replica.role, Prospective)
    assert replica.role.epoch == EPOCH
    assert replica.sent(VoteRequest)


@pytest.mark.logs("returned an error in")
def test_only_good_answers_put_the_election_off() -> None:
    replica = follower()
    for _ in range(19):
        replica.pass_time(100)
        for sent in replica.sent(FetchRequest):
            replica.answer(sent, fetch_answer())
    assert isinstance(replica.role, Follower)
    for _ in range(21):
        replica.pass_time(100)
        for sent in replica.sent(FetchRequest):
            replica.answer(sent, fetch_answer(error=ErrorCode.unknown_server_error))
    assert isinstance(replica.role, Prospective)


def test_one_fetch_at_a_time() -> None:
    replica = follower()
    for _ in range(15):
        replica.pass_time(100)
    assert len(replica.sent(FetchRequest)) == 1


def test_a_leader_is_found_through_bootstrap_servers_and_durably_before_its_records() -> None:
    servers = (address(7), address(8))
    replica = Replica(
        settings(9, (), bootstrap_servers=servers, can_become_voter=False),
        election=ElectionState(leader_epoch=3, leader_id=None, kraft_version=1),
    )
    (sent,) = replica.sent(FetchRequest)
    assert sent.to in servers
    assert sent.node_id < -1
    answer = fetch_answer(leader=7, epoch=3, records=records_of(1, 2), high_watermark=2, endpoint=True)
    replica.answer(sent, answer)
    assert isinstance(replica.role, Follower)
    assert replica.role.leader_endpoints == {LISTENER: address(7)}
    assert replica.raft.leader_address == address(7)
    assert replica.election is not None
    assert replica.election.leader_id == 7
    assert replica.log.end.offset == 0
    (sent,) = replica.sent(FetchRequest)
    assert sent.node_id == 7
    replica.answer(sent, answer)
    assert replica.raft.high_watermark == 2


def test_bootstrap_servers_that_know_no_leader_are_not_asked_without_a_pause() -> None:
    replica = Replica(settings(9, (), bootstrap_servers=(address(7),), can_become_voter=False))
    unknown = fetch_answer(error=ErrorCode.not_leader_or_follower, leader=-1, epoch=0)
    count = 0
    for _ in range(100):
        replica.pass_time(1)
        for sent in replica.sent(FetchRequest):
            count += 1
            replica.answer(sent, unknown)
    assert count <= 100 // replica.settings.retry_backoff_ms + 1


# -- snapshots ---------------------------------------------------------------------------------------


def piece(data: bytes, *, size: int, position: int = 0, id: tuple[int, int] = (7, 3), **others: Any) -> Any:
    row = fetch_snapshot.PartitionSnapshotResponse(
        error_code=others.get("error", ErrorCode.none),
        snapshot_id=fetch_snapshot.SnapshotId(end_offset=id[0], epoch=id[1]),
        current_leader=fetch_snapshot.LeaderIdAndEpoch(leader_id=2, leader_epoch=EPOCH),
        size=size,
        position=position,
        unaligned_records=data,
    )
    topics = [fetch_snapshot.TopicSnapshotResponse(name=TOPIC, partitions=[row])]
    return FetchSnapshotResponse(topics=topics)


def whole_snapshot() -> bytes:
    other = MemoryLog()
    other.snapshot(OffsetAndEpoch(7, 3))
    return other.snapshots[OffsetAndEpoch(7, 3)]


def fetching_snapshot(log: MemoryLog | None = None) -> tuple[Replica, Send]:
    replica = follower(log if log is not None else log_of(1, 1))
    answer_fetch(replica, fetch_answer(snapshot=(7, 3)))
    assert not replica.sent(FetchRequest)
    (sent,) = replica.sent(FetchSnapshotRequest)
    return replica, sent


# KIP-630
def test_a_snapshot_arrives_in_chunks_and_the_log_starts_at_its_end() -> None:
    replica, sent = fetching_snapshot()
    data = whole_snapshot()
    row = sent.message.topics[0].partitions[0]
    assert (row.position, row.snapshot_id) == (0, fetch_snapshot.SnapshotId(end_offset=7, epoch=3))
    assert (row.current_leader_epoch, row.replica_directory_id) == (EPOCH, directory(1))
    replica.answer(sent, piece(data[:10], size=len(data)))
    (sent,) = replica.sent(FetchSnapshotRequest)
    assert sent.message.topics[0].partitions[0].position == 10
    effects = replica.answer(sent, piece(data[10:], size=len(data), position=10))
    assert SnapshotLoaded(OffsetAndEpoch(7, 3)) in effects
    assert Committed(7) in effects
    assert replica.log.end == OffsetAndEpoch(7, 3)
    assert (asked(replica).fetch_offset, asked(replica).last_fetched_epoch) == (7, 3)


@pytest.mark.parametrize("is_corrupt", [False, True])
@pytest.mark.logs("is corrupt, and is fetched again")
def test_a_thread_validates_the_snapshot_before_anything_else_is_fetched(is_corrupt: bool) -> None:
    """Reading and flushing all of it held the event loop up."""
    replica, sent = fetching_snapshot()
    data = b"not a batch" if is_corrupt else whole_snapshot()
    effects = replica.raft.answered(replica.now_ms, sent, piece(data, size=len(data)))
    assert effects == [Freeze(replica.role.download)]
    assert replica.log.latest_snapshot is None
    effects = replica.do(effects)
    kinds = [type(each) for each in effects]
    if is_corrupt:
        assert 2 not in [each.node_id for each in effects if isinstance(each, Send)]
        replica.pass_time(50)  # the leader is asked again after a backoff
        assert asked(replica).fetch_offset == 2
    else:
        assert kinds.index(Freeze) < kinds.index(Flush) < kinds.index(SnapshotLoaded) < kinds.index(Send)


@pytest.mark.parametrize(
    "answer",
    [
        piece(b"", size=0, error=ErrorCode.snapshot_not_found),
        piece(b"", size=0, error=ErrorCode.position_out_of_range),
        piece(b"", size=0, error=ErrorCode.unknown_server_error),
        piece(b"x", size=9, id=(8, 3)),
        piece(b"x", size=9, id=(-1, -1)),
        piece(b"x", size=9, position=1),
        piece(b"x" * 10, size=9),
        piece(b"", size=9),
        piece(b"not a batch", size=11),
    ],
)
@pytest.mark.logs(
    "is corrupt, and is fetched again",
    "other than the requested one; the download starts again",
    "returned an error in",
)
def test_a_snapshot_that_cannot_be_is_given_up(answer: FetchSnapshotResponse) -> None:
    replica, sent = fetching_snapshot()
    download = replica.role.download
    replica.answer(sent, answer)
    replica.pass_time(50)
    assert replica.role.download is None
    assert download.is_deleted
    assert asked(replica).fetch_offset == 2  # from the beginning
    assert not replica.of(SnapshotLoaded)


@pytest.mark.parametrize("answer", [None, FetchSnapshotResponse(), FetchSnapshotResponse(error_code=42)])
@pytest.mark.logs("returned an error in")
def test_no_answer_is_asked_for_again(answer: FetchSnapshotResponse | None) -> None:
    replica, sent = fetching_snapshot()
    replica.answer(sent, answer)
    for _ in range(50):
        replica.pass_time(10)
        for other in replica.sent(FetchRequest):
            replica.answer(other, None)
        if replica.sent(FetchSnapshotRequest):
            return
    raise AssertionError(replica.sends)


def test_a_new_leader_ends_the_download() -> None:
    replica, sent = fetching_snapshot()
    download = replica.role.download
    answer = piece(b"x", size=9, error=ErrorCode.fenced_leader_epoch)
    answer.topics[0].partitions[0].current_leader = fetch_snapshot.LeaderIdAndEpoch(
        leader_id=3, leader_epoch=9
    )
    replica.answer(sent, answer)
    assert (replica.role.leader_id, replica.role.epoch) == (3, 9)
    assert download.is_deleted


def test_a_snapshot_that_is_here_already_is_used() -> None:
    log = log_of(1, 1)
    log.snapshot(OffsetAndEpoch(7, 3))
    replica = follower(log)
    answer_fetch(replica, fetch_answer(snapshot=(7, 3)))
    assert replica.of(SnapshotLoaded) == [SnapshotLoaded(OffsetAndEpoch(7, 3))]
    assert asked(replica).fetch_offset == 7


@pytest.mark.logs("returned an error in")
def test_records_of_another_topic_are_none() -> None:
    replica = follower()
    answer = fetch_answer(records_of(1))
    answer.responses[0].topic_id = UUID(int=9)
    answer_fetch(replica, answer)
    assert replica.log.end.offset == 0


@pytest.mark.parametrize("mine", [(1, 4), (1, 2, 2, 4, 4)])
def test_a_log_that_ends_in_a_later_epoch_than_the_snapshot_gives_way(mine: tuple[int, ...]) -> None:
    """A leader of epoch 4 that only this node has followed: the next leader never saw its records.

    Kafka's node stops, as its truncateToLatestSnapshot compares epochs first.
    """
    log = log_of(*mine)
    replica, sent = fetching_snapshot(log)
    data = whole_snapshot()
    replica.answer(sent, piece(data, size=len(data)))
    assert replica.of(SnapshotLoaded) == [SnapshotLoaded(OffsetAndEpoch(7, 3))]
    assert replica.log.end == OffsetAndEpoch(7, 3)
    assert asked(replica).fetch_offset == 7


@pytest.mark.logs("this node's replica of the metadata log stops")
def test_a_snapshot_that_ends_before_what_is_committed_is_the_end() -> None:
    replica = follower()
    answer_fetch(replica, fetch_answer(records_of(1, 1, 3), high_watermark=3))
    effects = answer_fetch(replica, fetch_answer(snapshot=(2, 1)))
    assert [each for each in effects if isinstance(each, Fatal)]


def test_a_leader_that_does_not_answer_is_asked_again_after_others() -> None:
    replica = follower(fetch_timeout_ms=10_000)
    replica.pass_time(2_000)
    other = replica.sends[-1]
    assert other.node_id in (2, 3)  # any voter
    assert len(replica.sent(FetchRequest)) == 2
    replica.answer(other, fetch_answer())
    assert replica.sends[-1].node_id == 2


def test_what_a_node_refuses_again_and_again_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    replica = follower(fetch_timeout_ms=10_000)
    for _ in range(50):
        for sent in replica.sent(FetchRequest):
            replica.answer(sent, FetchResponse(error_code=ErrorCode.inconsistent_cluster_id))
        replica.pass_time(20)
    said = [each for each in caplog.records if "inconsistent_cluster_id" in each.getMessage()]
    assert len(said) == 2  # by nodes 2 and 3
