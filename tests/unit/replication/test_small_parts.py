"""Sessions, rates and selectors of replication."""

import pytest

from ottla.protocol.types import TopicPartition
from ottla.replication.follower_session import FollowerSession
from ottla.replication.replica_selector import (
    ClientMetadata,
    LeaderSelector,
    LocalAwareRackReplicaSelector,
    PartitionView,
    RackAwareReplicaSelector,
    ReplicaView,
    UnknownSelector,
    load_selector,
)
from ottla.replication.replication_quota import ReplicationQuota

PARTITION = TopicPartition("t", 0)


# -- sessions ------------------------------------------------------------------------------------------------


def test_a_session_says_only_what_is_new():
    session: FollowerSession[str, int] = FollowerSession()
    assert session.request({}, lambda: {"a": 1, "b": 2}) == (0, 0, {"a": 1, "b": 2}, [])
    session.on_answer(77)
    assert session.request({"a": 1, "b": 3, "c": None}, dict) == (77, 1, {"b": 3}, [])
    session.on_answer(77)
    assert session.request({"a": None, "d": 4}, dict) == (77, 2, {"d": 4}, ["a"])
    assert session.rows == {"b": 3, "d": 4}


@pytest.mark.parametrize(("is_gone", "session_id"), [(True, 0), (False, 77)])
def test_a_refused_session_is_opened_again(is_gone, session_id):
    session: FollowerSession[str, int] = FollowerSession()
    session.request({}, lambda: {"a": 1})
    session.on_answer(77)
    session.on_refusal(is_gone=is_gone)
    assert session.request({}, lambda: {"a": 5}) == (session_id, 0, {"a": 5}, [])


def test_a_session_that_the_leader_has_closed_is_not_used_again():
    """It closes one without partitions, and says so by the session id 0 (FetchSessionHandler)."""
    session: FollowerSession[str, int] = FollowerSession()
    session.request({}, lambda: {"a": 1})
    session.on_answer(77)
    assert session.request({"a": None}, dict) == (77, 1, {}, ["a"])
    session.on_answer(0)
    assert session.request({"a": 2}, lambda: {"a": 2}) == (0, 0, {"a": 2}, [])
    session.on_answer(78)
    assert session.request({}, dict) == (78, 1, {}, [])


def test_a_leader_without_room_for_sessions_gets_full_fetches():
    session: FollowerSession[str, int] = FollowerSession()
    for _ in range(3):
        assert session.request({"a": 1}, lambda: {"a": 1}) == (0, 0, {"a": 1}, [])
        session.on_answer(0)


# -- rates ---------------------------------------------------------------------------------------------------


# KIP-73
def test_a_rate_is_measured_over_the_last_windows():
    quota = ReplicationQuota(rate=lambda: 1_000, window_count=10, window_ms=1_000)
    assert not quota.is_exceeded(now_ms=0)
    quota.record(5_000, now_ms=0)
    assert quota.is_exceeded(now_ms=0)
    assert quota.is_exceeded(now_ms=4_999)
    assert not quota.is_exceeded(now_ms=5_000)
    quota.record(5_001, now_ms=5_000)
    assert quota.is_exceeded(now_ms=9_999)
    assert not quota.is_exceeded(now_ms=10_000), "the first window is not counted any more"


# -- selectors -----------------------------------------------------------------------------------------------


def view(broker_id: int, rack: str | None, *, end=100, silent_ms=0, local_start=None) -> ReplicaView:
    return ReplicaView(
        broker_id=broker_id,
        rack=rack,
        is_reachable=True,
        log_end_offset=end,
        ms_since_caught_up=silent_ms,
        local_log_start_offset=local_start,
    )


def reader_in(rack: str) -> ClientMetadata:
    return ClientMetadata(rack=rack, client_id="", client_address="", principal="", listener_name="")


# KIP-392
@pytest.mark.parametrize(
    ("rack", "chosen"),
    [("b", 3), ("a", 1), ("c", 5), ("d", 8), ("nowhere", 1), ("", 1)],
)
def test_the_nearest_replica_that_has_most(rack, chosen):
    leader = view(1, "a")
    followers = [
        view(2, "b", end=90),
        view(3, "b", end=95),
        view(4, "c", silent_ms=50),
        view(5, "c", silent_ms=10),
        view(8, "d"),
        view(7, "d"),
    ]
    partition = PartitionView(
        replicas=[leader, *followers, view(6, "a", end=100)], leader=leader, fetch_offset=0
    )
    client = reader_in(rack)
    assert RackAwareReplicaSelector().select(PARTITION, client, partition).broker_id == chosen
    assert LeaderSelector().select(PARTITION, client, partition) is leader


