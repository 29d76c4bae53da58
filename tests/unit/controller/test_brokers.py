"""Brokers' lives: registration, heartbeats, fencing and leaving, and what that does to partitions.

About KIP-631.
"""

from typing import Any
from uuid import UUID

import pytest

from ottla.controller import producer_ids
from ottla.controller.membership import brokers
from ottla.controller.state import ClusterState, FixedKraftVersion
from ottla.metadata.image import Endpoint
from ottla.metadata.records import PartitionChangeRecord
from ottla.protocol.errors import (
    BrokerIdNotRegistered,
    DuplicateBrokerRegistration,
    ErrorCode,
    InconsistentClusterId,
    InvalidRegistration,
    KafkaError,
    StaleBrokerEpoch,
    UnsupportedVersion,
)
from ottla.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest
from ottla.stories.elections.machine import CLUSTER_ID, Machine, directory

FEATURES = {"metadata.version": (7, 33), "eligible.leader.replicas.version": (0, 1)}


def request(broker_id: int = 1, incarnation: int = 77, **fields: Any) -> BrokerRegistrationRequest:
    features = fields.pop("features", FEATURES)
    wanted = BrokerRegistrationRequest(
        broker_id=broker_id,
        cluster_id=CLUSTER_ID,
        incarnation_id=UUID(int=incarnation),
        listeners=[Listener(name="P", host="h", port=9092, security_protocol=0)],
        features=[
            Feature(name=name, min_supported_version=first, max_supported_version=last)
            for name, (first, last) in features.items()
        ],
        rack="r1",
        log_dirs=[directory(broker_id)],
    )
    for name, value in fields.items():
        setattr(wanted, name, value)
    return wanted


def register(machine: Machine, wanted: BrokerRegistrationRequest) -> int:
    return machine.do(brokers.register(machine.state, wanted, now_ms=machine.now_ms)).broker_epoch


def beat(machine: Machine, broker_id: int = 1, *, offset: int | None = None, **fields: Any) -> Any:
    broker = machine.state.image.brokers[broker_id]
    heartbeat = BrokerHeartbeatRequest(
        broker_id=broker_id,
        broker_epoch=broker.epoch,
        current_metadata_offset=len(machine.log) - 1 if offset is None else offset,
        cordoned_log_dirs=[],
    )
    for name, value in fields.items():
        setattr(heartbeat, name, value)
    return machine.do(brokers.heartbeat(machine.state, heartbeat, now_ms=machine.now_ms))


def test_a_broker_joins():
    machine = Machine()
    offset = len(machine.log)
    assert register(machine, request()) == offset
    broker = machine.state.image.brokers[1]
    assert (broker.epoch, broker.rack, broker.is_fenced) == (offset, "r1", True)
    assert broker.endpoints == {"P": Endpoint("h", 9092, 0)}
    assert broker.log_dirs == (directory(1),)
    # It has to read its own registration before it is let in.
    early = beat(machine, offset=offset - 1)
    assert (early.is_caught_up, early.is_fenced) == (False, True)
    late = beat(machine, offset=offset)
    assert (late.is_caught_up, late.is_fenced, late.should_shut_down) == (True, False, False)
    assert machine.state.image.brokers[1].is_active


def test_it_may_want_to_stay_out():
    machine = Machine()
    register(machine, request())
    assert beat(machine, want_fence=True).is_fenced
    assert not beat(machine).is_fenced
    assert beat(machine, want_fence=True).is_fenced


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"cluster_id": "other"}, InconsistentClusterId),
        ({"is_migrating_zk_broker": True}, BrokerIdNotRegistered),
        ({"log_dirs": []}, InvalidRegistration),
        ({"log_dirs": [UUID(int=1)]}, InvalidRegistration),  # reserved
        ({"log_dirs": [directory(1)] * 2}, InvalidRegistration),
        ({"log_dirs": [directory(2)]}, InvalidRegistration),  # another broker's
        ({"features": {"eligible.leader.replicas.version": (0, 1)}}, InvalidRegistration),
        ({"features": {**FEATURES, "metadata.version": (7, 29)}}, UnsupportedVersion),
        ({"features": {"metadata.version": (7, 33)}}, UnsupportedVersion),  # the ELR is finalized at 1
        ({"features": {**FEATURES, "group.version": (1, 1)}}, UnsupportedVersion),  # it is at 0
    ],
)
def test_registrations_that_are_refused(fields: dict, error: type[KafkaError]):
    machine = Machine(brokers=[2])
    with pytest.raises(error):
        register(machine, request(**fields))


@pytest.mark.parametrize(("finalized", "offered", "is_taken"), [
    (0, None,   True),
    (0, (0, 1), True),
    (0, (1, 1), False),
    (1, None,   False),
    (1, (0, 0), False),
    (1, (0, 1), True),
])  # fmt: skip
def test_the_quorums_own_level_is_a_feature_like_others(
    finalized: int, offered: tuple[int, int] | None, is_taken: bool
):
    """Although control records hold it (KIP-853): a broker without it cannot read the metadata log."""
    machine = Machine()
    machine.state.kraft = FixedKraftVersion(finalized)
    features = FEATURES if offered is None else {**FEATURES, "kraft.version": offered}
    if is_taken:
        register(machine, request(features=features))
    else:
        with pytest.raises(UnsupportedVersion, match=r"of kraft\.version"):
            register(machine, request(features=features))


