"""`Broker(process=True)`: the same broker in a process of its own, which ends with the process of the test."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer

from ottla.broker.roles.directories import CannotStart
from ottla.testing import Broker, ClusterError, FaultNeverStruck, broker_process
from tests.unit.testing.waiting import wait_for


@pytest.fixture(scope="module")
def broker():
    with Broker(process=True, tier=True, config={"num.partitions": 2}) as broker:
        yield broker


def test_what_the_process_prints_goes_to_its_log(broker):
    broker.start()
    pid = broker._process.pid
    wait_for(lambda: Path(f"/proc/{pid}/fd/1").samefile(f"/proc/{pid}/fd/2"))


@pytest.mark.parametrize(("program", "reason"), [
    ("import time; time.sleep(100)",                             "could not be called within 0.5 s; its log is"),
    ("import os, time; os.close(1); time.sleep(100)",            "could not be called within 0.5 s; its log is"),
    ("import sys; print('x'); sys.exit('Error: no disk')",       "no disk"),
])  # fmt: skip
def test_a_process_that_cannot_be_called_is_not_waited_for(tmp_path, monkeypatch, program, reason):
    monkeypatch.setattr(broker_process, "_START_S", 0.5)
    monkeypatch.setattr(broker_process, "_DEATH_S", 0.5)
    monkeypatch.setattr(broker_process, "command_of", lambda *_: [sys.executable, "-c", program])
    with pytest.raises(CannotStart, match=reason):
        broker_process.BrokerProcess([], log_file=tmp_path / "log")


def exists(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_faults_meet_requests_in_the_other_process(broker):
    broker.start()
    broker.reset()
    broker.create_topic("t")
    producer = Producer(broker.config(client_id="shop"))
    with broker.inject_error("PRODUCE", "NOT_LEADER_OR_FOLLOWER", client="shop").times(2) as fault:
        producer.produce("t", b"x")
        assert producer.flush(10) == 0
        assert not fault.is_armed
    assert (fault.struck, fault.calls) == (2, 2)
    assert broker.values("t") == [b"x"]
    with broker.disk.slow(0.001) as slow:
        broker.produce("t", "y")
    assert slow.struck == 1
    never = broker.blackhole_client("another").once()
    with pytest.raises(FaultNeverStruck, match="was armed, and none of the 0 requests"), never:
        pass
    with pytest.raises(ValueError, match="There is no API 'FTECH'"):
        broker.delay_on("FTECH", 1)
    broker.tier.fail()
    with pytest.raises(FaultNeverStruck, match=r"broker\.tier\.fail\(\) was never met"):
        broker.reset()
    assert broker.topics() == []


def test_lives_and_time(broker):
    broker.start()
    broker.produce("t", "x")
    assert [each.end_offset for each in broker.segments("t")] == [1]
    broker.kill()
    assert not broker.is_running
    broker.start()
    assert broker.values("t") == [b"x"]
    broker.pause()
    assert not broker.is_reachable
    broker.resume()
    broker.isolate()
    broker.heal()
    broker.advance(days=8)
    assert broker.values("t") == []
    with broker.disk.fill(), pytest.raises(ClusterError):
        broker.produce("t", "y")
    assert "No space left on device" in broker.wait_for_failure()
    assert not broker.is_running
    broker.start()
    assert broker.failure is None


def state_of(pid):
    """The state of a process by the kernel: R or S, and T while it is stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_kill_is_that_of_the_process_and_what_was_armed_goes_on(broker):
    broker.start()
    broker.reset()
    broker.create_topic("t")
    broker.advance(hours=2)
    broker.produce("t", "x")
    fault = broker.inject_error("PRODUCE", "INVALID_RECORD", client="shop").times(2)
    drawn = broker.delay_on("METADATA", 0, client="shop", strict=False).with_probability(0.5, seed=3)
    port, pid = broker.port, broker._process.pid
    producer = Producer(broker.config(client_id="shop"))
    producer.produce("t", b"refused")
    assert producer.flush(10) == 0
    assert fault.struck == 1
    calls = drawn.calls
    with broker.disk.slow(0.001) as slow:
        broker.kill()
        wait_for(lambda: not exists(pid))
        assert not broker.is_running
        assert broker.failure is None
        assert fault.struck == 1  # asked before the kill
        broker.start()
        assert broker._process.pid != pid
        assert broker.port == port
        assert fault.is_armed
        assert drawn.calls >= calls > 0
        for value in (b"refused, too", b"y"):
            producer.produce("t", value)
            assert producer.flush(10) == 0
    assert slow.struck > 0
    assert (fault.struck, fault.calls, fault.is_armed) == (2, 2, False)
    assert broker.values("t") == [b"x", b"y"]
    first, second = broker.records("t")
    assert first.timestamp_ms - second.timestamp_ms > 3_600_000  # the clients' clock has not moved
    broker.produce("t", "z")
    assert abs(broker.records("t")[2].timestamp_ms - first.timestamp_ms) < 60_000
    broker.isolate()
    broker.kill()
    broker.start()
    assert broker.is_running
    assert not broker.is_reachable
    broker.reset()
    assert broker.is_reachable


