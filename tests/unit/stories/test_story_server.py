"""`ottla play --serve`: the site, texts that are played, and what a hostile page or text can do."""

import http.client
import json
import threading

import pytest

from ottla.stories import catalog
from ottla.stories.isolation import Isolation, Limits
from ottla.stories.recording import record
from ottla.stories.script import StoryError
from ottla.stories.serving import StoryServer
from ottla.stories.stage import Stage
from ottla.stories.trace import Trace, from_json

_TEXT = "# KIP-101: mine.\n\nreplicas A B\nA leads e0\nA writes m1\nshow\n----\n"
#: Far more virtual time than can pass.
_ENDLESS = "# KIP-405: endless.\n\nreplicas A\nA leads e0\nA writes segment a\n10000000 h pass\n----\n"


@pytest.fixture(scope="module")
def server():
    server = StoryServer(0, Isolation(Limits(text_bytes=4000, steps=20)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def ask(server, method, path, body=None, **headers):
    """(status, content type, body) of a request; an underscore in a header's name stands for a hyphen."""
    connection = http.client.HTTPConnection(*server.server_address, timeout=60)
    try:
        connection.request(
            method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        response = connection.getresponse()
        return response.status, response.headers.get_content_type(), response.read()
    finally:
        connection.close()


def run(server, name, text, **headers):
    body = json.dumps({"name": name, "text": text})
    return ask(server, "POST", "/run", body, **{"Content_Type": "application/json"} | headers)


def test_the_site_and_a_story(server):
    status, content_type, page = ask(server, "GET", "/")
    assert (status, content_type) == (200, "text/html")
    assert b"traces/index.js" in page
    status, _, index = ask(server, "GET", "/traces/index.js")
    found = json.loads(index.removeprefix(b"ottla.index = ").rstrip(b";\n"))
    assert found["run"] == "run"
    assert [each["name"] for each in found["stories"]] == list(catalog.names())
    status, _, data = ask(server, "GET", "/traces/lineage/scenario_2.json")
    trace = from_json(Trace, json.loads(data))
    assert len(trace.steps) == found["stories"][catalog.names().index("lineage/scenario_2")]["steps"]
    status, _, script = ask(server, "GET", "/traces/lineage/scenario_2.js")
    assert script == b'ottla.traces["lineage/scenario_2"] = ' + data + b";\n"


def test_a_text_is_played(server):
    status, _, data = run(server, "lineage/mine", _TEXT)
    assert status == 200
    trace = from_json(Trace, json.loads(data))
    assert trace.steps[-1].says == ["A HW=0 m1:e0 | e0@0", "B HW=0 empty"]


@pytest.mark.parametrize(("text", "line", "words"), [
    ("replicas A\n----\n",                                          1, "the first line is a comment"),
    ("# KIP-101\n\nreplicas A\nA jumps\n----\n",                    4, "'A jumps' cannot be played here: the stage"),
    ("# KIP-101\n\nreplicas A\n",                                   3, "----"),
    ("# KIP-101\n\n" + "show\n" * 21 + "----\n",                   23, "at most 20 commands"),
    ("# KIP-101\n" + "#" * 4000,                                    1, "at most 4000 bytes"),
    ("# KIP-101\n\n# \ud800\n",                                   3, "a surrogate"),
    ("# KIP-101\n\nreplicas A\nA leads e0\nC leads e1\n----\n",      5, "there is no 'C' at this point"),
])  # fmt: skip
def test_a_text_that_cannot_be_played(server, text, line, words):
    status, _, data = run(server, "lineage/mine", text)
    assert status == 422
    found = json.loads(data)
    assert found["line"] == line
    assert words in found["message"]


def test_an_endless_text_ends(server):
    server._isolation.limits = Limits(duration_s=0.5)
    try:
        status, _, data = run(server, "tiering/mine", _ENDLESS)
    finally:
        server._isolation.limits = Limits(text_bytes=4000, steps=20)
    assert status == 422
    assert "takes longer than" in json.loads(data)["message"]
    assert run(server, "lineage/mine", _TEXT)[0] == 200


@pytest.mark.parametrize(("headers", "status"), [
    ({"Host": "evil.example"},                          403),
    ({"Host": "evil.example:{port}"},                   403),
    ({"Origin": "http://evil.example"},                 403),
    ({"Origin": "null"},                                403),
    ({"Content_Type": "text/plain"},                    415),
    ({"Host": "localhost:{port}"},                      200),
    ({"Origin": "http://127.0.0.1:{port}"},             200),
])  # fmt: skip
def test_other_sites_run_nothing(server, headers, status):
    port = server.server_address[1]
    headers = {name: value.format(port=port) for name, value in headers.items()}
    assert run(server, "lineage/mine", _TEXT, **headers)[0] == status


@pytest.mark.parametrize(("method", "path", "body", "status"), [
    ("GET",  "/traces/lineage/none.js",              None,      404),
    ("GET",  "/traces/../../../../etc/passwd.json",  None,      404),
    ("GET",  "/../catalog.py",                       None,      404),
    ("POST", "/other",                               b"{}",     404),
    ("POST", "/run",                                 b"[1",     400),
    ("POST", "/run",                                 b'{"name": "lineage/a", "text": 1}',       400),
    ("POST", "/run",                                 b'{"name": "nothing/a", "text": "# K"}',   404),
    ("POST", "/run",                                 b'{"name": "lineage/\\ud800", "text": "# K"}', 404),
    ("POST", "/run",                                 b"[" * 100_000,                            400),
    ("POST", "/run",                                 bytes(600_000),                            413),
])  # fmt: skip
def test_requests_that_are_refused(server, method, path, body, status):
    try:
        assert ask(server, method, path, body, Content_Type="application/json")[0] == status
    except ConnectionError:
        assert status == 413  # the connection is closed before the body is sent


def test_a_length_of_many_digits_is_refused(server):
    assert run(server, "lineage/mine", _TEXT, Content_Length="9" * 5000)[0] == 413


def test_an_assertion_that_fails_is_a_sentence():
    class Asserting(Stage):
        def __call__(self, line):
            raise AssertionError("A leads already")

        def observe(self, step):
            pass

        def close(self):
            pass

    with pytest.raises(
        StoryError, match="'A leads e0' cannot be played here: an assertion of the played code fails: A"
    ):
        record("# KIP-1\n\nA leads e0\n----\n", Asserting())
