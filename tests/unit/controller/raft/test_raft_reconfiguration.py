"""AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter, kraft.version (KIP-853), as the leader and as a follower."""

from typing import Any
from uuid import UUID

import pytest
from raft_support import Cluster, elected, fetch_answer, fetch_request

from ottla.controller.raft.roles import Follower
from ottla.controller.raft.types import Address, ElectionState, ReplicaKey, VersionRange
from ottla.controller.raft.voters import Voter
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.errors import InvalidUpdateVersion
from ottla.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from ottla.protocol.messages.add_raft_voter import Listener as AddedListener
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from ottla.protocol.messages.update_raft_voter import (
    CurrentLeader,
    KRaftVersionFeature,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from ottla.protocol.messages.update_raft_voter import Listener as UpdatedListener
from ottla.stories.quorum.raft_replicas import (
    CLUSTER_ID,
    LISTENER,
    START_MS,
    Replica,
    address,
    directory,
    dynamic_log,
    key,
    settings,
    voter_set,
)


def alone() -> Replica:
    """The only voter of a quorum with kraft.version 1."""
    return Replica(settings(1, ()), log=dynamic_log(1))


def three() -> tuple[Cluster, Replica]:
    """A leader of three with kraft.version 1, everything committed, and then cut off from the others."""
    cluster = Cluster.dynamic([1, 2, 3])
    leader = cluster.elect()
    cluster.run_until(lambda: leader.raft.high_watermark == leader.log.end.offset)
    leader.pass_time(600)
    leader.sends.clear()
    leader.replies.clear()
    return cluster, leader


def fetch(leader: Replica, id: int, *, directory_id: UUID | None = None) -> None:
    """A replica has everything."""
    end = leader.log.end
    request = fetch_request(
        id,
        offset=end.offset,
        epoch=end.epoch,
        leader_epoch=leader.role.epoch,
        max_wait_ms=0,
        directory_id=directory_id,
    )
    assert leader.ask(request).responses[0].partitions[0].error_code == 0


def begin(leader: Replica, request: Any) -> Any:
    """Send a request that may be answered later; returns what there is by then, under `replies`."""
    leader.do(leader.raft.receive(leader.now_ms, request, "change"))
    return leader.replies.get("change")


def addition(id: int = 9, **others: Any) -> AddRaftVoterRequest:
    endpoints = others.get("endpoints", {LISTENER: address(id)})
    return AddRaftVoterRequest(
        cluster_id=others.get("cluster_id", CLUSTER_ID),
        voter_id=id,
        voter_directory_id=others.get("directory_id", directory(id)),
        listeners=[AddedListener(name=name, host=at.host, port=at.port) for name, at in endpoints.items()],
        ack_when_committed=others.get("ack_when_committed", True),
    )


def removal(id: int, **others: Any) -> RemoveRaftVoterRequest:
    return RemoveRaftVoterRequest(
        cluster_id=others.get("cluster_id", CLUSTER_ID),
        voter_id=id,
        voter_directory_id=others.get("directory_id", directory(id)),
    )


def update(id: int, leader: Replica, **others: Any) -> UpdateRaftVoterRequest:
    endpoints = others.get("endpoints", {LISTENER: address(id)})
    lowest, highest = others.get("versions", (0, 1))
    return UpdateRaftVoterRequest(
        cluster_id=others.get("cluster_id", CLUSTER_ID),
        current_leader_epoch=leader.role.epoch + others.get("epoch_more", 0),
        voter_id=id,
        voter_directory_id=others.get("directory_id", directory(id)),
        listeners=[UpdatedListener(name=name, host=at.host, port=at.port) for name, at in endpoints.items()],
        k_raft_version_feature=KRaftVersionFeature(
            min_supported_version=lowest, max_supported_version=highest
        ),
    )


def versions(
    lowest: int = 0, highest: int = 1, *, error: int = 0, name: str = "kraft.version"
) -> ApiVersionsResponse:
    feature = SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
    return ApiVersionsResponse(error_code=error, supported_features=[feature])


def answer_versions(leader: Replica, answer: ApiVersionsResponse | None) -> None:
    (sent,) = leader.sent(ApiVersionsRequest)
    assert sent.to == address(9)
    leader.answer(sent, answer)


# -- AddRaftVoter ------------------------------------------------------------------------------------


def test_without_waiting_for_the_commit() -> None:
    leader = alone()
    fetch(leader, 9)
    begin(leader, addition(ack_when_committed=False))
    answer_versions(leader, versions())
    assert leader.replies.pop("change").error_code == 0
    # but it is under way until it is committed
    assert begin(leader, addition(8)).error_code == ErrorCode.request_timed_out


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (addition(cluster_id="other"), ErrorCode.inconsistent_cluster_id),
        (addition(-1), ErrorCode.invalid_request),
        (addition(directory_id=UUID(int=0)), ErrorCode.invalid_request),
        (addition(endpoints={}), ErrorCode.invalid_request),
        (addition(endpoints={"OTHER": address(9)}), ErrorCode.invalid_request),
        (addition(1), ErrorCode.duplicate_voter),
        (addition(1, directory_id=UUID(int=9)), ErrorCode.duplicate_voter),
        (removal(1, cluster_id="other"), ErrorCode.inconsistent_cluster_id),
        (removal(-1), ErrorCode.invalid_request),
        (removal(1, directory_id=UUID(int=0)), ErrorCode.invalid_request),
        (removal(9), ErrorCode.voter_not_found),
        (removal(1, directory_id=UUID(int=9)), ErrorCode.voter_not_found),
        (removal(1), ErrorCode.voter_not_found),  # the last one stays
    ],
)
def test_changes_that_are_refused(asked: Any, error: ErrorCode) -> None:
    leader = alone()
    end = leader.log.end
    answer = begin(leader, asked)
    assert answer.error_code == error
    assert answer.error_message
    assert leader.log.end == end
    assert not leader.sent(ApiVersionsRequest)


