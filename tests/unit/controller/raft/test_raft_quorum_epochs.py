"""Roles after a start; BeginQuorumEpoch and EndQuorumEpoch; shutdown."""

from typing import Any
from uuid import UUID

import pytest
from raft_support import Cluster, fetch_request

from ottla.controller.raft.effects import LeaderChanged, Persist, Reply, Stopped
from ottla.controller.raft.quorum_epochs import end_epoch_election_backoff_ms
from ottla.controller.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from ottla.controller.raft.types import (
    MAX_EPOCH_STEP,
    TOPIC,
    ElectionState,
    LeaderAndEpoch,
    OffsetAndEpoch,
    ReplicaKey,
)
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages import begin_quorum_epoch, end_quorum_epoch
from ottla.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from ottla.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.leader_change_message import LeaderChangeMessage
from ottla.protocol.messages.vote import VoteRequest
from ottla.protocol.messages.voters_record import VotersRecord
from ottla.stories.quorum.raft_replicas import (
    CLUSTER_ID,
    LISTENER,
    MemoryLog,
    Replica,
    address,
    directory,
    dynamic_log,
    key,
    settings,
)


def state(epoch: int, leader: int | None = None, voted: int | None = None, **others: Any) -> ElectionState:
    return ElectionState(leader_epoch=epoch, leader_id=leader, voted_id=voted, kraft_version=0, **others)


@pytest.mark.parametrize(
    ("election", "log_epoch", "role", "epoch"),
    [
        (None, 0, Unattached, 0),
        (None, 3, Unattached, 3),                                           # the file is gone
        (state(2, leader=2), 3, Unattached, 3),                             # the log knows better
        (state(3), 3, Unattached, 3),
        (state(3, leader=2), 3, Follower, 3),
        (state(3, leader=9), 3, Unattached, 3),                             # its endpoint is unknown
        (state(3, leader=1), 3, Resigned, 3),                               # we led it
        (state(4, leader=1), 3, Resigned, 4),
        (state(4, voted=1), 3, Candidate, 4),
        (state(4, voted=1, voted_directory_id=directory(1)), 3, Candidate, 4),
        (state(4, voted=1, voted_directory_id=UUID(int=9)), 3, Unattached, 4),  # our former disk
        (state(3, voted=1), 3, Resigned, 3),                                # we had begun to write in it
        (state(3, leader=2, voted=1), 3, Follower, 3),                      # another one has won
        (state(4, leader=2, voted=1), 3, Follower, 4),
        (state(4, leader=9, voted=1), 3, Unattached, 4),
        (state(3, voted=2), 3, Unattached, 3),
        (state(3, leader=2, voted=3), 3, Follower, 3),
    ],
)  # fmt: skip
def test_the_role_after_a_start(
    election: ElectionState | None, log_epoch: int, role: type, epoch: int
) -> None:
    log = MemoryLog()
    if log_epoch:
        log.append("a", epoch=log_epoch)
    replica = Replica(settings(1), log=log, election=election)
    assert type(replica.role) is role
    assert replica.role.epoch == epoch
    if election is not None and election.leader_epoch == epoch and role in (Unattached, Follower):
        voted = (
            None if election.voted_id is None else ReplicaKey(election.voted_id, election.voted_directory_id)
        )
        assert replica.role.voted == voted
    assert replica.of(Persist)[0].state.leader_epoch == epoch


def test_the_only_voter_leads_a_new_epoch_after_a_restart_with_one_durable_write() -> None:
    replica = Replica(settings(1, [1]))
    again = Replica(replica.settings, log=replica.log, election=replica.election)
    assert isinstance(again.role, Leader)
    assert again.role.epoch == replica.role.epoch + 1
    assert [type(each) for each in again.history[:2]] == [Persist, LeaderChanged]
    assert len(again.of(Persist)) == 1
    assert again.raft.high_watermark == again.log.end.offset


