"""Vote and PreVote (KIP-595, KIP-853, KIP-996): which candidates get a vote, and in which roles a node
collects a majority.
"""

from typing import Any
from uuid import UUID

import pytest
from raft_support import vote_answer

from ottla.controller.raft.effects import Persist, Reply
from ottla.controller.raft.follower_progress import Followers
from ottla.controller.raft.roles import (
    Candidate,
    EpochElection,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
)
from ottla.controller.raft.types import (
    MAX_EPOCH_STEP,
    TOPIC,
    ElectionState,
    OffsetAndEpoch,
    ReplicaKey,
    VersionRange,
)
from ottla.controller.raft.voters import Voter
from ottla.controller.raft.voting import can_grant_vote
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages import vote
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.k_raft_version_record import KRaftVersionRecord
from ottla.protocol.messages.vote import VoteRequest, VoteResponse
from ottla.stories.quorum.raft_replicas import (
    CLUSTER_ID,
    LISTENER,
    MemoryLog,
    Replica,
    address,
    directory,
    key,
    settings,
    voter_set,
)

VOTERS = voter_set(1, 2, 3)


def request(
    candidate: int = 2,
    *,
    epoch: int = 1,
    last: tuple[int, int] = (0, 0),
    pre_vote: bool = False,
    voter: int = 1,
    **others: Any,
) -> VoteRequest:
    """`last`: end offset and epoch of the candidate's log."""
    row = vote.PartitionData(
        replica_epoch=epoch,
        replica_id=candidate,
        replica_directory_id=others.get("candidate_directory", directory(candidate)),
        voter_directory_id=others.get("voter_directory", directory(voter)),
        last_offset=last[0],
        last_offset_epoch=last[1],
        pre_vote=pre_vote,
    )
    topics = [vote.TopicData(topic_name=others.get("topic", TOPIC), partitions=[row] * others.get("rows", 1))]
    return VoteRequest(
        cluster_id=others.get("cluster_id", CLUSTER_ID), voter_id=voter, topics=others.get("topics", topics)
    )


def row_of(answer: VoteResponse) -> vote.PartitionDataResponse:
    return answer.topics[0].partitions[0]


def unattached(**fields: Any) -> Unattached:
    return Unattached(epoch=1, election_deadline_ms=0, **fields)


def prospective(**fields: Any) -> Prospective:
    return Prospective(
        epoch=1, epoch_election=EpochElection.begin(VOTERS, 1), election_deadline_ms=0, **fields
    )


def follower(*, has_fetched: bool) -> Follower:
    return Follower(
        epoch=1,
        leader_id=3,
        leader_endpoints={LISTENER: address(3)},
        fetch_deadline_ms=0,
        update_voter_at_ms=0,
        has_fetched=has_fetched,
    )


CANDIDATE = Candidate(epoch=1, epoch_election=EpochElection.begin(VOTERS, 1), election_deadline_ms=0)
RESIGNED = Resigned(epoch=1, unacknowledged=set(), deadline_ms=0)
LEADER = Leader(
    epoch=1,
    epoch_start_offset=0,
    followers=Followers(VOTERS, key(1)),
    check_quorum_deadline_ms=0,
    begin_quorum_at_ms=0,
)


@pytest.mark.parametrize(
    ("role", "pre_vote", "pre_vote_behind", "vote", "vote_behind"),
    [
        #                                               pre-vote      vote
        #                                          even  behind   even  behind
        (LEADER,                                   False, False,  False, False),
        (follower(has_fetched=True),               False, False,  False, False),
        (follower(has_fetched=False),              True,  False,  False, False),
        (CANDIDATE,                                True,  False,  False, False),
        (RESIGNED,                                 True,  False,  False, False),
        (unattached(),                             True,  False,  True,  False),
        (unattached(voted=key(2)),                 True,  False,  True,  True),
        (unattached(voted=ReplicaKey(2)),          True,  False,  True,  True),   # of kraft.version 0
        (unattached(voted=ReplicaKey(2, UUID(int=9))), True, False, False, False),  # its former disk
        (unattached(voted=key(3)),                 True,  False,  False, False),
        (unattached(leader_id=3),                  True,  False,  False, False),
        (unattached(leader_id=3, voted=key(2)),    True,  False,  True,  True),
        (prospective(),                            True,  False,  True,  False),
        (prospective(voted=key(2)),                True,  False,  True,  True),
        (prospective(voted=key(3)),                True,  False,  False, False),
        (prospective(leader_id=3),                 True,  False,  False, False),
    ],
)  # fmt: skip
def test_votes_by_role(
    role: Role, *, pre_vote: bool, pre_vote_behind: bool, vote: bool, vote_behind: bool
) -> None:
    assert can_grant_vote(role, key(2), is_up_to_date=True, is_pre_vote=True) is pre_vote
    assert can_grant_vote(role, key(2), is_up_to_date=False, is_pre_vote=True) is pre_vote_behind
    assert can_grant_vote(role, key(2), is_up_to_date=True, is_pre_vote=False) is vote
    assert can_grant_vote(role, key(2), is_up_to_date=False, is_pre_vote=False) is vote_behind