def test_two_processes_with_one_id():
    machine = Machine()
    epoch = register(machine, request())
    beat(machine)
    with pytest.raises(DuplicateBrokerRegistration):
        register(machine, request(incarnation=78))
    # The same process may change its registration, and keeps epoch and standing.
    assert register(machine, request(rack="r2")) == epoch
    assert machine.state.image.brokers[1].rack == "r2"
    assert machine.state.image.brokers[1].is_active
    machine.now_ms += 9_000
    assert register(machine, request(incarnation=78)) > epoch
    with pytest.raises(StaleBrokerEpoch):
        beat(machine, broker_epoch=epoch)


def test_a_new_active_controller_gives_every_broker_a_session():
    machine = Machine(brokers=[1, 2])
    all_brokers = machine.state.image.brokers.values()
    machine.state.sessions.start_all(all_brokers, stopped=[1], now_ms=machine.now_ms)
    with pytest.raises(DuplicateBrokerRegistration):
        register(machine, request(2))
    register(machine, request(1))  # that process is known to be gone


@pytest.mark.parametrize(("elr", "isr", "elr_after"), [(True, (2,), ()), (False, (2,), ())])
def test_a_follower_falls_silent(elr: bool, isr: tuple, elr_after: tuple):
    machine = Machine(brokers=[1, 2], elr=elr)
    machine.create("t", [2, 1])
    machine.now_ms += 8_999
    beat(machine, 2)
    assert machine.do(brokers.expire_sessions(machine.state, now_ms=machine.now_ms)) == []
    machine.now_ms += 1
    assert machine.do(brokers.expire_sessions(machine.state, now_ms=machine.now_ms)) == [1]
    assert machine.do(brokers.expire_sessions(machine.state, now_ms=machine.now_ms)) == []
    partition = machine.partition("t")
    assert machine.state.image.brokers[1].is_fenced
    assert (partition.isr, partition.elr, partition.leader, partition.leader_epoch) == (isr, elr_after, 2, 0)


def test_controlled_shutdown_waits_until_the_others_know():
    machine = Machine(brokers=[1, 2, 3])
    machine.create("t", [1, 2])
    assert not beat(machine, 1, want_shut_down=True).should_shut_down
    moved_at = len(machine.log) - 1
    assert machine.state.image.brokers[1].in_controlled_shutdown
    assert (machine.partition("t").leader, machine.partition("t").isr) == (2, (2,))
    beat(machine, 2, offset=moved_at)
    beat(machine, 3, offset=moved_at - 1)
    assert not beat(machine, 1, want_shut_down=True).should_shut_down
    beat(machine, 3, offset=moved_at)
    answer = beat(machine, 1, want_shut_down=True)
    assert (answer.should_shut_down, answer.is_fenced) == (True, True)


def test_partitions_are_scanned_again_only_after_a_change(monkeypatch: pytest.MonkeyPatch):
    machine = Machine(brokers=[1, 2])
    machine.create("t", [1, 2])
    assert not beat(machine, 1, want_shut_down=True).should_shut_down
    moved_at = len(machine.log) - 1
    looks = []
    partitions = ClusterState.partitions
    monkeypatch.setattr(
        ClusterState, "partitions", lambda state: looks.append(len(machine.log)) or partitions(state)
    )
    for _ in range(10):
        beat(machine, 2, offset=moved_at - 1)
        assert not beat(machine, 1, want_shut_down=True).should_shut_down
    assert len(looks) == 1
    # It leads a partition again: it must not shut down, however far the others have read.
    topic_id = machine.state.image.topics_by_name["t"].topic_id
    machine.replay(PartitionChangeRecord(partition_id=0, topic_id=topic_id, isr=[2, 1], leader=1))
    for _ in range(10):
        beat(machine, 2, offset=moved_at)
        assert not beat(machine, 1, want_shut_down=True).should_shut_down
    assert len(looks) == 2
    machine.replay(PartitionChangeRecord(partition_id=0, topic_id=topic_id, leader=2))
    assert beat(machine, 1, want_shut_down=True).should_shut_down