def test_the_only_voter_that_had_just_voted_for_itself_leads_that_epoch() -> None:
    replica = Replica(settings(1, [1]), election=state(3, voted=1))
    assert isinstance(replica.role, Leader)
    assert (replica.role.epoch, replica.raft.epoch_start_offset) == (3, 0)


def test_the_first_records_of_an_epoch() -> None:
    cluster = Cluster.static(3)
    leader = cluster.elect()
    ((offset, change),) = leader.log.quorum_messages()
    assert isinstance(change, LeaderChangeMessage)
    assert (offset, change.leader_id) == (0, leader.id)
    assert [each.voter_id for each in change.voters] == [1, 2, 3]
    assert leader.id in [each.voter_id for each in change.granting_voters]
    assert len(change.granting_voters) == 2


def test_the_first_leader_writes_the_voters_into_the_log_and_no_later_one() -> None:
    replica = Replica(settings(1, ()), log=dynamic_log(1))
    kinds = [type(each).__name__ for _, each in replica.log.quorum_messages(0)]
    assert kinds == ["LeaderChangeMessage", "KRaftVersionRecord", "VotersRecord"]
    again = Replica(replica.settings, log=replica.log, election=replica.election)
    kinds = [type(each).__name__ for _, each in again.log.quorum_messages(3)]
    assert kinds == ["LeaderChangeMessage"]
    moved = Replica(
        settings(1, (), endpoints={LISTENER: address(77)}), log=replica.log, election=again.election
    )
    record = [each for _, each in moved.log.quorum_messages(4)][-1]
    assert isinstance(record, VotersRecord)
    assert moved.raft.voters.endpoints(1) == {LISTENER: address(77)}
    nowhere = Replica(settings(1, (), endpoints={}), log=replica.log, election=moved.election)
    assert isinstance(nowhere.role, Leader)
    assert nowhere.raft.voters.endpoints(1) == {LISTENER: address(77)}


# -- BeginQuorumEpoch --------------------------------------------------------------------------------


def begin(leader: int = 2, *, epoch: int = 1, voter: int = 1, **others: Any) -> BeginQuorumEpochRequest:
    row = begin_quorum_epoch.PartitionData(
        voter_directory_id=others.get("voter_directory", directory(voter)),
        leader_id=leader,
        leader_epoch=epoch,
    )
    topics = [begin_quorum_epoch.TopicData(topic_name=TOPIC, partitions=[row] * others.get("rows", 1))]
    listeners = [
        begin_quorum_epoch.LeaderEndpoint(name=name, host=at.host, port=at.port)
        for name, at in others.get("endpoints", {}).items()
    ]
    return BeginQuorumEpochRequest(
        cluster_id=others.get("cluster_id", CLUSTER_ID),
        voter_id=voter,
        topics=others.get("topics", topics),
        leader_endpoints=listeners,
    )


def test_begin_makes_a_follower_that_fetches_durably() -> None:
    replica = Replica(settings(1))
    replica.sends.clear()
    answer = replica.ask(begin())
    row = answer.topics[0].partitions[0]
    assert (row.error_code, row.leader_id, row.leader_epoch) == (0, 2, 1)
    assert isinstance(replica.role, Follower)
    kinds = [type(each) for each in replica.history]
    assert kinds.index(Reply) > len(kinds) - kinds[::-1].index(Persist) - 1
    assert replica.of(LeaderChanged)[-1].leader == LeaderAndEpoch(2, 1)
    (sent,) = replica.sent(FetchRequest)
    assert sent.node_id == 2


def test_a_leader_that_is_no_voter_we_know_says_where_it_is() -> None:
    replica = Replica(settings(1))
    replica.ask(begin(9))
    assert isinstance(replica.role, Unattached)
    replica.ask(begin(9, endpoints={LISTENER: address(9)}))
    assert isinstance(replica.role, Follower)
    assert replica.raft.leader_address == address(9)