@pytest.mark.parametrize(
    ("last", "granted"),
    [
        ((2, 4), True),   # the same log
        ((3, 4), True),   # longer
        ((1, 4), False),  # shorter
        ((0, 5), True),   # a later epoch, however short
        ((9, 3), False),  # an earlier epoch, however long
    ],
)  # fmt: skip
def test_the_last_epoch_decides_and_then_the_length(last: tuple[int, int], *, granted: bool) -> None:
    log = MemoryLog()
    log.append("a", "b", epoch=4)
    replica = Replica(settings(1), log=log)
    assert row_of(replica.ask(request(epoch=6, last=last))).vote_granted is granted
    assert replica.role.epoch == 6  # of the later epoch it knows now, whatever it thinks of the candidate


def test_one_vote_in_an_epoch_durable_before_it_is_given_and_across_restarts() -> None:
    replica = Replica(settings(1))
    assert row_of(replica.ask(request(2, epoch=1))).vote_granted
    effects = [each for each in replica.history if isinstance(each, Persist | Reply)]
    assert isinstance(effects[-1], Reply)
    assert effects[-2] == Persist(
        ElectionState(
            leader_epoch=1,
            leader_id=None,
            kraft_version=0,
            voted_id=2,
            voted_directory_id=directory(2),
            voters=(1, 2, 3),
        )
    )
    assert not row_of(replica.ask(request(3, epoch=1, last=(9, 0)))).vote_granted
    again = Replica(settings(1), log=replica.log, election=replica.election)
    assert not row_of(again.ask(request(3, epoch=1, last=(9, 0)))).vote_granted
    assert row_of(again.ask(request(2, epoch=1))).vote_granted  # the answer was lost
    assert row_of(again.ask(request(3, epoch=2))).vote_granted


def test_a_pre_vote_costs_nothing() -> None:
    replica = Replica(settings(1))
    before = len(replica.of(Persist))
    assert row_of(replica.ask(request(2, epoch=0, pre_vote=True))).vote_granted
    assert row_of(replica.ask(request(3, epoch=0, pre_vote=True))).vote_granted
    assert len(replica.of(Persist)) == before
    assert row_of(replica.ask(request(2, epoch=7, pre_vote=True))).vote_granted
    assert replica.role.epoch == 7  # a later epoch is a later epoch


BAD = [
    (request(cluster_id="other"), ErrorCode.inconsistent_cluster_id, None),
    (request(topics=[]), ErrorCode.invalid_request, None),
    (request(topics=[vote.TopicData(topic_name=TOPIC)]), ErrorCode.invalid_request, None),
    (request(rows=2), ErrorCode.invalid_request, None),
    (request(topic="t"), ErrorCode.invalid_request, None),
    (request(epoch=5, last=(-1, 0)), ErrorCode.none, ErrorCode.invalid_request),
    (request(epoch=5, last=(0, -1)), ErrorCode.none, ErrorCode.invalid_request),
    (
        request(epoch=5, last=(7, 5)),
        ErrorCode.none,
        ErrorCode.invalid_request,
    ),  # a record of its own, new epoch
    (request(epoch=5, last=(7, 6), pre_vote=True), ErrorCode.none, ErrorCode.invalid_request),
    (request(epoch=3), ErrorCode.none, ErrorCode.fenced_leader_epoch),
    (request(-1, epoch=5), ErrorCode.none, ErrorCode.invalid_request),
    (request(epoch=2**31 - 1), ErrorCode.none, ErrorCode.invalid_request),  # the last there could ever be
    (request(epoch=2**31 - 2), ErrorCode.none, ErrorCode.invalid_request),
    (request(epoch=5 + MAX_EPOCH_STEP), ErrorCode.none, ErrorCode.invalid_request),
    (request(epoch=4, voter=2), ErrorCode.none, ErrorCode.invalid_voter_key),
    (request(epoch=4, voter_directory=UUID(int=9)), ErrorCode.none, ErrorCode.invalid_voter_key),
]


