"""Faults of disks and object stores: what the broker does then, and that it recovers."""

import threading

import pytest

from ottla.testing import Broker, CannotStart, ClusterError, FaultNeverStruck
from tests.unit.testing.waiting import wait_for

TIERED = {"remote.storage.enable": True, "segment.bytes": 1_048_576, "local.retention.bytes": 1}
HALF_A_SEGMENT = "x" * 700_000

#: A clock that is moved while something of a reset is still written to the metadata topic, or while a call of the store
#: is under way, which has then taken as long.
pytestmark = pytest.mark.logs(
    "its copies in the remote tier cannot be",
    "the next attempt is in",
    "a call of the store has had no answer",
)


@pytest.fixture(scope="module")
def shared():
    with Broker(tier=True) as broker:
        yield broker


@pytest.fixture
def broker(shared):
    shared.start()
    shared.reset()
    return shared


def tiers(broker, base_offset):
    return [each.tier for each in broker.segments("t") if each.base_offset == base_offset]


# -- disks ----------------------------------------------------------------------------------------------


@pytest.mark.logs("is offline", "has failed")
def test_a_full_disk_ends_the_broker_with_a_sentence(broker):
    broker.produce("t", "one")
    with broker.disk.fill() as full, pytest.raises(ClusterError):
        broker.produce("t", "two")
    assert full.struck
    wait_for(lambda: not broker.is_running)
    assert "which holds the metadata log, has failed: [Errno 28] No space left on device" in broker.failure
    with pytest.raises(RuntimeError, match="The broker has ended by itself: Log directory"):
        broker.segments("t")
    broker.start()
    assert broker.failure is None
    assert broker.values("t") == [b"one"]


@pytest.mark.logs("is offline", "has failed", "was not closed", "this node stops", "The node stops")
def test_a_broken_disk_ends_the_broker_and_refuses_its_start(broker):
    broker.produce("t", "one")
    broker.disk.fail()
    with pytest.raises(CannotStart, match=r"Cannot read .*meta\.properties: Input/output error"):
        broker.restart()
    assert not broker.is_running
    broker.disk.heal()
    broker.start()
    assert broker.values("t") == [b"one"]


@pytest.mark.logs("One turn of the event loop")
def test_a_slow_disk_delays_writes(broker):
    broker.create_topic("t")
    with broker.disk.slow(0.02) as slow:
        broker.produce("t", "one")
    assert slow.struck == 1
    assert not slow.is_active
    broker.produce("t", "two")
    assert slow.struck == 1
    with pytest.raises(ValueError, match="the delay must be positive"):
        broker.disk.slow(0)


def test_a_fault_that_nothing_has_met_is_reported(broker):
    with pytest.raises(FaultNeverStruck, match=r"broker\.disk\.fail\(\) was never met"), broker.disk.fail():
        pass
    with broker.disk.fail(strict=False), broker.tier.fail(strict=False):
        pass
    broker.tier.slow(1)
    with pytest.raises(FaultNeverStruck, match=r"broker\.tier\.slow\(1\) was never met"):
        broker.reset()
    broker.reset()


@pytest.mark.logs("One turn of the event loop")
def test_a_broker_that_is_killed_with_its_disk_slow_writes_nothing_more(broker):
    broker.produce("t", "one")
    broker.disk.slow(20)
    producing = threading.Thread(target=lambda: broker.produce("t", "two"))
    producing.start()
    wait_for(lambda: broker.disk._slow[0].struck)
    broker.kill()
    broker.disk.heal()
    broker.start()
    producing.join(10)  # no answer has come, so that the record was sent again
    assert broker.values("t") == [b"one", b"two"]


# -- object stores --------------------------------------------------------------------------------------


@pytest.mark.logs("copying", "cannot be read from the remote tier")
def test_copies_wait_for_a_store_that_fails(broker):
    broker.create_topic("t", config=TIERED)
    with broker.tier.fail() as failing:
        for _ in range(3):
            broker.produce("t", HALF_A_SEGMENT)
        wait_for(lambda: failing.struck)
        broker.advance(minutes=5)
        assert tiers(broker, 0) == ["local"]
    broker.advance(minutes=1)  # the pause before the copy is repeated
    wait_for(lambda: "remote" in tiers(broker, 0))
    broker.advance(minutes=5)  # the interval of retention
    assert tiers(broker, 0) == ["remote"]
    assert len(broker.values("t")) == 3


def test_a_broker_that_is_killed_while_the_store_is_slow_copies_nothing_more():
    with Broker(tier=True) as broker:
        broker.create_topic("t", config=TIERED)
        slow = broker.tier.slow(3600)
        for _ in range(2):
            broker.produce("t", HALF_A_SEGMENT)
        wait_for(lambda: slow.struck)
        broker.kill()
        broker.tier.heal()
        assert [*broker.tier_dir.rglob("*.log")] == []


@pytest.mark.logs("cannot be read from the remote tier")
def test_objects_vanish_and_come_back(broker):
    broker.create_topic("t", config=TIERED)
    for _ in range(2):
        broker.produce("t", HALF_A_SEGMENT)
    wait_for(lambda: "remote" in tiers(broker, 0))
    with broker.tier.empty() as empty:
        broker.produce("t", HALF_A_SEGMENT)  # closes the second segment, whose copy is there
        wait_for(lambda: "remote" in tiers(broker, 1))
        broker.advance(minutes=5)
        with pytest.raises(ClusterError):
            broker.values("t")
    assert empty.struck
    broker.advance(minutes=1)
    assert len(broker.values("t")) == 3


def test_a_slow_store_delays_reads(broker):
    broker.create_topic("t", config=TIERED)
    for _ in range(2):
        broker.produce("t", HALF_A_SEGMENT)
    wait_for(lambda: "remote" in tiers(broker, 0))
    broker.advance(minutes=5)
    with broker.tier.slow(0.05) as slow:
        broker.produce("t", "quick")
        assert len(broker.values("t")) == 3
    assert slow.struck