# Three replicas by (rack, local log start), of which the first one leads; the last one has most. None: unknown.
@pytest.mark.parametrize(("replicas", "rack", "offset", "chosen", "chosen_by_rack_alone"), [
    ([("a", 0),    ("b", 0),    ("b", 0)],    "b", 0,  3, 3),  # all have it: as by rack alone
    ([("a", 0),    ("b", 0),    ("b", 50)],   "b", 49, 2, 3),
    ([("a", 0),    ("b", 0),    ("b", 50)],   "b", 50, 3, 3),
    ([("b", 50),   ("b", 0),    ("b", 50)],   "b", 0,  2, 1),  # the leader is near, but has it no more
    ([("b", 0),    ("b", 0),    ("b", 0)],    "b", 0,  1, 1),
    ([("b", 50),   ("b", 0),    ("b", 0)],    "b", 0,  3, 1),
    ([("a", 0),    ("b", 50),   ("b", 60)],   "b", 0,  3, 3),  # none has it: remote in the rack, not local in another
    ([("b", 50),   ("b", 60),   ("a", 0)],    "b", 0,  1, 1),
    ([("a", 0),    ("b", None), ("b", 50)],   "b", 0,  2, 3),  # unknown counts as local
    ([("a", 0),    ("b", None), ("b", None)], "b", 0,  3, 3),
    ([("a", 0),    ("b", 0),    ("c", 0)],    "d", 0,  1, 1),  # no replica in the rack, or no rack: the leader
    ([("a", 50),   ("b", 0),    ("c", 0)],    "d", 0,  1, 1),
    ([("a", 50),   (None, 0),   ("c", 0)],    "",  0,  1, 1),
    ([(None, 50),  (None, 0),   (None, 0)],   "",  0,  1, 1),
])  # fmt: skip
def test_the_nearest_replica_that_has_the_offset_locally(
    replicas, rack, offset, chosen, chosen_by_rack_alone
):
    views = [
        view(broker_id, of_rack, end=90 + broker_id, local_start=local_start)
        for broker_id, (of_rack, local_start) in enumerate(replicas, 1)
    ]
    partition = PartitionView(replicas=views, leader=views[0], fetch_offset=offset)
    by_local = LocalAwareRackReplicaSelector().select(PARTITION, reader_in(rack), partition)
    by_rack = RackAwareReplicaSelector().select(PARTITION, reader_in(rack), partition)
    assert (by_local.broker_id, by_rack.broker_id) == (chosen, chosen_by_rack_alone)


class Mine:
    """A selector as a user writes one."""

    def configure(self, configs):
        self.configs = configs

    def select(self, topic_partition, client, partition):
        return partition.replicas[-1]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("org.apache.kafka.common.replica.RackAwareReplicaSelector", RackAwareReplicaSelector),
        ("org.apache.kafka.common.replica.LeaderSelector", LeaderSelector),
        ("ottla.replication.replica_selector.LeaderSelector", LeaderSelector),
        (
            "ottla.replication.replica_selector.LocalAwareRackReplicaSelector",
            LocalAwareRackReplicaSelector,
        ),
        ("LocalAwareRackReplicaSelector", LocalAwareRackReplicaSelector),
    ],
)
def test_selectors_by_name(name, kind):
    assert isinstance(load_selector(name, {}), kind)


def test_no_selector():
    assert load_selector(None, {}) is None
    assert load_selector("", {}) is None


@pytest.mark.parametrize("name", ["nowhere", "no.such.module.Class", "json.JSONDecoder", "json.nothing"])
def test_a_selector_that_cannot_be_used_is_named(name):
    with pytest.raises(UnknownSelector, match=f"replica.selector.class={name}"):
        load_selector(name, {})


def test_a_selector_that_a_package_offers(tmp_path, monkeypatch):
    offer = tmp_path / "nearby-1.0.dist-info"
    offer.mkdir()
    (offer / "METADATA").write_text("Metadata-Version: 2.1\nName: nearby\nVersion: 1.0\n")
    (offer / "entry_points.txt").write_text(
        "[ottla.replica_selectors]\nnearest = nearby:Nearest\nbroken = nearby:no\n"
    )
    (tmp_path / "nearby.py").write_text("class Nearest:\n    def select(self, *_):\n        return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert type(load_selector("nearest", {})).__module__ == "nearby"
    with pytest.raises(UnknownSelector, match="broken cannot be imported"):
        load_selector("broken", {})


def test_a_selector_of_ones_own_is_configured(monkeypatch):
    import json

    monkeypatch.setattr(json, "Mine", Mine, raising=False)
    selector = load_selector("json.Mine", {"rack": "a"})
    assert selector.configs == {"rack": "a"}