@pytest.mark.parametrize(("asked", "top_error", "error"), BAD)
def test_bad_votes_are_refused(asked: VoteRequest, top_error: ErrorCode, error: ErrorCode | None) -> None:
    state = ElectionState(leader_epoch=4, leader_id=None, kraft_version=0)
    replica = Replica(settings(1), election=state)
    answer = replica.ask(asked)
    assert answer.error_code == top_error
    if error is not None:
        assert row_of(answer).error_code == error
        assert not row_of(answer).vote_granted
        assert row_of(answer).leader_epoch == replica.role.epoch
    assert replica.role.voted is None


def test_version_0_names_no_voter_and_no_directories() -> None:
    replica = Replica(settings(1))
    asked = request(epoch=1, voter=-1, voter_directory=UUID(int=0), candidate_directory=UUID(int=0))
    assert row_of(replica.ask(asked)).vote_granted
    assert replica.role.voted == ReplicaKey(2)


def test_a_pre_vote_may_be_of_the_last_records_epoch() -> None:
    log = MemoryLog()
    log.append("a", epoch=5)
    replica = Replica(settings(1), log=log)
    assert row_of(replica.ask(request(epoch=5, last=(1, 5), pre_vote=True))).vote_granted


@pytest.mark.logs("its requests are refused; set a unique node.id on every node")
def test_another_node_with_our_id_gets_no_vote() -> None:
    replica = Replica(settings(1))
    answer = replica.ask(request(1, epoch=1, candidate_directory=UUID(int=9)))
    assert not row_of(answer).vote_granted


# -- the other side ----------------------------------------------------------------------------------


def nominee(**others: Any) -> Replica:
    """A replica that has just become prospective."""
    replica = Replica(settings(1, (1, 2, 3, 4, 5), **others))
    while not isinstance(replica.role, Prospective):
        replica.pass_time(50)
    return replica


def test_a_majority_of_pre_votes_makes_a_candidate_and_of_votes_a_leader() -> None:
    replica = nominee()
    first, second, *_ = replica.sent(VoteRequest)
    assert first.message.topics[0].partitions[0].pre_vote
    assert first.message.topics[0].partitions[0].replica_epoch == 0
    replica.answer(first, vote_answer(granted=True, epoch=0))
    assert isinstance(replica.role, Prospective)
    replica.answer(second, vote_answer(granted=True, epoch=0))
    assert isinstance(replica.role, Candidate)
    assert replica.election is not None
    assert (replica.election.leader_epoch, replica.election.voted_id) == (1, 1)
    votes = [each for each in replica.sent(VoteRequest) if not each.message.topics[0].partitions[0].pre_vote]
    assert len(votes) == 4
    place = {id(each): at for at, each in enumerate(replica.history)}
    persisted = next(each for each in replica.of(Persist) if each.state.voted_id == 1)
    assert all(place[id(each)] > place[id(persisted)] for each in votes)
    replica.answer(votes[0], vote_answer(granted=True, epoch=1))
    replica.answer(votes[1], vote_answer(granted=True, epoch=1))
    assert isinstance(replica.role, Leader)
    assert replica.election.leader_id == 1