@pytest.mark.parametrize(
    ("asked", "top_error", "error"),
    [
        (begin(cluster_id="other"), ErrorCode.inconsistent_cluster_id, None),
        (begin(topics=[]), ErrorCode.invalid_request, None),
        (begin(topics=[begin_quorum_epoch.TopicData(topic_name=TOPIC)]), ErrorCode.invalid_request, None),
        (begin(rows=2), ErrorCode.invalid_request, None),
        (begin(epoch=3), ErrorCode.none, ErrorCode.fenced_leader_epoch),
        (begin(-1, epoch=9), ErrorCode.none, ErrorCode.invalid_request),
        (begin(epoch=2**31 - 1), ErrorCode.none, ErrorCode.invalid_request),
        (begin(epoch=2**31 - 2), ErrorCode.none, ErrorCode.invalid_request),
        (begin(epoch=5 + MAX_EPOCH_STEP), ErrorCode.none, ErrorCode.invalid_request),
        (begin(3, epoch=4), ErrorCode.none, ErrorCode.invalid_request),  # 2 leads this epoch
        (begin(1, epoch=4), ErrorCode.none, ErrorCode.invalid_request),
        (begin(2, epoch=4, voter=3), ErrorCode.none, ErrorCode.invalid_voter_key),
        (begin(2, epoch=4, voter_directory=UUID(int=9)), ErrorCode.none, ErrorCode.invalid_voter_key),
        (begin(2, epoch=4, voter=-1, voter_directory=UUID(int=0)), ErrorCode.none, ErrorCode.none),
    ],
)
@pytest.mark.logs("inconsistent with the known leader")
def test_begin_that_is_refused(asked: Any, top_error: ErrorCode, error: ErrorCode | None) -> None:
    replica = Replica(settings(1), election=state(4, leader=2))
    answer = replica.ask(asked)
    assert answer.error_code == top_error
    if error is not None:
        row = answer.topics[0].partitions[0]
        assert (row.error_code, row.leader_id, row.leader_epoch) == (error, 2, 4)
    assert isinstance(replica.role, Follower)


@pytest.mark.logs(
    "of the metadata quorum: another node has the same node.id, or this one has lost the quorum-state of that epoch"
)
def test_a_leader_whose_disk_is_lost_neither_leads_nor_votes_in_its_epoch() -> None:
    replica = Replica(settings(1))
    replica.ask(begin(1, epoch=4))
    assert isinstance(replica.role, Unattached)
    assert replica.raft.leader_and_epoch == LeaderAndEpoch(None, 4)
    again = Replica(settings(1), election=replica.election)
    assert isinstance(again.role, Resigned)


def begin_response(error: ErrorCode = ErrorCode.none, *, leader: int = 1, epoch: int = 1) -> Any:
    row = begin_quorum_epoch.PartitionDataResponse(error_code=error, leader_id=leader, leader_epoch=epoch)
    topics = [begin_quorum_epoch.TopicDataResponse(topic_name=TOPIC, partitions=[row])]
    return BeginQuorumEpochResponse(topics=topics)


@pytest.mark.parametrize(
    ("answer", "role", "epoch_more"),
    [
        (begin_response, Leader, 0),
        (lambda **each: begin_response(ErrorCode.invalid_voter_key, **each), Leader, 0),
        (lambda **_: BeginQuorumEpochResponse(), Leader, 0),
        (lambda **_: None, Leader, 0),
        (lambda leader, epoch: begin_response(leader=-1, epoch=epoch + 5), Unattached, 5),
        (lambda leader, epoch: begin_response(leader=leader % 3 + 1, epoch=epoch + 5), Follower, 5),
        (lambda leader, epoch: begin_response(leader=leader % 3 + 1, epoch=epoch), Leader, 0),
    ],
)
@pytest.mark.logs("inconsistent with the known leader", "returned an error in")
def test_answers_to_begin(answer: Any, role: type, epoch_more: int) -> None:
    cluster = Cluster.static(3)
    cluster.run_until(lambda: cluster.leaders)
    (leader,) = cluster.leaders
    leader.pass_time(1_000)
    sent = leader.sent(BeginQuorumEpochRequest)[0]
    epoch = leader.role.epoch
    leader.answer(sent, answer(leader=leader.id, epoch=epoch))
    assert type(leader.role) is role
    assert leader.role.epoch == epoch + epoch_more


