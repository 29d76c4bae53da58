"""Fetch and FetchSnapshot as a leader answers them."""

from typing import Any
from uuid import UUID

import pytest
from raft_support import Cluster, fetch_request

from ottla.controller.raft.roles import Leader
from ottla.controller.raft.types import TOPIC, Address, OffsetAndEpoch
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages import fetch, fetch_snapshot
from ottla.protocol.messages.fetch import EpochEndOffset, FetchResponse, PartitionData, SnapshotId
from ottla.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from ottla.stories.quorum.raft_replicas import CLUSTER_ID, Replica, address, directory


@pytest.fixture
def leader() -> Replica:
    """The leader of three, alone in the world; a, b, c are committed behind LeaderChange."""
    cluster = Cluster.static(3)
    leader = cluster.elect()
    for value in "abc":
        leader.write(value)
    cluster.run_until(lambda: leader.raft.high_watermark == 4)
    leader.pass_time(600)  # the followers' last Fetches are answered
    leader.sends.clear()
    leader.replies.clear()
    return leader


def other(leader: Replica) -> int:
    return min({1, 2, 3} - {leader.id})


def ask(
    leader: Replica, *, id: int | None = None, offset: int = 0, epoch: int | None = None, **others: Any
) -> Any:
    mine = leader.role.epoch
    return leader.ask(
        fetch_request(
            other(leader) if id is None else id,
            offset=offset,
            epoch=(mine if offset else 0) if epoch is None else epoch,
            leader_epoch=others.pop("leader_epoch", mine),
            **others,
        )
    )


def row_of(response: FetchResponse) -> PartitionData:
    return response.responses[0].partitions[0]


def test_records_and_the_high_watermark(leader: Replica) -> None:
    row = row_of(ask(leader, offset=1))
    assert row.error_code == 0
    assert row.records == leader.log.read(1, max_bytes=10_000)
    assert (row.high_watermark, row.log_start_offset) == (4, 0)
    assert row.current_leader == fetch.LeaderIdAndEpoch(leader_id=leader.id, leader_epoch=leader.role.epoch)


def test_a_response_is_no_larger_than_its_bound(leader: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fetch_request(other(leader), offset=1, epoch=leader.role.epoch, leader_epoch=leader.role.epoch)
    asked.max_bytes = 2**31 - 1
    everything = row_of(leader.ask(asked)).records
    assert everything == leader.log.read(1, max_bytes=10_000)
    leader.log.snapshot(OffsetAndEpoch(3, 0))
    monkeypatch.setattr("ottla.controller.raft.fetch_responses.MAX_RESPONSE_BYTES", 70)
    assert row_of(leader.ask(asked)).records == leader.log.read(1, max_bytes=70) < everything
    piece = piece_of(leader.ask(snapshot_request(leader, max_bytes=2**31 - 1)))
    assert len(piece.unaligned_records or b"") == 70


def test_the_answer_says_where_the_leader_is(leader: Replica) -> None:
    (endpoint,) = ask(leader).node_endpoints
    assert (endpoint.node_id, Address(endpoint.host, endpoint.port)) == (leader.id, address(leader.id))


@pytest.mark.parametrize(
    ("others", "error"),
    [
        ({"leader_epoch": -1}, ErrorCode.fenced_leader_epoch),
        ({"leader_epoch": 1_000}, ErrorCode.unknown_leader_epoch),
        ({"offset": -1, "epoch": 0}, ErrorCode.invalid_request),
        ({"epoch": -1}, ErrorCode.invalid_request),
        ({"epoch": 999}, ErrorCode.invalid_request),
        ({"max_wait_ms": -1}, ErrorCode.invalid_request),
    ],
)
def test_refused_in_the_partitions_row(leader: Replica, others: dict[str, Any], error: ErrorCode) -> None:
    epoch = others.get("leader_epoch")
    if epoch == -1:
        others = others | {"leader_epoch": leader.role.epoch - 1}
    row = row_of(ask(leader, **others))
    assert row.error_code == error
    assert (row.records, row.high_watermark) == (b"", -1)
    assert row.current_leader.leader_id == leader.id


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"cluster_id": "other"}, ErrorCode.inconsistent_cluster_id),
        ({"topics": []}, ErrorCode.invalid_request),
        ({"topics": [fetch.FetchTopic(topic_id=UUID(int=1))]}, ErrorCode.invalid_request),
        (
            {"topics": [fetch.FetchTopic(topic_id=UUID(int=1), partitions=[fetch.FetchPartition()] * 2)]},
            ErrorCode.invalid_request,
        ),
        (
            {"topics": [fetch.FetchTopic(topic_id=UUID(int=2), partitions=[fetch.FetchPartition()])]},
            ErrorCode.invalid_request,
        ),
        (
            {"topics": [fetch.FetchTopic(topic_id=UUID(int=1), partitions=[fetch.FetchPartition(partition=1)])]},
            ErrorCode.invalid_request,
        ),
    ],
)  # fmt: skip
def test_refused_as_a_whole(leader: Replica, change: dict[str, Any], error: ErrorCode) -> None:
    request = fetch_request(other(leader), offset=0, epoch=0, leader_epoch=leader.role.epoch)
    for name, value in change.items():
        setattr(request, name, value)
    response = leader.ask(request)
    assert response.error_code == error
    assert not response.responses