def test_answers_that_come_too_late_or_twice_count_not() -> None:
    replica = nominee()
    asked = replica.sent(VoteRequest)
    replica.answer(asked[0], vote_answer(granted=True, epoch=0))
    replica.answer(asked[0], vote_answer(granted=True, epoch=0))
    assert isinstance(replica.role, Prospective)
    replica.answer(asked[1], vote_answer(granted=True, epoch=0))
    assert isinstance(replica.role, Candidate)
    replica.answer(asked[2], vote_answer(granted=True, epoch=1))  # to the pre-vote: not to the vote
    replica.answer(asked[3], vote_answer(granted=True, epoch=1))
    assert isinstance(replica.role, Candidate)


def test_a_lost_pre_vote_ends_in_waiting_in_the_same_epoch() -> None:
    replica = nominee()
    for sent in replica.sent(VoteRequest)[:3]:
        replica.answer(sent, vote_answer(granted=False, epoch=0))
    assert isinstance(replica.role, Unattached)
    assert replica.role.epoch == 0


def test_a_lost_vote_is_waited_out() -> None:
    replica = nominee()
    for sent in replica.sent(VoteRequest)[:2]:
        replica.answer(sent, vote_answer(granted=True, epoch=0))
    replica.sends = [
        each for each in replica.sent(VoteRequest) if not each.message.topics[0].partitions[0].pre_vote
    ]
    deadline_ms = replica.role.election_deadline_ms
    for sent in replica.sent(VoteRequest)[:3]:
        replica.answer(sent, vote_answer(granted=False, epoch=1))
    assert isinstance(replica.role, Candidate)
    assert replica.raft.next_deadline_ms == deadline_ms
    replica.sends.clear()
    replica.pass_time(deadline_ms - replica.now_ms)
    assert isinstance(replica.role, Prospective)
    assert replica.role.epoch == 1
    assert replica.role.voted == key(1)


@pytest.mark.parametrize(
    ("answer", "role", "epoch"),
    [
        (vote_answer(epoch=9), Unattached, 9),
        (vote_answer(epoch=9, leader=2, error=ErrorCode.fenced_leader_epoch), Follower, 9),
        (
            vote_answer(epoch=9, leader=7, endpoint=True),
            Follower,
            9,
        ),  # not among the voters, but it says where it is
        (vote_answer(epoch=9, leader=7), Unattached, 9),
        (vote_answer(epoch=9, leader=1), Unattached, 9),  # ourselves, in another life
        (vote_answer(epoch=0, leader=2, granted=False), Follower, 0),
        (vote_answer(epoch=0, error=ErrorCode.invalid_voter_key), Prospective, 0),
        (vote_answer(epoch=0, error=ErrorCode.invalid_request), Prospective, 0),
        (vote_answer(epoch=0, error=ErrorCode.unknown_server_error), Prospective, 0),
        (vote_answer(epoch=0, top_error=ErrorCode.cluster_authorization_failed), Prospective, 0),
        (VoteResponse(), Prospective, 0),
        (VoteResponse(error_code=7_777), Prospective, 0),
        (None, Prospective, 0),
    ],
)
@pytest.mark.logs(
    "of the metadata quorum: another node has the same node.id, or this one has lost the quorum-state of that epoch",
    "returned an error in",
)
def test_what_an_answer_teaches(answer: VoteResponse | None, role: type, epoch: int) -> None:
    replica = nominee()
    (first, *_), before = replica.sent(VoteRequest), len(replica.sends)
    replica.answer(first, answer)
    assert type(replica.role) is role
    assert replica.role.epoch == epoch
    if role is Prospective:  # asked again, but not at once
        assert len(replica.sends) == before - 1
        replica.pass_time(replica.settings.retry_backoff_ms)
        assert len(replica.sends) == before


def test_a_silent_voter_is_asked_again_after_the_request_timeout() -> None:
    replica = nominee(election_timeout_ms=10_000)
    asked = replica.sent(VoteRequest)
    replica.pass_time(2_000)
    again = [each for each in replica.sent(VoteRequest) if each not in asked]
    assert {each.node_id for each in again} == {2, 3, 4, 5}


def test_an_observer_never_runs() -> None:
    replica = Replica(settings(9))
    replica.pass_time(60_000)
    assert isinstance(replica.role, Unattached)
    assert not replica.sent(VoteRequest)


