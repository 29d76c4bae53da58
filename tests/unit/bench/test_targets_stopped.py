"""A broker that is stopped: what counts is when its cluster goes on without it, and not when its process has ended."""

import threading
import time
from types import SimpleNamespace

from ottla.bench.components.processes import PATIENCE_S
from ottla.bench.targets import events
from ottla.bench.targets.conditions import _CONDITIONS
from ottla.bench.targets.wire import Address
from ottla.bench.workloads.model import Action, Condition, Event

STOP = Event(at_s=0, action=Action.STOP, name="led", broker=1, topic="t", until=Condition.LED)


class Cluster:
    """Broker 1 has ended once `may_end` is set."""

    name = "some"

    def __init__(self):
        self.may_end = threading.Event()
        self.down = set()
        self.nodes = self
        self.ended = []

    def addresses(self):
        return {broker: Address("127.0.0.1", broker) for broker in (1, 2) if broker not in self.ended}

    def stop_node(self, broker):
        assert self.may_end.wait(PATIENCE_S)
        self.ended.append(broker)


def test_the_time_does_not_include_the_end_of_the_process(monkeypatch):
    cluster = Cluster()
    readings = []

    def perf_counter():
        """The process ends after the second reading, which is the time that counts."""
        readings.append(time.perf_counter())
        if len(readings) == 2:
            assert cluster.ended == []
            cluster.may_end.set()
        return readings[-1]

    monkeypatch.setattr(events, "time", SimpleNamespace(perf_counter=perf_counter))
    monkeypatch.setattr(events, "wait_for", lambda *_, **__: cluster.down == {1})
    took_s = events.carry_out(STOP, cluster, {"t": "t-1"})
    assert took_s == readings[1] - readings[0]
    assert cluster.ended == [1]  # it is gone when the next event comes


def test_a_broker_that_is_being_stopped_leads_nothing():
    cluster = Cluster()

    def is_led(leader):
        client = SimpleNamespace(
            partitions=lambda topic: {0: SimpleNamespace(leader_id=leader)}, offsets=lambda *_: {0: 10}
        )
        return _CONDITIONS[Condition.LED](client, cluster, "t-1")

    assert is_led(1)
    cluster.down.add(1)
    assert not is_led(1)
    assert is_led(2)