# -- EndQuorumEpoch ----------------------------------------------------------------------------------


def end(leader: int = 2, *, epoch: int = 4, successors: tuple[int, ...] = (), **others: Any) -> Any:
    row = end_quorum_epoch.PartitionData(
        leader_id=leader,
        leader_epoch=epoch,
        preferred_candidates=[]
        if others.get("version_0")
        else [
            end_quorum_epoch.ReplicaInfo(candidate_id=id, candidate_directory_id=directory(id))
            for id in successors
        ],
        preferred_successors=list(successors),
    )
    topics = [end_quorum_epoch.TopicData(topic_name=TOPIC, partitions=[row] * others.get("rows", 1))]
    return EndQuorumEpochRequest(
        cluster_id=others.get("cluster_id", CLUSTER_ID), topics=others.get("topics", topics)
    )


@pytest.mark.parametrize("version_0", [False, True])
@pytest.mark.parametrize(
    ("successors", "pause_ms"), [((1, 3), 0), ((3, 1), 500), ((3, 4, 1, 5), 250), ((3, 4), 1_000), ((), 0)]
)
def test_when_a_successor_starts_its_election(
    successors: tuple[int, ...], pause_ms: int, *, version_0: bool
) -> None:
    replica = Replica(settings(1), election=state(4, leader=2))
    answer = replica.ask(end(successors=successors, version_0=version_0))
    assert answer.topics[0].partitions[0].error_code == 0
    if pause_ms:
        assert replica.role.fetch_deadline_ms == replica.now_ms + pause_ms
        replica.pass_time(pause_ms)
    assert isinstance(replica.role, Prospective)
    assert replica.sent(VoteRequest)


def test_successors_are_known_by_their_disks() -> None:
    keys = [ReplicaKey(1, UUID(int=9)), key(2)]
    assert end_epoch_election_backoff_ms(keys, key(1), election_backoff_max_ms=1_000) == 1_000


@pytest.mark.parametrize(
    ("asked", "top_error", "error"),
    [
        (end(cluster_id="other"), ErrorCode.inconsistent_cluster_id, None),
        (end(topics=[]), ErrorCode.invalid_request, None),
        (end(topics=[end_quorum_epoch.TopicData(topic_name=TOPIC)]), ErrorCode.invalid_request, None),
        (end(rows=2), ErrorCode.invalid_request, None),
        (end(epoch=3), ErrorCode.none, ErrorCode.fenced_leader_epoch),
        (end(-1), ErrorCode.none, ErrorCode.invalid_request),
        (end(epoch=2**31 - 1), ErrorCode.none, ErrorCode.invalid_request),
        (end(epoch=2**31 - 2), ErrorCode.none, ErrorCode.invalid_request),
        (end(epoch=5 + MAX_EPOCH_STEP), ErrorCode.none, ErrorCode.invalid_request),
        (end(3), ErrorCode.none, ErrorCode.invalid_request),
    ],
)
@pytest.mark.logs("inconsistent with the known leader")
def test_end_that_is_refused(asked: Any, top_error: ErrorCode, error: ErrorCode | None) -> None:
    replica = Replica(settings(1), election=state(4, leader=2))
    before = replica.role.fetch_deadline_ms
    answer = replica.ask(asked)
    assert answer.error_code == top_error
    if error is not None:
        assert answer.topics[0].partitions[0].error_code == error
    assert replica.role.fetch_deadline_ms == before


def resigned() -> Replica:
    cluster = Cluster.static(3)
    leader = cluster.elect()
    leader.sends.clear()
    leader.do(leader.raft.resign(leader.now_ms, leader.role.epoch))
    assert isinstance(leader.role, Resigned)
    return leader


