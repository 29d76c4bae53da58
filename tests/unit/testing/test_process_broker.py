"""`Broker(process=True)`: the same broker in a process of its own, which ends with the process of the test."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from confluent_kafka import Producer

from ottla.testing import Broker, ClusterError, FaultNeverStruck
from tests.unit.testing.waiting import wait_for


@pytest.fixture(scope="module")
def broker():
    with Broker(process=True, tier=True, config={"num.partitions": 2}) as broker:
        yield broker


def pid_of(broker):
    return broker._process._child.pid


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
    wait_for(lambda: not broker.is_running)
    assert "No space left on device" in broker.failure
    broker.start()
    assert broker.failure is None


def test_a_process_that_is_killed_can_be_started_again(broker):
    broker.start()
    broker.produce("kept", "x")
    port, pid = broker.port, pid_of(broker)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not broker.is_running)
    assert "has ended with status -9" in broker.failure
    with pytest.raises(RuntimeError, match="The broker has ended by itself"):
        broker.pause()
    broker.start()
    assert broker.port == port
    assert broker.values("kept") == [b"x"]
    assert not exists(pid)


def test_it_ends_with_the_process_of_the_test():
    program = (
        "import os, ottla.testing\n"
        "broker = ottla.testing.Broker(process=True).start()\n"
        "broker.pause()\n"
        "print(broker._process._child.pid, broker.data_dir, flush=True)\n"
        "os._exit(0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    pid = int(ended.stdout.split()[0])
    wait_for(lambda: not exists(pid))