@pytest.mark.parametrize(
    ("rival", "end", "answered", "granted"),
    [
        (1, (0, 0), None,  False),  # equal logs: the larger id goes first
        (3, (0, 0), None,  True),
        (1, (1, 0), None,  True),   # a longer log, whatever the id
        (1, (0, 0), True,  False),
        (1, (0, 0), False, True),   # it has refused us, and will not be asked again
    ],
)  # fmt: skip
def test_of_two_that_ask_at_once_one_goes_first(
    rival: int, end: tuple[int, int], *, answered: bool | None, granted: bool
) -> None:
    replica = Replica(settings(2, (1, 2, 3, 4, 5)))
    while not isinstance(replica.role, Prospective):
        replica.pass_time(50)
    (asked,) = [each for each in replica.sent(VoteRequest) if each.node_id == rival]
    if answered is not None:
        replica.answer(asked, vote_answer(granted=answered, epoch=0))
    answer = replica.ask(request(rival, epoch=0, last=end, pre_vote=True, voter=2))
    assert row_of(answer).vote_granted is granted
    assert row_of(replica.ask(request(rival, epoch=1, last=end, voter=2))).vote_granted  # a vote is a vote


def test_two_that_miss_their_leader_in_the_same_moment_do_not_split_the_vote() -> None:
    pair = [Replica(settings(2)), Replica(settings(3))]
    for replica in pair:
        while not isinstance(replica.role, Prospective):
            replica.pass_time(50)

    def crossed(*, pre_vote: bool) -> None:
        """Both have asked before either is answered."""
        asked = [
            (one, other, sent)
            for one, other in (pair, pair[::-1])
            for sent in one.sent(VoteRequest)
            if sent.node_id == other.id and sent.message.topics[0].partitions[0].pre_vote is pre_vote
        ]
        answers = [other.ask(sent.message) for _, other, sent in asked]
        for (one, _, sent), answer in zip(asked, answers, strict=True):
            one.answer(sent, answer)

    crossed(pre_vote=True)
    assert [type(each.role) for each in pair] == [Prospective, Candidate]
    crossed(pre_vote=False)
    assert [type(each.role) for each in pair] == [Unattached, Leader]
    assert pair[1].role.epoch == 1


def test_a_prospective_grants_its_vote_and_restarts_its_election_timeout() -> None:
    replica = nominee(election_timeout_ms=10_000)
    first, *_ = replica.sent(VoteRequest)
    replica.answer(first, vote_answer(epoch=5))  # there is a later epoch, without a leader
    while not isinstance(replica.role, Prospective):
        replica.pass_time(100)
    first, *_ = [each for each in replica.sent(VoteRequest) if each.correlation_id > first.correlation_id]
    replica.answer(first, vote_answer(granted=True, epoch=5))
    replica.pass_time(1_000)
    assert row_of(replica.ask(request(2, epoch=5))).vote_granted
    assert isinstance(replica.role, Prospective)
    assert replica.role.voted == key(2)
    assert replica.role.epoch_election.granting_voters == [1]
    assert replica.election is not None
    assert replica.election.voted_id == 2


@pytest.mark.logs("has no endpoint for the listener")
def test_a_voter_that_cannot_be_reached_is_no_trouble() -> None:
    log = MemoryLog()
    elsewhere = voter_set(1, 2, 3).with_updated(Voter(key(3), {"OTHER": address(3)}, VersionRange(0, 1)))
    assert elsewhere is not None
    log.snapshot(OffsetAndEpoch(0, 0), [KRaftVersionRecord(k_raft_version=1), elsewhere.to_record()])
    replica = Replica(settings(1, ()), log=log)
    while not replica.sent(VoteRequest):
        replica.pass_time(50)
    assert [each.node_id for each in replica.sent(VoteRequest)] == [2]


def test_messages_that_are_none_of_a_quorum() -> None:
    replica = Replica(settings(1))
    with pytest.raises(AssertionError):
        replica.raft.receive(replica.now_ms, ApiVersionsRequest(), "token")
    with pytest.raises(AssertionError):
        replica.raft.answered(replica.now_ms, replica.sends[0], ApiVersionsResponse())


def test_properties_of_a_node_that_does_not_lead() -> None:
    replica = Replica(settings(1))
    assert replica.raft.epoch_start_offset is None
    assert replica.raft.leader_address is None
    assert not replica.raft.is_leader_of(0)