def test_a_leader_that_resigns_repeats_end_quorum_epoch_until_it_is_answered() -> None:
    leader = resigned()
    assert leader.of(LeaderChanged)[-1].leader == LeaderAndEpoch(None, leader.role.epoch)
    first, second = leader.sent(EndQuorumEpochRequest)
    row = first.message.topics[0].partitions[0]
    assert (row.leader_id, row.leader_epoch) == (leader.id, leader.role.epoch)
    assert [each.candidate_id for each in row.preferred_candidates] == row.preferred_successors
    assert set(row.preferred_successors) == {1, 2, 3} - {leader.id}
    answer = EndQuorumEpochResponse(
        topics=[
            end_quorum_epoch.TopicDataResponse(
                topic_name=TOPIC,
                partitions=[
                    end_quorum_epoch.PartitionDataResponse(
                        leader_id=leader.id, leader_epoch=leader.role.epoch
                    )
                ],
            )
        ]
    )
    leader.answer(first, answer)
    leader.answer(second, None)
    leader.pass_time(100)
    assert {each.node_id for each in leader.sent(EndQuorumEpochRequest)} == {second.node_id}


def test_a_resigned_leader_begins_a_later_epoch_after_a_while() -> None:
    leader = resigned()
    epoch = leader.role.epoch
    leader.pass_time(leader.role.deadline_ms - leader.now_ms - 1)
    assert isinstance(leader.role, Resigned)
    leader.pass_time(1)
    assert leader.role.epoch == epoch + 1
    assert leader.raft.leader_and_epoch.leader_id is None


# -- later epochs, in messages of any node -----------------------------------------------------------


def test_a_leader_follows_a_later_epoch_and_refuses_what_waits() -> None:
    replica = Replica(settings(1, [1]))
    assert replica.ask(fetch_request(9, offset=1, epoch=1, leader_epoch=1, high_watermark=1)) is None
    replica.ask(begin(2, epoch=8, endpoints={LISTENER: address(2)}))
    assert isinstance(replica.role, Follower)
    (waiting,) = replica.replies.values()
    row = waiting.responses[0].partitions[0]
    assert row.error_code == ErrorCode.not_leader_or_follower
    assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (2, 8)


# -- shutdown ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["follower", "observer", "only voter"])
def test_who_need_not_hand_over_stops_at_once(who: str) -> None:
    if who == "follower":
        replica = Replica(settings(1), election=state(4, leader=2))
    elif who == "observer":
        replica = Replica(settings(9))
    else:
        replica = Replica(settings(1, [1]))
    effects = replica.do(replica.raft.shutdown(replica.now_ms))
    assert effects[-1] == Stopped()
    assert not replica.raft.tick(replica.now_ms + 99_999)
    assert not replica.raft.is_leader_of(1)


def test_a_shutdown_without_a_successor_ends_after_its_time() -> None:
    leader = resigned()
    leader.do(leader.raft.shutdown(leader.now_ms, timeout_ms=3_000))
    leader.pass_time(2_999)
    assert isinstance(leader.role, Resigned)
    assert not leader.of(Stopped)
    leader.pass_time(1)
    assert leader.of(Stopped)


def test_a_voter_without_a_leader_waits_for_one_before_it_stops() -> None:
    replica = Replica(settings(1))
    replica.do(replica.raft.shutdown(replica.now_ms))
    replica.pass_time(3_000)
    assert isinstance(replica.role, Unattached)
    assert not replica.of(Stopped)
    replica.ask(begin(epoch=1))
    assert replica.of(Stopped)


def test_a_log_that_begins_with_a_snapshot_is_a_log() -> None:
    log = MemoryLog()
    log.snapshot(OffsetAndEpoch(9, 4))
    log.truncate_to_latest_snapshot()
    replica = Replica(settings(1), log=log)
    assert replica.role.epoch == 4