def test_a_cluster_id_is_not_needed() -> None:
    assert begin(alone(), removal(9, cluster_id=None)).error_code == ErrorCode.voter_not_found


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (versions(0, 0), ErrorCode.invalid_request),
        (versions(2, 3), ErrorCode.invalid_request),
        (versions(name="metadata.version"), ErrorCode.invalid_request),
        (versions(error=35), ErrorCode.request_timed_out),
        (None, ErrorCode.request_timed_out),
    ],
)
def test_a_voter_that_does_not_understand_is_not_added(answer: Any, error: ErrorCode) -> None:
    leader = alone()
    fetch(leader, 9)
    begin(leader, addition())
    answer_versions(leader, answer)
    assert leader.replies["change"].error_code == error
    assert leader.raft.voters.ids == [1]
    leader.replies.clear()
    leader.pass_time(50)
    assert begin(leader, addition()) is None  # it may try again


def test_a_voter_that_has_just_failed_is_not_asked_at_once() -> None:
    leader = alone()
    begin(leader, addition())
    answer_versions(leader, None)
    leader.replies.clear()
    assert "not ready" in begin(leader, addition()).error_message


def test_a_voter_that_lags_is_not_added() -> None:
    leader = alone()
    begin(leader, addition())
    answer_versions(leader, versions())
    assert leader.replies["change"].error_code == ErrorCode.request_timed_out
    assert "lagging" in leader.replies["change"].error_message


def test_a_voter_that_does_not_answer_is_given_up() -> None:
    leader = alone()
    begin(leader, addition())
    (sent,) = leader.sent(ApiVersionsRequest)
    leader.pass_time(1_999)
    assert not leader.replies
    leader.pass_time(1)
    assert leader.replies["change"].error_code == ErrorCode.request_timed_out
    leader.answer(sent, versions())  # too late
    assert leader.raft.voters.ids == [1]


def test_a_change_that_is_not_committed_in_time_may_still_come_and_excludes_others() -> None:
    leader = alone()
    fetch(leader, 9)
    begin(leader, addition())
    answer_versions(leader, versions())
    leader.pass_time(2_000)
    assert leader.replies.pop("change").error_code == ErrorCode.request_timed_out
    assert begin(leader, removal(9)).error_code == ErrorCode.request_timed_out
    leader.replies.clear()
    fetch(leader, 9)
    assert begin(leader, removal(9)).error_code == 0


def test_one_change_at_a_time() -> None:
    leader = alone()
    begin(leader, addition())
    for other in (addition(8), removal(1), update(1, leader)):
        assert leader.ask(other).error_code == ErrorCode.request_timed_out


def test_no_change_before_the_epoch_is_committed() -> None:
    log = dynamic_log(1, 2)
    leader = elected(voters=(), log=log)
    assert leader.role.high_watermark is None
    for other in (addition(8), removal(2), update(2, leader)):
        assert leader.ask(other).error_code == ErrorCode.request_timed_out