def test_a_pause_is_that_of_the_process(broker):
    broker.start()
    broker.reset()
    broker.produce("t", "x")
    fault = broker.disconnect_on("METADATA", client="shop", strict=False).every_time()
    ended = broker.delay_on("PRODUCE", 5, client="shop", strict=False).every_time()
    pid = broker._process.pid
    broker.pause()
    broker.pause()
    assert state_of(pid) == "T"
    assert broker.is_running
    assert not broker.is_reachable
    assert broker.failure is None
    assert fault.is_armed
    with pytest.raises(
        RuntimeError, match=r"segments: the process of the broker is paused; call resume\(\) first"
    ):
        broker.segments("t")
    with socket.create_connection(("127.0.0.1", broker.port)) as connection:  # the kernel accepts it
        ended.disarm()
        broker.advance(days=8)
        assert not ended.is_armed
        broker.resume()
        assert state_of(pid) != "T"
        connection.close()
    assert broker.values("t") == []
    assert broker.is_reachable
    producer = Producer(broker.config(client_id="shop"))
    fault.disarm()
    producer.produce("t", b"y")
    assert producer.flush(4) == 0
    broker.pause()
    broker.kill()
    assert not exists(pid)
    broker.start()
    broker.pause()
    broker.restart()
    assert broker.is_reachable


def test_a_paused_process_ends_with_its_test(tmp_path):
    with Broker(process=True, data_dir=tmp_path / "data") as kept:
        kept.produce("t", "x")
        pid = kept._process.pid
        kept.pause()
    assert not exists(pid)
    assert "node 1 has stopped cleanly" in (tmp_path / "data.log").read_text()
    with Broker(process=True) as broker:
        pid, folder = broker._process.pid, broker.data_dir.parent
        broker.pause()
    assert not exists(pid)
    assert not folder.exists()


def test_a_process_that_is_killed_can_be_started_again(broker):
    broker.start()
    broker.produce("kept", "x")
    port, pid = broker.port, broker._process.pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not broker.is_running)
    assert "has ended with status -9" in broker.failure
    with pytest.raises(RuntimeError, match="The broker has ended by itself"):
        broker.pause()
    broker.start()
    assert broker.port == port
    assert broker.values("kept") == [b"x"]
    assert not exists(pid)


@pytest.mark.parametrize("state", ["runs", "paused"])
def test_nothing_is_left_when_the_process_of_the_test_is_killed(state):
    program = (
        "import ottla.testing, sys\n"
        "broker = ottla.testing.Broker(process=True).start()\n"
        "broker.produce('t', 'x')\n"
        f"if {state == 'paused'}: broker.pause()\n"
        "print(broker._process.pid, broker.data_dir.parent, flush=True)\n"
        "sys.stdin.read()\n"
    )
    test = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    pid, folder = test.stdout.readline().split()
    assert Path(folder).exists()
    test.kill()
    test.communicate()
    wait_for(lambda: not exists(int(pid)))
    assert not Path(folder).exists()