def test_a_request_without_cluster_id_is_accepted(leader: Replica) -> None:
    assert row_of(ask(leader, cluster_id=None)).error_code == 0


def test_a_node_that_does_not_lead_names_the_leader() -> None:
    cluster = Cluster.static(3)
    leader = cluster.elect()
    follower = next(each for each in cluster.replicas.values() if each is not leader)
    row = row_of(ask(follower, id=9))
    assert row.error_code == ErrorCode.not_leader_or_follower
    assert row.current_leader.leader_id == leader.id


def test_a_leader_that_is_stopping_refuses_requests(leader: Replica) -> None:
    leader.do(leader.raft.shutdown(leader.now_ms))
    assert row_of(ask(leader)).error_code == ErrorCode.not_leader_or_follower


@pytest.mark.logs("its requests are refused; set a unique node.id on every node")
def test_another_node_with_the_leaders_id_is_refused(leader: Replica) -> None:
    row = row_of(ask(leader, id=leader.id, directory_id=UUID(int=9)))
    assert row.error_code == ErrorCode.unknown_server_error


def test_a_consumer_moves_nothing(leader: Replica) -> None:
    assert row_of(ask(leader, id=-1, offset=1)).records
    assert -1 not in [key.id for key in leader.role.followers.observers]


def test_older_versions_have_the_replica_elsewhere(leader: Replica) -> None:
    request = fetch_request(-1, offset=1, epoch=leader.role.epoch, leader_epoch=leader.role.epoch)
    request.replica_id = 9
    assert leader.ask(request) is not None
    assert [key.id for key in leader.role.followers.observers] == [9]


# -- the follower's log ------------------------------------------------------------------------------


def history(leader: Replica) -> int:
    """Give the leader a log with epochs 1 and 3 before its own: 0-1 epoch 1, 2-4 epoch 3; returns its epoch."""
    log = leader.log
    log.batches = []
    log.append("a", "b", epoch=1)
    log.append("c", "d", "e", epoch=3)
    epoch = 7
    log.append("f", epoch=epoch)
    log.high_watermark = 0
    leader.role.epoch = epoch
    return epoch


