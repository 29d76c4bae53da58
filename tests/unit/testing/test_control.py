"""The control of a broker over HTTP, for tests in other languages: its calls, its refusals, their documented table."""

import http.client
import json
import re
from pathlib import Path

import pytest

from ottla.testing import Broker
from ottla.testing.control_calls import ControlCalls
from ottla.testing.control_server import ControlServer
from tests.unit.testing.waiting import left_since, wait_for, what_runs

TESTING = Path(__file__).parents[3] / "docs/TESTING.md"
#: A call of the store that is under way when `advance` moves the clock has taken as long, by the clock.
pytestmark = pytest.mark.logs("a call of the store has had no answer")


class Client:
    def __init__(self, port):
        self.port = port

    def send(self, method, path, body=b"", headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def __call__(self, name, /, **arguments):
        status, answer = self.send("POST", f"/{name}", json.dumps(arguments))
        assert status == 200, answer
        return answer

    def refused(self, name, /, **arguments):
        status, answer = self.send("POST", f"/{name}", json.dumps(arguments))
        assert status == 400, answer
        return answer["error"]


@pytest.fixture(scope="module")
def client():
    with Broker(tier=True) as broker:
        server = ControlServer(ControlCalls(broker))
        yield Client(server.port)
        server.close()


@pytest.fixture
def call(client):
    client("start")
    client("reset")
    return client


def test_topics_records_and_offsets(call):
    assert call("create_topic", name="t", partitions=2, config={"retention.ms": 3_600_000}) == "t"
    assert call("topics") == ["t"]
    values = ["text", None, {"base64": "/w=="}]
    headers = {"h": {"base64": "AA=="}}
    assert call("produce", topic="t", values=values, key="k", partition=1, headers=headers) == {"offset": 0}
    assert call("values", topic="t") == values
    first = call("wait_for_records", topic="t", count=3)[0]
    assert (first["partition"], first["offset"], first["key"], first["value"]) == (1, 0, "k", "text")
    assert first["headers"] == [["h", "\0"]]
    assert call("end_offsets", topic="t") == {"0": 0, "1": 3}
    assert call("segments", topic="t", partition=1)[0]["tier"] == "local"
    call("advance", hours=2)
    assert call("values", topic="t") == []


def test_lives(call):
    call("produce", topic="t", values=["x"])
    call("kill")
    assert not call("status")["is_running"]
    assert "does not run" in call.refused("segments", topic="t")
    assert call("start")["is_running"]
    call("pause")
    assert not call("status")["is_reachable"]
    call("resume")
    status, found = call.send("GET", "/")
    assert status == 200
    assert found == call("status")
    assert call("values", topic="t") == ["x"]


def test_faults(call):
    call("create_topic", name="t")
    fault = call("inject_error", api="PRODUCE", error="NOT_LEADER_OR_FOLLOWER", client="app", times=2)[
        "fault"
    ]
    assert call("fault", fault=fault) == {"struck": 0, "calls": 0, "is_armed": True}
    assert "none of the 0 requests" in call.refused("disarm", fault=fault, verify=True)
    assert not call("fault", fault=fault)["is_armed"]
    slow = call("disk/slow", seconds=0.001)["fault"]
    call("produce", topic="t", values=["x"])
    assert call("fault", fault=slow)["struck"] == 1
    call("disk/heal")
    call("tier/fail", strict=False)
    call("tier/heal")
    call("blackhole_client", substring="app", with_probability=0.5, seed=3)
    assert "blackhole_client('app') was armed" in call.refused("reset")


def test_refusals_are_sentences(call):
    assert call.refused("none").startswith("There is no call 'none': known are advance, ")
    assert call.refused("leader", tpic="t") == (
        "leader: missing a required argument: 'topic'; its arguments are topic, partition."
    )
    assert "no value of a record" in call.refused("produce", topic="t", values=[7])
    assert "it must be a list" in call.refused("produce", topic="t", values="one")
    assert "must be 1 or more" in call.refused("inject_error", api="FETCH", error="UNKNOWN_TOPIC_ID", times=0)
    call("reset")  # the fault that was not armed is forgotten
    assert "There is no fault 99" in call.refused("fault", fault=99)
    assert "Say how often the fault strikes" in call.refused("delay_on", api="FETCH", seconds=1)
    assert (
        "delay_on: missing a required argument: 'seconds'; its arguments are api, seconds,"
        in call.refused("delay_on", api="FETCH", once=True)
    )
    assert "There is no API 'FTECH': did you mean FETCH?" in call.refused(
        "disconnect_on", api="FTECH", once=True
    )
    assert "UNKNOWN_TOPIC_OR_PARTITION" in call.refused("delete_topic", name="none")
    assert call.send("POST", "/topics", b"[]")[0] == 400
    assert call.send("POST", "/topics", b"{")[0] == 400
    assert call.send("POST", "/topics", b"[" * 100_000)[0] == 400
    assert call.send("POST", "/topics", b"{}", {"Content-Type": "text/plain"})[0] == 415
    assert call.send("POST", "/topics", b"", {"Content-Length": "99999999999"})[0] == 413
    assert call.send("POST", "/topics", b"", {"Content-Length": "9" * 5000})[0] == 413
    assert call.send("GET", "/topics")[0] == 405
    assert call.send("POST", "/topics", b"{}", {"Host": "page.example:80"})[0] == 403


def test_every_call_is_documented():
    documented = set(re.findall(r"^\| `([a-z_/]+)`", TESTING.read_text(), re.MULTILINE))
    documented |= {
        name
        for row in re.findall(r"^\| (`[^|]*) \|", TESTING.read_text(), re.MULTILINE)
        for name in re.findall(r"`([a-z_/]+)`", row)
    }
    assert set(ControlCalls(Broker()).names) <= documented


def test_nothing_is_left_of_a_server():
    with Broker() as broker:
        before = what_runs()
        server = ControlServer(ControlCalls(broker))
        assert Client(server.port)("status")["is_running"]
        server.close()
        wait_for(lambda: not left_since(before))
