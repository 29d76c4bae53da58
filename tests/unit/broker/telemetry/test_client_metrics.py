"""The answers to requests of client metrics: KIP-714 and Kafka's ClientMetricsManager as tables."""

import asyncio
from random import Random
from types import SimpleNamespace
from uuid import UUID

import pytest

from ottla.broker.api import k72_push_telemetry
from ottla.broker.request_context import RequestContext
from ottla.broker.telemetry import client_metrics
from ottla.broker.telemetry.client_metrics import ClientMetrics, Instance
from ottla.broker.telemetry.series import ClientSeries
from ottla.broker.telemetry.subscriptions import Client, Subscription, wanted_of
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from ottla.protocol.messages.push_telemetry import PushTelemetryRequest
from ottla.protocol.types import ZERO_UUID
from ottla.runtime.simulated import SimulatedRuntime

ID = UUID(int=77 << 64 | 5)
NONE, INVALID, THROTTLED = ErrorCode.none, ErrorCode.invalid_request, ErrorCode.throttling_quota_exceeded
UNKNOWN, CODEC = ErrorCode.unknown_subscription_id, ErrorCode.unsupported_compression_type
TOO_LARGE = ErrorCode.telemetry_too_large
S = 1000


class Socket:
    client_port = 5000
    software = ("apache-kafka-java", "4.3.1")
    is_closed = False


class Story:
    """One client of one broker, at a time that the test sets."""

    def __init__(self, interval_ms=10 * S):
        self.clients = ClientMetrics(random=Random(1), max_bytes=100, is_exporting=True)
        self.clients.update("all", {"metrics": "org.apache.kafka.", "interval.ms": str(interval_ms)})
        self.connection = Socket()

    def context(self):
        return RequestContext(71, 0, 1, "me", "192.0.2.1", "PLAINTEXT", connection=self.connection)

    def ask(self, at, instance_id=ID):
        request = GetTelemetrySubscriptionsRequest(client_instance_id=instance_id)
        return self.clients.ask(request, self.context(), at)

    def request(self, *, instance_id=ID, subscription_id=None, metrics=bytes(5), codec=4, terminating=False):
        if subscription_id is None:
            known = self.clients._instances.get(instance_id)
            subscription_id = known.wanted.subscription_id if known else 0
        return PushTelemetryRequest(
            client_instance_id=instance_id,
            subscription_id=subscription_id,
            terminating=terminating,
            compression_type=codec,
            metrics=metrics,
        )

    def push(self, at, **step):
        found = self.clients.check_push(self.request(**step), self.context(), at)
        return NONE if isinstance(found, Instance) else found

    def error_of(self, step, at):
        return self.ask(at).error_code if step == "ask" else self.push(at, **step)


PUSH, LAST = {}, {"terminating": True}
OTHER, BAD_CODEC, LARGE = {"subscription_id": 1}, {"codec": 5}, {"metrics": bytes(101)}


@pytest.mark.parametrize("steps", [
    # (seconds, request, error)
    [(100, "ask", NONE), (100, PUSH, NONE), (101, PUSH, THROTTLED), (110, PUSH, NONE)],
    [(100, "ask", NONE), (109, "ask", THROTTLED), (110, "ask", NONE)],
    [(100, "ask", NONE), (101, PUSH, NONE), (110, "ask", THROTTLED), (111, "ask", NONE), (111, PUSH, NONE)],
    [(100, "ask", NONE), (105, LAST, NONE), (105, PUSH, INVALID), (130, PUSH, NONE)],
    [(100, PUSH, UNKNOWN), (100, "ask", NONE), (100, "ask", THROTTLED)],  # the error is forgotten with a response
    [(100, "ask", NONE), (100, PUSH, NONE), (102, LAST, NONE)],          # the last one is never too early
    [(100, "ask", NONE), (105, OTHER, UNKNOWN), (105, "ask", NONE), (106, PUSH, THROTTLED)],
    [(100, "ask", NONE), (105, BAD_CODEC, CODEC), (105, "ask", NONE)],
    [(100, "ask", NONE), (105, LARGE, TOO_LARGE), (106, "ask", THROTTLED), (115, PUSH, NONE)],
    [(100, "ask", NONE), (100, {"metrics": b""}, NONE)],
    [(0, {"instance_id": ZERO_UUID}, INVALID), (0, {"instance_id": UUID(int=1)}, INVALID)],
])  # fmt: skip
def test_requests_of_a_client(steps):
    story = Story()
    for at_s, step, error in steps:
        assert story.error_of(step, at_s * S) == error, (at_s, step)


@pytest.mark.parametrize(("metrics", "error"), [(b"", NONE), (b"\x0b", ErrorCode.invalid_record)])
def test_a_push_on_another_connection_meanwhile_changes_no_answer(metrics, error):
    story, runtime = Story(), SimulatedRuntime(seed=1)
    broker = SimpleNamespace(
        client_metrics=story.clients, client_series=ClientSeries(max_series=10), runtime=runtime
    )

    def push(metrics):
        return k72_push_telemetry.handle(story.request(codec=0, metrics=metrics), story.context(), broker)

    async def life():
        assert story.ask(runtime.now_ms()).error_code == NONE
        async with story.clients.reading:
            first = asyncio.ensure_future(push(metrics + bytes((0x48, 1))))
            await asyncio.sleep(0)
            assert push(b"\x0b").error_code == THROTTLED
        assert (await first).error_code == error
        assert story.clients._instances[ID].error == THROTTLED

    try:
        runtime.run(life())
    finally:
        runtime.simulation.close()