@pytest.mark.parametrize(
    ("offset", "epoch", "diverging"),
    [
        (0, 0, None),
        (2, 1, None),
        (5, 3, None),
        (3, 3, None),             # shorter, but the same
        (3, 1, (2, 1)),           # has more of epoch 1 than there was
        (4, 2, (2, 1)),           # epoch 2 never was here
        (9, 3, (5, 3)),
        (6, 5, (5, 3)),
        (6, 7, None),
        (9, 7, (6, 7)),
    ],
)  # fmt: skip
def test_diverging_epochs(
    leader: Replica, offset: int, epoch: int, diverging: tuple[int, int] | None
) -> None:
    history(leader)
    row = row_of(ask(leader, offset=offset, epoch=epoch, max_wait_ms=0))
    if diverging is None:
        assert row.diverging_epoch == EpochEndOffset()
        assert bytes(row.records or b"") == leader.log.read(offset, max_bytes=10_000)
    else:
        assert row.diverging_epoch == EpochEndOffset(end_offset=diverging[0], epoch=diverging[1])
        assert not row.records
        assert leader.role.followers.voters[other(leader)].last_fetch_ms != leader.now_ms  # it does not count


def test_an_empty_log_gets_a_snapshot_if_there_is_one(leader: Replica) -> None:
    epoch = leader.role.epoch
    leader.log.snapshot(OffsetAndEpoch(0, 0))
    assert (
        row_of(ask(leader)).snapshot_id == SnapshotId()
    )  # what the directory was formatted with is not meant
    leader.log.snapshot(OffsetAndEpoch(3, epoch))
    assert row_of(ask(leader)).snapshot_id == SnapshotId(end_offset=3, epoch=epoch)
    assert row_of(ask(leader, offset=2)).records
    leader.log.begin_at(3)
    assert row_of(ask(leader, offset=2)).snapshot_id == SnapshotId(end_offset=3, epoch=epoch)
    assert row_of(ask(leader, offset=3)).records


# -- long poll ---------------------------------------------------------------------------------------


def test_without_new_data_the_response_waits_for_records(leader: Replica) -> None:
    assert ask(leader, offset=4, high_watermark=4) is None
    leader.write("d")
    (response,) = leader.replies.values()
    assert row_of(response).records == leader.log.read(4, max_bytes=10_000)
    assert leader.role.followers.voters[other(leader)].end_offset == 4


def test_without_new_data_the_response_is_delayed_until_the_deadline(leader: Replica) -> None:
    assert ask(leader, offset=4, high_watermark=4, max_wait_ms=300) is None
    leader.pass_time(299)
    assert not leader.replies
    leader.pass_time(1)
    (response,) = leader.replies.values()
    row = row_of(response)
    assert (row.error_code, row.records, row.high_watermark) == (0, b"", 4)


# KIP-1166
def test_a_fetch_with_a_stale_high_watermark_is_answered_at_once(leader: Replica) -> None:
    assert row_of(ask(leader, offset=4, high_watermark=3)).high_watermark == 4
    assert ask(leader, offset=4, high_watermark=2**63 - 1) is None  # versions before 18 do not say it


def test_a_high_watermark_that_moves_completes_all_delayed_fetches(leader: Replica) -> None:
    a, b = {1, 2, 3} - {leader.id}
    leader.write("d")
    assert ask(leader, id=9, offset=5, high_watermark=4) is None
    row_of(ask(leader, id=a, offset=4, high_watermark=4))
    assert leader.raft.high_watermark == 4
    ask(leader, id=b, offset=5, high_watermark=4)
    rows = [row_of(each) for each in leader.replies.values()]
    assert [each.high_watermark for each in rows] == [5]


def test_who_waits_is_sent_on_when_the_leader_is_none_any_more(leader: Replica) -> None:
    assert ask(leader, offset=4, high_watermark=4) is None
    leader.do(leader.raft.resign(leader.now_ms, leader.role.epoch))
    (response,) = leader.replies.values()
    assert row_of(response).error_code == ErrorCode.not_leader_or_follower


def test_no_wait_is_no_wait(leader: Replica) -> None:
    assert row_of(ask(leader, offset=4, high_watermark=4, max_wait_ms=0)).error_code == 0


# -- FetchSnapshot -----------------------------------------------------------------------------------