@pytest.mark.parametrize("elr", [True, False])
def test_two_brokers_leave_at_once(elr: bool):
    machine = Machine(brokers=[1, 2, 3], elr=elr)
    machine.set_config("min.insync.replicas", "2")
    machine.create("t", [1, 2])
    machine.create("u", [1, 3])
    for broker_id in (1, 2):
        assert not beat(machine, broker_id, want_shut_down=True).should_shut_down
    t, u = machine.partition("t"), machine.partition("u")
    assert t.leader is None
    assert (t.isr, t.elr, t.last_known_elr) == (((), (1, 2), (2,)) if elr else ((2,), (), ()))
    assert (u.leader, u.isr, u.elr) == (3, (3,), (1,) if elr else ())
    # Neither waits for the other, only for 3, which stays.
    assert not beat(machine, 1, want_shut_down=True).should_shut_down
    beat(machine, 3)
    for broker_id in (1, 2):
        assert beat(machine, broker_id, want_shut_down=True).should_shut_down
    # With an ELR the first that is unfenced leads; without, it has to be the one that left last.
    for broker_id in (1, 2):
        epoch = machine.state.image.brokers[broker_id].epoch
        register(machine, request(broker_id, incarnation=80 + broker_id, previous_broker_epoch=epoch))
        beat(machine, broker_id)
    t = machine.partition("t")
    assert (t.leader, t.isr, t.elr) == ((1, (1,), (2,)) if elr else (2, (2,), ()))


def test_a_controlled_shutdown_survives_its_controller():
    machine = Machine(brokers=[1, 2])
    machine.create("t", [1, 2])
    assert not beat(machine, 1, want_shut_down=True).should_shut_down
    all_brokers = machine.state.image.brokers.values()
    machine.state.sessions.start_all(all_brokers, now_ms=machine.now_ms)  # another controller
    assert machine.state.image.brokers[1].in_controlled_shutdown
    # It knows of no offset to wait for; the broker leads nothing any more, and may go.
    assert beat(machine, 1, want_shut_down=True).should_shut_down


def test_a_broker_that_shut_down_leads_nothing_until_it_registers_again():
    machine = Machine(brokers=[1, 2])
    machine.create("t", [1])
    beat(machine, 1, want_shut_down=True)
    assert machine.partition("t").leader is None
    beat(machine, 2)
    assert beat(machine, 1, want_shut_down=True).should_shut_down
    for _ in range(2):
        assert beat(machine, 1).is_fenced
    machine.now_ms += 9_000
    epoch = machine.state.image.brokers[1].epoch
    register(machine, request(1, previous_broker_epoch=epoch))
    assert not beat(machine, 1).is_fenced
    assert machine.partition("t").leader == 1


@pytest.mark.parametrize("want_fence", [True, False])
def test_who_leads_nothing_may_go_at_once(want_fence: bool):
    machine = Machine(brokers=[1, 2])
    assert beat(machine, want_shut_down=True, want_fence=want_fence).should_shut_down
    assert beat(machine, want_shut_down=True).should_shut_down  # fenced by now


# KIP-112, KIP-858
def test_a_directory_goes_offline():
    machine = Machine(brokers=[2])
    register(machine, request(1, log_dirs=[directory(1), directory(9)]))
    beat(machine, 1)
    machine.create("t", [1, 2])
    topic_id = machine.state.image.topics_by_name["t"].topic_id
    machine.replay(
        PartitionChangeRecord(partition_id=0, topic_id=topic_id, directories=[directory(9), directory(2)])
    )
    beat(machine, 1, offline_log_dirs=[directory(9)])
    assert (machine.partition("t").leader, machine.partition("t").isr) == (2, (2,))
    assert machine.state.image.brokers[1].log_dirs == (directory(1),)
    before = len(machine.log)
    beat(machine, 1, offline_log_dirs=[directory(9)])
    assert len(machine.log) == before


def test_unregistering():
    machine = Machine(brokers=[1, 2])
    machine.create("t", [1, 2])
    response = machine.do(brokers.unregister(machine.state, UnregisterBrokerRequest(broker_id=1)))
    assert response.error_code == ErrorCode.none
    assert set(machine.state.image.brokers) == {2}
    assert machine.partition("t").leader == 2
    with pytest.raises(BrokerIdNotRegistered):
        brokers.unregister(machine.state, UnregisterBrokerRequest(broker_id=1))


@pytest.mark.parametrize("epoch", [None, 1])
def test_strangers_are_stale(epoch: int | None):
    machine = Machine(brokers=[] if epoch is None else [1])
    heartbeat = BrokerHeartbeatRequest(broker_id=1, broker_epoch=10**6)
    with pytest.raises(StaleBrokerEpoch):
        brokers.heartbeat(machine.state, heartbeat, now_ms=machine.now_ms)


# KIP-730
def test_producer_ids_are_given_once():
    machine = Machine(brokers=[1])
    wanted = AllocateProducerIdsRequest(broker_id=1, broker_epoch=machine.state.image.brokers[1].epoch)
    blocks = [machine.do(producer_ids.allocate(machine.state, wanted)) for _ in range(3)]
    assert [(block.producer_id_start, block.producer_id_len) for block in blocks] == [
        (0, 1000),
        (1000, 1000),
        (2000, 1000),
    ]
    with pytest.raises(StaleBrokerEpoch):
        producer_ids.allocate(machine.state, AllocateProducerIdsRequest(broker_id=1, broker_epoch=-1))
