"""A broker that is stopped: what counts is when its cluster goes on without it, and not when its process has ended."""

import time
from types import SimpleNamespace

from bench.targets import events
from bench.targets.conditions import _CONDITIONS
from bench.targets.wire import Address
from bench.workloads.model import Action, Condition, Event

STOP_S = 1.0
STOP = Event(at_s=0, action=Action.STOP, name="led", broker=1, topic="t", until=Condition.LED)


class Cluster:
    """Broker 1 needs a while until it has ended."""

    name = "some"

    def __init__(self):
        self.down = set()
        self.nodes = self
        self.ended = []

    def addresses(self):
        return {broker: Address("127.0.0.1", broker) for broker in (1, 2) if broker not in self.ended}

    def stop_node(self, broker):
        time.sleep(STOP_S)
        self.ended.append(broker)


def test_the_time_does_not_include_the_end_of_the_process(monkeypatch):
    cluster = Cluster()
    monkeypatch.setattr(events, "wait_for", lambda *_, **__: cluster.down == {1})
    took_s = events.carry_out(STOP, cluster, {"t": "t-1"})
    assert took_s is not None
    assert took_s < STOP_S
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