def test_a_pending_voter_change_is_answered_when_the_leader_resigns() -> None:
    leader = alone()
    begin(leader, addition())
    leader.do(leader.raft.resign(leader.now_ms, leader.role.epoch))
    assert leader.replies["change"].error_code == ErrorCode.not_leader_or_follower


# -- RemoveRaftVoter ---------------------------------------------------------------------------------


def test_the_other_voters_continue_without_the_leader_that_has_removed_itself() -> None:
    cluster = Cluster.dynamic([1, 2, 3])
    leader = cluster.elect()
    cluster.run(500)
    begin(leader, removal(leader.id))
    cluster.run_until(lambda: [each for each in cluster.leaders if each is not leader])
    new = max(cluster.leaders, key=lambda each: each.role.epoch)
    cluster.run_until(lambda: new.raft.high_watermark == new.log.end.offset)
    assert leader.id not in new.raft.voters.ids
    cluster.run_until(lambda: isinstance(leader.role, Follower))


# -- UpdateRaftVoter ---------------------------------------------------------------------------------


def test_an_update_goes_into_the_log_and_is_answered_at_once() -> None:
    _, leader = three()
    id = min({1, 2, 3} - {leader.id})
    elsewhere = {LISTENER: Address("b", 2), "TOO": Address("c", 3)}
    end = leader.log.end
    answer = leader.ask(update(id, leader, endpoints=elsewhere))
    assert answer.error_code == 0
    assert answer.current_leader == CurrentLeader(
        leader_id=leader.id, leader_epoch=leader.role.epoch, host="127.0.0.1", port=9000 + leader.id
    )
    assert leader.log.end.offset == end.offset + 1
    assert leader.raft.voters.voters[id] == Voter(key(id), elsewhere, VersionRange(0, 1))
    # the next one waits until this one is committed
    assert leader.ask(update(id, leader)).error_code == ErrorCode.request_timed_out


@pytest.mark.parametrize(
    ("others", "error"),
    [
        ({"cluster_id": "other"}, ErrorCode.inconsistent_cluster_id),
        ({"epoch_more": -1}, ErrorCode.fenced_leader_epoch),
        ({"epoch_more": 1}, ErrorCode.unknown_leader_epoch),
        ({"id": -1}, ErrorCode.invalid_request),
        ({"directory_id": UUID(int=0)}, ErrorCode.invalid_request),
        ({"endpoints": {}}, ErrorCode.invalid_request),
        ({"endpoints": {"OTHER": address(2)}}, ErrorCode.invalid_request),
        ({"versions": (-1, 1)}, ErrorCode.invalid_request),
        ({"versions": (1, 0)}, ErrorCode.invalid_request),
        ({"versions": (0, -1)}, ErrorCode.invalid_request),
        ({"versions": (0, 0)}, ErrorCode.invalid_request),  # does not understand what holds
        ({"id": 9}, ErrorCode.voter_not_found),
        ({"directory_id": UUID(int=9)}, ErrorCode.voter_not_found),
    ],
)
def test_updates_that_are_refused(others: dict[str, Any], error: ErrorCode) -> None:
    _, leader = three()
    end = leader.log.end
    id = others.pop("id", min({1, 2, 3} - {leader.id}))
    assert leader.ask(update(id, leader, **others)).error_code == error
    assert leader.log.end == end


def test_who_does_not_lead_changes_nothing() -> None:
    cluster = Cluster.dynamic([1, 2, 3])
    leader = cluster.elect()
    follower = next(each for each in cluster.replicas.values() if each is not leader)
    for request in (addition(), removal(1), update(1, leader)):
        assert follower.ask(request).error_code == ErrorCode.not_leader_or_follower
    answer = follower.ask(update(1, leader))
    assert answer.current_leader.leader_id == leader.id


# -- kraft.version 0 ---------------------------------------------------------------------------------


def test_changes_need_kraft_version_1() -> None:
    replica = Replica(settings(1, [1]))
    assert replica.ask(addition()).error_code == ErrorCode.unsupported_version
    assert replica.ask(removal(1)).error_code == ErrorCode.unsupported_version


