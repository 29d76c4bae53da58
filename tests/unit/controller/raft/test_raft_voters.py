"""Voter sets, their history in the log, and the nodes to which requests may be sent."""

from itertools import combinations
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.controller.raft.control_record_history import ControlRecordHistory
from ottla.controller.raft.request_manager import RequestManager
from ottla.controller.raft.types import NEVER_MS, Address, Node, OffsetAndEpoch, ReplicaKey, VersionRange
from ottla.controller.raft.voters import Voter, VoterSet
from ottla.protocol.messages.k_raft_version_record import KRaftVersionRecord
from ottla.stories.quorum.raft_replicas import LISTENER, MemoryLog, address, dynamic_log, key, voter_set


def voter(id: int, directory_id: UUID | None = None, host: str = "h") -> Voter:
    key_ = key(id) if directory_id is None else ReplicaKey(id, directory_id)
    return Voter(key_, {LISTENER: Address(host, 1)}, VersionRange(0, 1))


def test_a_record_and_back() -> None:
    voters = voter_set(1, 2, 3)
    assert VoterSet.of_record(voters.to_record()) == voters


def test_configured_voters_are_any_disk_of_a_node() -> None:
    voters = VoterSet.of_addresses({2: address(2), 1: address(1)}, listener_name=LISTENER)
    assert voters.ids == [1, 2]
    assert voters.is_voter(key(1))
    assert voters.is_voter(ReplicaKey(1, UUID(int=5)))
    assert voters.node(2, listener_name=LISTENER) == Node(2, address(2))
    assert voters.node(2, listener_name="OTHER") is None
    assert voters.node(9, listener_name=LISTENER) is None


def test_voters_of_the_log_are_one_disk_of_a_node() -> None:
    voters = voter_set(1, 2)
    assert voters.is_voter(key(1))
    assert not voters.is_voter(ReplicaKey(1, UUID(int=5)))
    assert not voters.is_voter(ReplicaKey(1))
    assert not voters.is_only_voter(key(1))
    assert voter_set(1).is_only_voter(key(1))
    assert not voter_set(1).is_only_voter(key(2))


