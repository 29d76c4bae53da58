"""`ottla.testing.Broker`: its lives, what a test asks of it, its clock; nothing is left when it has stopped."""

import asyncio
import socket
import threading
import time
from contextlib import suppress

import pytest
from confluent_kafka import Consumer, Producer

from ottla.runtime.production import wall_clock_ms
from ottla.testing import Broker, CannotStart, ClusterError, Existing, KafkaError


@pytest.fixture(scope="module")
def shared():
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker(shared):
    shared.start()
    shared.reset()
    yield shared
    shared.reset()


# -- what is asked --------------------------------------------------------------------------------------


def test_records_are_read_without_a_client(broker):
    broker.create_topic("orders", partitions=2)
    assert broker.produce("orders", "one", b"two", partition=1, headers={"h": "v"}, timestamp_ms=7) == 0
    assert broker.produce("orders", None, key="k", partition=1) == 2
    assert broker.values("orders") == [b"one", b"two", None]
    first, *_, last = broker.records("orders")
    assert (first.partition, first.offset, first.timestamp_ms) == (1, 0, 7)
    assert first.headers == (("h", b"v"),)
    assert (last.key, last.value) == (b"k", None)
    assert broker.end_offsets("orders") == {0: 0, 1: 3}
    assert broker.values("orders", 0) == []


def test_a_key_chooses_the_partition_as_kafkas_producers_do(broker):
    broker.create_topic("keyed", partitions=3)
    for key in ("a", "b", "c", "d"):
        broker.produce("keyed", key, key=key)
    found = {record.key: record.partition for record in broker.records("keyed")}
    producer = Producer(broker.config(partitioner="murmur2"))
    for key in found:
        producer.produce("keyed", b"again", key=key)
    assert producer.flush(10) == 0
    again = {record.key: record.partition for record in broker.records("keyed") if record.value == b"again"}
    assert again == found


def test_a_topic_is_created_by_its_first_record(broker):
    assert broker.produce("new", "x") == 0
    assert broker.topics() == ["new"]


def test_what_does_not_exist_is_said(broker):
    broker.create_topic("t")
    with pytest.raises(ClusterError, match=r"topic t: TOPIC_ALREADY_EXISTS"):
        broker.create_topic("t")
    with pytest.raises(ClusterError, match=r"topic none: UNKNOWN_TOPIC_OR_PARTITION"):
        broker.delete_topic("none")
    with pytest.raises(ClusterError, match=r"Topic t has 1 partitions: there is no partition 4\."):
        broker.produce("t", "x", partition=4)
    with pytest.raises(ClusterError, match=r"Topic t has 0 records instead of 2\. \(waited 0\.02 s\)"):
        broker.wait_for_records("t", 2, timeout_s=0.02)


def test_what_arrives_is_recorded(broker):
    broker.produce("t", "before")
    with broker.recording("t") as arrived:
        broker.produce("t", "one", "two")
    assert [each.value for each in arrived] == [b"one", b"two"]
    with broker.recording("fresh", ["x"]):
        broker.produce("fresh", "x")
    with broker.recording("newer") as arrived:
        broker.produce("newer", "y")
    assert [each.value for each in arrived] == [b"y"]
    none = pytest.raises(AssertionError, match="have arrived instead of")
    with none, broker.recording("newest", []):
        broker.produce("newest", "z")
    with pytest.raises(AssertionError, match="have arrived instead of"), broker.recording("t", ["three"]):
        broker.produce("t", "four")


async def test_the_callers_loop_goes_on(broker):
    async def later():
        await asyncio.sleep(0)
        await broker.aio.produce("t", "x")

    task = asyncio.create_task(later())
    assert len(await broker.aio.wait_for_records("t", 1)) == 1
    await task


def test_groups(broker):
    broker.produce("t", "a", "b", "c")
    consumer = Consumer(broker.consumer_config("g", client_id="one"))
    consumer.subscribe(["t"])
    assert consumer.poll(10).value() == b"a"
    broker.wait_until_stable("g", members=1)
    consumer.commit(asynchronous=False)
    broker.wait_for_commit("g", "t", 1)
    assert broker.groups() == {"g": "Stable"}
    assert broker.committed("g") == {("t", 0): 1}
    assert broker.lag("g", "t") == {("t", 0): 2}
    [member] = broker.members("g")
    assert broker.expire_member("g", "one") == [member]
    assert broker.groups() == {"g": "Empty"}
    consumer.close()
    broker.reset()
    assert broker.groups() == {}
    assert broker.topics() == []


# -- time -----------------------------------------------------------------------------------------------


def test_a_day_passes(broker):
    broker.create_topic("day", config={"retention.ms": 24 * 3600 * 1000})
    broker.produce("day", "old")
    broker.advance(hours=23)
    assert broker.values("day") == [b"old"]
    broker.advance(hours=2)
    assert broker.start_offsets("day")[0] > 0
    assert broker.values("day") == []
    broker.produce("day", "young")
    broker.advance(hours=2)
    assert broker.values("day") == [b"young"]