def test_a_client_gets_an_id_and_what_it_is_asked_for():
    story = Story()
    response = story.ask(5 * S, ZERO_UUID)
    assert response.client_instance_id not in (ZERO_UUID, ID)
    assert response.accepted_compression_types == [4, 3, 1, 2]
    assert (response.push_interval_ms, response.telemetry_max_bytes) == (10 * S, 100)
    assert response.requested_metrics == ["org.apache.kafka."]
    assert response.delta_temporality
    assert story.push(5 * S, instance_id=response.client_instance_id) == NONE


def test_a_change_of_subscriptions_is_answered_at_once():
    story = Story()
    before = story.ask(100 * S).subscription_id
    story.clients.update("fast", {"metrics": "*", "interval.ms": "500"})
    assert story.push(100 * S, subscription_id=before) == UNKNOWN
    after = story.ask(100 * S)
    assert (after.requested_metrics, after.push_interval_ms) == (["*"], 500)
    assert after.subscription_id != before
    story.clients.update("fast", {})
    assert story.ask(101 * S).subscription_id == before  # the same subscriptions, the same id, on any broker


def test_a_client_is_new_on_a_new_connection_and_after_three_intervals():
    story = Story(interval_ms=30 * S)
    assert story.ask(100 * S).error_code == NONE
    story.connection.is_closed = True
    assert story.clients.count(100 * S) == 0
    story.connection = Socket()
    assert [story.ask(at * S).error_code for at in (101, 102)] == [NONE, THROTTLED]
    assert [story.clients.count(at * S) for at in (191, 192)] == [1, 0]


def test_of_a_long_client_id_the_beginning_is_kept():
    story = Story()
    context = story.context()
    context.client_id = "x" * 30_000
    request = PushTelemetryRequest(client_instance_id=ID, terminating=True)
    assert story.clients.check_push(request, context, 0) == UNKNOWN
    assert len(story.clients._instances[ID].client.client_id) == 250


def test_the_number_of_instances_is_bounded(monkeypatch):
    monkeypatch.setattr(client_metrics, "MAX_INSTANCES", 3)
    story = Story()
    errors = [story.ask(100 * S, UUID(int=number)).error_code for number in (2, 3, 4, 2, 5, 2, 3)]
    assert errors == [NONE, NONE, NONE, THROTTLED, NONE, THROTTLED, NONE]  # 3 was used longest ago
    assert story.clients.count(100 * S) == 3


@pytest.mark.logs("Client metrics subscription")
def test_a_subscription_that_this_version_cannot_read_is_ignored():
    story = Story()
    story.clients.update("java", {"match": r"client_id=\p{Alpha}+"})
    assert story.ask(0).requested_metrics == ["org.apache.kafka."]


def test_the_apis_are_advertised_where_they_are_of_use():
    clients = ClientMetrics(random=Random(1), max_bytes=1, is_exporting=False)
    assert not clients.is_advertised
    clients.update("m", {"interval.ms": "100"})
    assert clients.is_advertised
    clients.update("m", {})
    assert not clients.is_advertised


CLIENT = Client(ID, "me", "apache-kafka-java", "4.3.1", "192.0.2.1", 5000)


@pytest.mark.parametrize(("match", "matches"), [
    ("",                                                                     True),
    ("client_id=me",                                                         True),
    ("client_id=m",                                                          False),  # the whole text
    ("client_id=m.*,client_software_name=apache-kafka-(java|go)",            True),
    ("client_id=m.*,client_software_version=3.*",                            False),
    ("client_instance_id=AAAAAAAAAE0AAAAAAAAABQ",                            True),
    ("client_source_address = 192[.]0.*, client_source_port = 5[0-9]+",      True),
    ("client_id=you,client_id=me",                                           True),   # the last one counts
])  # fmt: skip
def test_match(match, matches):
    subscription = Subscription.from_configs({"metrics": "a", "interval.ms": "100", "match": match})
    wanted = wanted_of(CLIENT, [subscription])
    assert (wanted.metrics, wanted.interval_ms) == ((("a",), 100) if matches else ((), 300_000))


@pytest.mark.parametrize(("subscriptions", "metrics", "interval_ms"), [
    ([],                                     (),          300_000),
    ([("b,a", "400000")],                    ("a", "b"),  300_000),  # five minutes at most, as in Kafka
    ([("a", "1000"), ("a,c", "500")],        ("a", "c"),      500),
    ([("a", "1000"), ("*", "2000")],         ("*",),         1000),
])  # fmt: skip
def test_what_a_client_is_asked_for(subscriptions, metrics, interval_ms):
    parsed = [Subscription.from_configs({"metrics": each, "interval.ms": ms}) for each, ms in subscriptions]
    wanted = wanted_of(CLIENT, parsed)
    assert (wanted.metrics, wanted.interval_ms) == (metrics, interval_ms)
    assert -(2**31) <= wanted.subscription_id < 2**31