@pytest.mark.parametrize(("count", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_majority(count: int, majority: int) -> None:
    assert voter_set(*range(count)).majority == majority


def test_changes() -> None:
    voters = voter_set(1, 2)
    assert voters.with_voter(voter(2, UUID(int=5))) is None  # the id is taken
    more = voters.with_voter(voter(3))
    assert more is not None
    assert more.ids == [1, 2, 3]
    assert voters.ids == [1, 2]
    assert more.without_voter(key(9)) is None
    assert more.without_voter(ReplicaKey(3, UUID(int=5))) is None
    less = more.without_voter(key(2))
    assert less is not None
    assert less.ids == [1, 3]
    assert voter_set(1).without_voter(key(1)) is None
    moved = voters.with_updated(voter(2, host="elsewhere"))
    assert moved is not None
    assert moved.endpoints(2) == {LISTENER: Address("elsewhere", 1)}
    assert voters.with_updated(voter(2, UUID(int=5))) is None
    updated = voters.with_directory(voter(2, UUID(int=5)))
    assert updated is not None
    assert updated.keys == [key(1), ReplicaKey(2, UUID(int=5))]
    assert voters.with_directory(voter(9)) is None
    assert voters.differs_from(voter(2, host="elsewhere"))
    assert not voters.differs_from(voters.voters[2])
    assert not voters.differs_from(voter(2, UUID(int=5)))


# KIP-853
@given(st.sets(st.integers(0, 5), min_size=1), st.sets(st.integers(0, 5), min_size=1))
def test_an_overlapping_majority_is_one(mine: set[int], others: set[int]) -> None:
    def majorities(ids: set[int]) -> list[set[int]]:
        return [set(each) for each in combinations(ids, len(ids) // 2 + 1)]

    overlap = all(a & b for a in majorities(mine) for b in majorities(others))
    assert voter_set(*mine).has_overlapping_majority(voter_set(*others)) is overlap
    assert overlap or len(mine ^ others) > 1  # single changes are always safe


# -- history -----------------------------------------------------------------------------------------


def test_the_history_of_a_log() -> None:
    log = dynamic_log(1)
    history = ControlRecordHistory(log, VoterSet({}))
    assert (history.voters, history.voters_offset, history.kraft_version) == (voter_set(1), -1, 1)
    log.append("a", "b", epoch=1)
    end = log.append_control([voter_set(1, 2).to_record()], epoch=1, now_ms=0)
    history.read(end)
    log.append("c", epoch=1)
    last = log.append_control([voter_set(1, 2, 3).to_record()], epoch=2, now_ms=0)
    history.read(end + 1)
    assert (end, last) == (2, 4)
    assert [history.voters_at(offset) for offset in (-1, 1, 2, 3, 4, 9)] == [
        voter_set(1), voter_set(1), voter_set(1, 2), voter_set(1, 2), voter_set(1, 2, 3), voter_set(1, 2, 3)
    ]  # fmt: skip
    assert history.voters_offset == 4
    history.truncate(4)
    assert (history.voters, history.voters_offset) == (voter_set(1, 2), 2)
    history.truncate(0)
    assert (history.voters, history.voters_offset) == (voter_set(1), -1)


def test_the_history_of_a_log_that_begins_with_a_snapshot() -> None:
    log = MemoryLog()
    log.snapshot(OffsetAndEpoch(10, 3), [KRaftVersionRecord(k_raft_version=1), voter_set(1, 2).to_record()])
    log.truncate_to_latest_snapshot()
    log.append_control([voter_set(1).to_record()], epoch=4, now_ms=0)
    history = ControlRecordHistory(log, voter_set(9))
    assert (history.voters, history.voters_offset, history.kraft_version) == (voter_set(1), 10, 1)
    assert (history.voters_at(9), history.kraft_version_at(9)) == (voter_set(1, 2), 1)
    assert (history.voters_at(8), history.kraft_version_at(8)) == (None, 0)


def test_configured_voters_hold_as_long_as_the_log_says_nothing() -> None:
    log = MemoryLog()
    history = ControlRecordHistory(log, voter_set(1, 2))
    assert (history.voters, history.voters_offset, history.voters_at(0)) == (voter_set(1, 2), None, None)
    history.read(log.append_control([voter_set(3).to_record()], epoch=1, now_ms=0))
    assert history.voters == voter_set(3)
    history.truncate(0)
    assert history.voters == voter_set(1, 2)


# -- peers -------------------------------------------------------------------------------------------

A, B = Node(-2, address(1)), Node(-3, address(2))


def peers() -> RequestManager:
    return RequestManager([A, B], retry_backoff_ms=20, request_timeout_ms=2_000, random=Random(1))


def test_a_request_at_a_time_and_a_pause_after_a_failure() -> None:
    known = peers()
    assert known.is_ready(A, 0)
    known.on_request_sent(A, correlation_id=1, now_ms=0)
    assert not known.is_ready(A, 1_999)
    assert known.ready_at_ms(A, 0) == 2_000
    assert known.is_response_expected(A.id, correlation_id=1)
    assert not known.is_response_expected(A.id, correlation_id=2)
    known.on_response_result(A.id, correlation_id=2, now_ms=5, success=True)  # another one
    assert not known.is_ready(A, 5)
    known.on_response_result(A.id, correlation_id=1, now_ms=5, success=False)
    assert known.is_backing_off(A, 24)
    assert known.is_ready(A, 25)
    known.on_request_sent(A, correlation_id=3, now_ms=30)
    known.on_response_result(A.id, correlation_id=3, now_ms=31, success=True)
    assert known.is_ready(A, 31)


def test_an_answer_that_does_not_come() -> None:
    known = peers()
    known.on_request_sent(A, correlation_id=1, now_ms=0)
    assert known.has_any_inflight_request(1_999)
    assert not known.has_request_timed_out(A, 1_999)
    assert known.has_request_timed_out(A, 2_000)
    assert not known.has_any_inflight_request(2_000)
    known.reset(A)
    assert not known.is_response_expected(A.id, correlation_id=1)


def test_no_voter_is_asked_for_the_leader_while_a_request_is_in_flight() -> None:
    known = peers()
    assert known.find_ready_bootstrap_server(0) in (A, B)
    known.on_request_sent(Node(7, address(7)), correlation_id=1, now_ms=0)
    assert known.find_ready_bootstrap_server(10) is None
    assert known.bootstrap_ready_at_ms(10) == 2_000
    known.on_response_result(7, correlation_id=1, now_ms=10, success=True)
    for node in (A, B):
        known.on_request_sent(node, correlation_id=2, now_ms=10)
        known.on_response_result(node.id, correlation_id=2, now_ms=12, success=False)
    assert known.find_ready_bootstrap_server(13) is None
    assert known.bootstrap_ready_at_ms(13) == 32
    known.reset_all()
    assert known.find_ready_bootstrap_server(13) in (A, B)


def test_without_bootstrap_servers_no_server_is_asked() -> None:
    known = RequestManager([], retry_backoff_ms=20, request_timeout_ms=2_000, random=Random(1))
    assert known.find_ready_bootstrap_server(0) is None
    assert known.bootstrap_ready_at_ms(0) == NEVER_MS