def test_a_members_session_ends_by_the_clock(broker):
    broker.produce("t", "a")
    consumer = Consumer(broker.consumer_config("g", session_timeout_ms=30_000, heartbeat_interval_ms=10_000))
    consumer.subscribe(["t"])
    assert consumer.poll(10) is not None
    broker.wait_until_stable("g")
    broker.advance(seconds=31)
    assert broker.groups() == {"g": "Empty"}
    consumer.close()


def test_months_pass_and_the_broker_serves(broker):
    broker.advance(days=60)
    assert broker.produce("t", "x") == 0
    with pytest.raises(ValueError, match="cannot be moved back"):
        broker.advance(hours=-1)


def test_a_reset_lets_the_clock_show_the_present(broker):
    broker.advance(days=8)
    broker.produce("own", "x")
    broker.produce("client", "x", timestamp_ms=wall_clock_ms())
    broker.restart()
    broker.advance(minutes=5)
    assert broker.values("own") == [b"x"]
    assert broker.values("client") == []
    broker.reset()
    broker.produce("client", "x", timestamp_ms=wall_clock_ms())
    broker.advance(minutes=5)
    assert broker.values("client") == [b"x"]


# -- lives ----------------------------------------------------------------------------------------------


def test_a_restart_keeps_port_and_data(broker):
    broker.produce("t", "x")
    port = broker.port
    broker.restart()
    assert broker.port == port
    assert broker.values("t") == [b"x"]


def test_a_kill_breaks_connections_and_keeps_what_was_acknowledged(broker):
    broker.produce("t", "x")
    with socket.create_connection(("127.0.0.1", broker.port)) as connection:
        broker.values("t")  # the connection above is accepted by now
        broker.kill()
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert not broker.is_running
    assert not (broker.data_dir / ".kafka_cleanshutdown").exists()
    with pytest.raises(RuntimeError, match="does not run"):
        broker.advance(hours=1)
    broker.start()
    assert broker.values("t") == [b"x"]


def test_a_reset_lets_a_broker_run_again(broker):
    broker.kill()
    broker.reset()
    broker.produce("t", "x")
    broker.pause()
    broker.reset()
    broker.isolate()
    broker.reset()
    assert broker.topics() == []


def test_a_paused_broker_answers_no_request(broker):
    broker.produce("t", "x")
    broker.pause()
    found = []
    asking = threading.Thread(target=lambda: found.append(broker.values("t")))
    asking.start()
    asking.join(0.05)
    assert not found
    broker.resume()
    asking.join(10)
    assert found == [[b"x"]]


def test_a_paused_broker_is_waited_for_no_longer_than_the_test_allows(broker):
    broker.produce("t", "x")
    broker.pause()
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"segments: the broker is paused; call resume\(\) first\."):
        broker.segments("t")
    with pytest.raises(ClusterError, match=r"No broker has answered in time \(waited 0\.1 s\)"):
        broker.wait_for_records("t", 2, timeout_s=0.1)
    assert time.monotonic() - began < 5  # and not the ten seconds of a request
    broker.resume()
    with pytest.raises(ClusterError, match=r"Topic t has 1 records instead of 2\. \(waited 0\.1 s\)"):
        broker.wait_for_records("t", 2, timeout_s=0.1)


async def test_within_the_callers_loop():
    async with Broker() as broker:
        await broker.aio.produce("t", "x")
        assert await broker.aio.values("t") == [b"x"]


def test_data_is_kept_if_that_is_wanted(tmp_path):
    with Broker(data_dir=tmp_path / "data") as broker:
        broker.produce("t", "x")
    with Broker(data_dir=tmp_path / "data") as broker:
        assert broker.values("t") == [b"x"]


def test_a_start_that_fails_says_why_and_leaves_nothing(broker, tmp_path):
    threads = set(threading.enumerate())
    with pytest.raises(KafkaError, match=r"num\.partitions"):
        Broker(config={"num.partitions": "many"}).start()
    with pytest.raises(CannotStart, match=rf"Cannot listen at .*{broker.port}"):
        Broker(port=broker.port, data_dir=tmp_path).start()
    with pytest.raises(RuntimeError, match="before its first start"):
        _ = Broker().bootstrap_servers
    assert set(threading.enumerate()) <= threads


def test_several_brokers_at_once(broker):
    with Broker(config={"auto.create.topics.enable": False}) as other:
        assert other.port != broker.port
        broker.produce("t", "x")
        with pytest.raises(ClusterError, match=r"topic t: UNKNOWN_TOPIC_OR_PARTITION"):
            other.wait_for_records("t", 1, timeout_s=0.01)


def test_an_existing_cluster_can_be_asked_and_not_be_controlled(broker):
    broker.produce("t", "x")
    with Existing(broker.bootstrap_servers, is_shared=True) as existing:
        assert existing.values("t") == [b"x"]
        with pytest.raises(AttributeError, match=r"inject_error: the cluster at .* is shared by all workers"):
            existing.inject_error("PRODUCE", "NOT_LEADER_OR_FOLLOWER")
        with pytest.raises(AttributeError, match="--ottla-scope=worker"):
            existing.reset()
        refused = pytest.raises(AttributeError, match=r"reset: the cluster at .* is not this test's own")
        with Existing(broker.bootstrap_servers) as another, refused:
            another.reset()
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            existing.nonsense()
