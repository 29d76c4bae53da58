"""The control channel: the driver knows what its tasks have said, and no one else is one of them."""

import json
import queue
import socket

import pytest

from ottla.bench.components.processes import PATIENCE_S
from ottla.bench.generators.control import Control, ControlClient


@pytest.fixture
def control():
    with Control("127.0.0.1", tasks=2) as control:
        yield control


def wait(control, condition):
    with control.changed:
        assert control.changed.wait_for(condition, PATIENCE_S)


def client(control, index):
    return ControlClient(control.address, index=index, token=control.token)


def test_states_and_orders_travel(control):
    orders = [queue.Queue(), queue.Queue()]
    with client(control, 0) as first, client(control, 1) as second:
        for each, received in zip((first, second), orders, strict=True):
            each.listen(received.put, lambda: None)
            each.send("ready")
        wait(control, lambda: control.ready == {0, 1})
        control.broadcast("start", at_us=5)
        assert [received.get(timeout=PATIENCE_S) for received in orders] == [
            {"kind": "start", "at_us": 5}
        ] * 2
        first.send("progress", counts={"producer-0-0": (1, 2, 3)})
        second.send("progress", counts={"producer-0-1": (4, 5, 6)})
        second.send("produced")
        second.send("done")
        wait(control, lambda: control.done == {1} and len(control.progress) == 2)
        assert control.produced == {1}
        assert control.progress == {"producer-0-0": (1, 2, 3), "producer-0-1": (4, 5, 6)}
    assert control.failures == [] or control.failures == ["task 0 has ended before its clients were done"]


def test_a_task_that_ends_too_early_is_a_failure(control):
    with client(control, 1) as lost:
        lost.send("ready")
    wait(control, lambda: control.failures)
    assert control.failures == ["task 1 has ended before its clients were done"]


def test_a_task_learns_that_its_driver_is_gone():
    lost = queue.Queue()
    with Control("127.0.0.1", tasks=1) as control:
        task = client(control, 0)
        task.listen(lambda _: None, lambda: lost.put("lost"))
        task.send("ready")
        wait(control, lambda: control.ready)
    with task:
        assert lost.get(timeout=PATIENCE_S) == "lost"
        task.send("done")  # nothing is raised


def raw(control, line):
    """The response to an unknown peer that sends this line."""
    with socket.create_connection(control.address, 10) as connected:
        connected.sendall(line)
        return connected.recv(1)


def test_strangers_are_refused(control):
    hello = {"kind": "hello", "index": 0, "token": control.token}
    for line in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"[]\n",
        json.dumps({**hello, "token": "guessed"}).encode() + b"\n",
        json.dumps({**hello, "token": None}).encode() + b"\n",
        json.dumps({**hello, "index": "0"}).encode() + b"\n",
    ):
        assert raw(control, line) == b""
    with client(control, 0) as task:
        task.send("ready")
        wait(control, lambda: control.ready == {0})
        # Spark runs a failed task again: its first run is what the phase has.
        assert raw(control, json.dumps(hello).encode() + b"\n") == b""