def test_the_upgrade_waits_until_every_voter_has_sent_update_voter_and_supports_it() -> None:
    cluster = Cluster.static(3)
    leader = cluster.elect()
    cluster.run_until(lambda: leader.raft.high_watermark)
    a, b = sorted({1, 2, 3} - {leader.id})
    epoch, end = leader.role.epoch, leader.log.end

    def upgrade(version: int = 1) -> None:
        leader.do(leader.raft.upgrade_kraft_version(leader.now_ms, epoch=epoch, version=version))

    with pytest.raises(InvalidUpdateVersion, match="not all of the voters"):
        upgrade()
    assert leader.ask(update(9, leader)).error_code == ErrorCode.voter_not_found
    assert leader.ask(update(a, leader)).error_code == 0
    assert leader.ask(update(b, leader, versions=(0, 0))).error_code == 0
    with pytest.raises(InvalidUpdateVersion, match="not all of the voters"):
        upgrade()
    assert leader.ask(update(b, leader)).error_code == 0
    with pytest.raises(InvalidUpdateVersion):
        upgrade(2)
    assert leader.log.end == end  # nothing of all that is in the log
    upgrade()
    assert leader.raft.kraft_version == 1
    assert leader.raft.voters == voter_set(1, 2, 3)
    assert leader.raft.kraft_version_at(end.offset - 1) == 0
    assert leader.raft.voters_at(end.offset - 1) is None
    assert leader.raft.voters_at(leader.log.end.offset - 1) == voter_set(1, 2, 3)


def test_a_controller_without_a_listener_cannot_be_upgraded() -> None:
    leader = Replica(settings(1, [1], endpoints={}))
    with pytest.raises(InvalidUpdateVersion, match="no listener"):
        leader.raft.upgrade_kraft_version(leader.now_ms, epoch=1, version=1)


def test_an_upgrade_that_is_truncated_is_none() -> None:
    cluster = Cluster.static(3)
    leader = cluster.elect()
    for id in {1, 2, 3} - {leader.id}:
        cluster.run_until(lambda: leader.raft.high_watermark)
        assert leader.ask(update(id, leader)).error_code == 0
    cluster.run(500)
    cluster.is_cut = lambda a, b: leader.id in (a, b)
    leader.do(leader.raft.upgrade_kraft_version(leader.now_ms, epoch=leader.role.epoch, version=1))
    assert leader.raft.kraft_version == 1
    cluster.run_until(lambda: [each for each in cluster.leaders if each is not leader])
    cluster.is_cut = lambda _a, _b: False
    cluster.run_until(lambda: isinstance(leader.role, Follower) and leader.role.has_fetched)
    cluster.run(1_000)
    assert leader.raft.kraft_version == 0
    assert leader.raft.voters.keys == [ReplicaKey(1), ReplicaKey(2), ReplicaKey(3)]


# -- what followers ask for --------------------------------------------------------------------------


def follower_of_2(**others: Any) -> Replica:
    """Node 1 follows node 2, the first voter, in epoch 5."""
    others = {"bootstrap_servers": (address(2),)} | others
    voters = others.pop("voters", (1, 2, 3))
    static = others.pop("static", ())
    log = None if static else dynamic_log(*voters)
    state = ElectionState(leader_epoch=5, leader_id=2, kraft_version=0 if static else 1)
    return Replica(settings(1, static, **others), log=log, election=state)


def after_a_while(replica: Replica) -> list[Any]:
    """The requests that the node sends beside fetches, which succeed all the time."""
    asked: list[Any] = []
    for _ in range(45):
        replica.pass_time(100)
        for sent in list(replica.sends):
            if isinstance(sent.message, FetchRequest):
                replica.answer(sent, fetch_answer())
            else:
                asked.append(sent.message)
                replica.answer(sent, None)
    return asked


def until_sent(replica: Replica, cls: type) -> Any:
    """Answer fetches until there is such a request."""
    while not replica.sent(cls):
        replica.pass_time(100)
        for sent in replica.sent(FetchRequest):
            replica.answer(sent, fetch_answer())
    (found,) = replica.sent(cls)
    return found


def test_a_voter_that_is_known_rightly_says_nothing() -> None:
    assert after_a_while(follower_of_2()) == []


def test_a_voter_with_new_endpoints_sends_update_voter_once_in_a_fetch_timeout() -> None:
    asked = after_a_while(follower_of_2(endpoints={LISTENER: address(77)}))
    assert 2 <= len(asked) <= 3
    assert isinstance(asked[0], UpdateRaftVoterRequest)
    assert (asked[0].voter_id, asked[0].voter_directory_id) == (1, directory(1))
    assert asked[0].listeners == [UpdatedListener(name=LISTENER, host="127.0.0.1", port=9077)]
    assert asked[0].current_leader_epoch == 5