def snapshot_request(
    leader: Replica,
    *,
    snapshot: tuple[int, int] = (3, 0),
    position: int = 0,
    max_bytes: int = 10_000,
    topic: str = TOPIC,
    partition: int = 0,
    epoch: int | None = None,
    cluster_id: str | None = CLUSTER_ID,
) -> FetchSnapshotRequest:
    row = fetch_snapshot.PartitionSnapshot(
        partition=partition,
        current_leader_epoch=leader.role.epoch if epoch is None else epoch,
        snapshot_id=fetch_snapshot.SnapshotId(end_offset=snapshot[0], epoch=snapshot[1]),
        position=position,
        replica_directory_id=directory(other(leader)),
    )
    topics = [fetch_snapshot.TopicSnapshot(name=topic, partitions=[row])]
    return FetchSnapshotRequest(
        cluster_id=cluster_id, replica_id=other(leader), max_bytes=max_bytes, topics=topics
    )


def piece_of(response: FetchSnapshotResponse) -> fetch_snapshot.PartitionSnapshotResponse:
    return response.topics[0].partitions[0]


def test_a_snapshot_goes_out_in_pieces(leader: Replica) -> None:
    id = OffsetAndEpoch(3, 0)
    leader.log.snapshot(id)
    data, got = leader.log.snapshots[id], b""
    while len(got) < len(data):
        row = piece_of(leader.ask(snapshot_request(leader, position=len(got), max_bytes=7)))
        assert (row.error_code, row.size, row.position) == (0, len(data), len(got))
        assert row.snapshot_id == fetch_snapshot.SnapshotId(end_offset=3, epoch=0)
        assert 0 < len(row.unaligned_records) <= 7
        got += bytes(row.unaligned_records)
    assert got == data


@pytest.mark.parametrize(
    ("others", "error"),
    [
        ({"snapshot": (4, 0)}, ErrorCode.snapshot_not_found),
        ({"snapshot": (0, 0)}, ErrorCode.snapshot_not_found),  # never replicated
        ({"position": -1}, ErrorCode.position_out_of_range),
        ({"position": 10**9}, ErrorCode.position_out_of_range),
        ({"position": 2**63 - 1}, ErrorCode.position_out_of_range),
        ({"epoch": 0}, ErrorCode.fenced_leader_epoch),
        ({"epoch": 999}, ErrorCode.unknown_leader_epoch),
        ({"topic": "t"}, ErrorCode.unknown_topic_or_partition),
        ({"partition": 1}, ErrorCode.unknown_topic_or_partition),
    ],
)
def test_no_piece_of_a_snapshot(leader: Replica, others: dict[str, Any], error: ErrorCode) -> None:
    leader.log.snapshot(OffsetAndEpoch(0, 0))
    leader.log.snapshot(OffsetAndEpoch(3, 0))
    response = leader.ask(snapshot_request(leader, **others))
    assert piece_of(response).error_code == error
    assert not piece_of(response).unaligned_records


# KIP-630
@pytest.mark.parametrize(
    "topics",
    [
        [],
        [fetch_snapshot.TopicSnapshot(name=TOPIC)],
        [fetch_snapshot.TopicSnapshot(name=TOPIC), fetch_snapshot.TopicSnapshot(name=TOPIC)],
        [fetch_snapshot.TopicSnapshot(name=TOPIC, partitions=[fetch_snapshot.PartitionSnapshot()] * 2)],
    ],
)
def test_cve_2026_83525_lists_that_are_empty_or_too_long_are_no_end(
    leader: Replica, topics: list[Any]
) -> None:
    response = leader.ask(FetchSnapshotRequest(cluster_id=CLUSTER_ID, topics=topics))
    assert response.error_code == ErrorCode.invalid_request
    assert isinstance(leader.role, Leader)


def test_another_clusters_snapshot(leader: Replica) -> None:
    response = leader.ask(snapshot_request(leader, cluster_id="other"))
    assert response.error_code == ErrorCode.inconsistent_cluster_id


def test_a_fetch_of_a_snapshot_is_a_contact(leader: Replica) -> None:
    leader.log.snapshot(OffsetAndEpoch(3, 0))
    for _ in range(5):
        leader.pass_time(1_000)
        leader.ask(snapshot_request(leader))
    assert isinstance(leader.role, Leader)