def test_a_configured_voter_sends_update_voter_until_the_leader_has_it() -> None:
    replica = follower_of_2(static=(1, 2, 3))
    asked = after_a_while(replica)
    assert {type(each) for each in asked} == {UpdateRaftVoterRequest}
    sent = until_sent(replica, UpdateRaftVoterRequest)
    replica.answer(sent, UpdateRaftVoterResponse(current_leader=CurrentLeader(leader_id=2, leader_epoch=5)))
    assert replica.role.has_updated_leader
    assert after_a_while(replica) == []


def test_an_update_is_answered_with_a_later_leader() -> None:
    replica = follower_of_2(endpoints={LISTENER: address(77)})
    sent = until_sent(replica, UpdateRaftVoterRequest)
    leader = CurrentLeader(leader_id=9, leader_epoch=8, host="127.0.0.1", port=9009)
    replica.answer(
        sent, UpdateRaftVoterResponse(error_code=ErrorCode.fenced_leader_epoch, current_leader=leader)
    )
    assert (replica.role.leader_id, replica.role.epoch) == (9, 8)
    assert replica.raft.leader_address == address(9)


@pytest.mark.parametrize(
    "answer",
    [
        UpdateRaftVoterResponse(error_code=42, current_leader=CurrentLeader(leader_id=2, leader_epoch=5)),
        UpdateRaftVoterResponse(error_code=120, current_leader=CurrentLeader(leader_id=2, leader_epoch=5)),
        UpdateRaftVoterResponse(),
    ],
)
@pytest.mark.logs("returned an error in")
def test_an_update_that_is_refused_is_tried_again_later(answer: UpdateRaftVoterResponse) -> None:
    replica = follower_of_2(static=(1, 2, 3))
    replica.answer(until_sent(replica, UpdateRaftVoterRequest), answer)
    assert isinstance(replica.role, Follower)
    assert not replica.role.has_updated_leader
    until_sent(replica, UpdateRaftVoterRequest)


@pytest.mark.logs("returned an error in")
def test_a_join_that_is_refused_is_tried_again_later() -> None:
    replica = follower_of_2(voters=(2, 3), auto_join_enable=True)
    refusal = AddRaftVoterResponse(error_code=ErrorCode.unsupported_version)
    replica.answer(until_sent(replica, AddRaftVoterRequest), refusal)
    assert not [each for each in replica.sends if each.node_id == 2]
    until_sent(replica, AddRaftVoterRequest)


def test_a_controller_with_auto_join_adds_itself() -> None:
    assert after_a_while(follower_of_2(voters=(2, 3))) == []
    assert after_a_while(follower_of_2(voters=(2, 3), auto_join_enable=True, can_become_voter=False)) == []
    asked = after_a_while(follower_of_2(voters=(2, 3), auto_join_enable=True))
    assert isinstance(asked[0], AddRaftVoterRequest)
    assert (asked[0].voter_id, asked[0].voter_directory_id) == (1, directory(1))
    assert not asked[0].ack_when_committed


def test_a_controller_with_a_new_disk_has_its_old_one_removed_first() -> None:
    asked = after_a_while(follower_of_2(directory_id=UUID(int=77), auto_join_enable=True))
    assert isinstance(asked[0], RemoveRaftVoterRequest)
    assert (asked[0].voter_id, asked[0].voter_directory_id) == (1, directory(1))


@pytest.mark.parametrize("error", [ErrorCode.none, ErrorCode.request_timed_out, ErrorCode.duplicate_voter])
def test_after_an_answer_it_waits_for_the_next_time(error: ErrorCode) -> None:
    replica = follower_of_2(voters=(2, 3), auto_join_enable=True)
    sent = until_sent(replica, AddRaftVoterRequest)
    replica.answer(sent, AddRaftVoterResponse(error_code=error))
    assert replica.role.update_voter_at_ms == replica.now_ms + 2_000
    assert replica.sent(FetchRequest)


def test_times_start_as_the_time_of_day() -> None:
    leader = alone()
    assert leader.log.batches[0].header.max_timestamp == START_MS


@pytest.mark.parametrize("request_of", [addition, removal])
def test_a_refusal_that_quotes_the_longest_cluster_id_can_be_encoded(request_of: Any) -> None:
    answer = begin(alone(), request_of(9, cluster_id="x" * 32_767))
    assert answer.error_code == ErrorCode.inconsistent_cluster_id
    assert len(answer.error_message) < 10_000
