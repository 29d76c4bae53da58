"""Faults between clients and a broker, met by real clients and by plain requests; what strikes whom, and how often."""

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer
from kafka.errors import TopicAuthorizationFailedError

from ottla.broker.api import modules
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.codec import decode_request, decode_response, encode_request, encode_response
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages import produce
from ottla.testing import Broker, FaultNeverStruck
from ottla.testing.error_responses import error_response
from ottla.testing.faults import api_named, error_named
from tests.harness.blocking_wire import BlockingWire
from tests.harness.drawn_messages import Drawing


@pytest.fixture(scope="module")
def shared():
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker(shared):
    shared.reset()
    shared.create_topic("t")
    yield shared
    shared.reset()


def deliver(broker, value=b"x", **config):
    errors = []
    producer = Producer(broker.config(retry_backoff_ms=1, retry_backoff_max_ms=5, **config))
    producer.produce("t", value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(20) == 0
    return errors[0]


def test_an_error_is_met_as_often_as_it_is_said(broker):
    with broker.inject_error("PRODUCE", "NOT_LEADER_OR_FOLLOWER").times(2) as fault:
        assert deliver(broker) is None
    assert (fault.struck, fault.is_armed) == (2, False)
    assert broker.values("t") == [b"x"]


def test_a_final_error_reaches_the_application(broker):
    with broker.inject_error("Produce", "INVALID_RECORD").once():
        assert deliver(broker).name() == "INVALID_RECORD"
    assert broker.values("t") == []


def test_one_call_is_chosen(broker):
    with broker.inject_error("PRODUCE", "INVALID_RECORD").on_call(2) as fault:
        producer = Producer(broker.config())
        errors = []
        for value in (b"1", b"2", b"3"):
            producer.produce("t", value, on_delivery=lambda error, _: errors.append(error))
            assert producer.flush(20) == 0
    assert [error is None for error in errors] == [True, False, True]
    assert (fault.calls, fault.struck) == (2, 1)
    assert broker.values("t") == [b"1", b"3"]


def test_a_probability_draws_the_same_calls_again(broker):
    def run():
        with broker.inject_error("PRODUCE", "INVALID_RECORD").with_probability(0.5, seed=3):
            return [deliver(broker) is None for _ in range(8)]

    first = run()
    assert first == run()
    assert set(first) == {True, False}


def test_a_delay_ends_by_the_brokers_clock(broker):
    with broker.delay_on("PRODUCE", 3600.0).once() as fault:
        producer = Producer(broker.config())
        producer.produce("t", b"late")
        producer.poll(0)
        broker.wait_for_records("t", 1)
        assert producer.flush(0.01) == 1
        broker.advance(hours=1)
        assert producer.flush(20) == 0
    assert fault.struck == 1


def test_a_lost_response_makes_a_producer_without_idempotence_write_twice(broker):
    with broker.disconnect_on("PRODUCE").once():
        assert deliver(broker, enable_idempotence=False) is None
    assert broker.values("t") == [b"x", b"x"]


def test_a_lost_response_makes_an_idempotent_producer_write_once(broker):
    with broker.disconnect_on("PRODUCE").once():
        assert deliver(broker, enable_idempotence=True) is None
    assert broker.values("t") == [b"x"]


def test_a_silenced_client_waits_and_others_are_served(broker):
    with broker.blackhole_client("mute").every_time() as fault:
        with pytest.raises(Exception, match=r"_TRANSPORT|_TIMED_OUT|[Tt]imed out|transport"):
            AdminClient(broker.config(client_id="the-mute-one")).list_topics(timeout=0.2)
        assert "t" in AdminClient(broker.config(client_id="other")).list_topics(timeout=10).topics
    assert fault.struck >= 1


def test_a_fault_concerns_one_client_only(broker):
    with broker.inject_error("PRODUCE", "INVALID_RECORD", client="bad").every_time() as fault:
        assert deliver(broker, client_id="good") is None
        assert deliver(broker, client_id="a-bad-one") is not None
    assert fault.calls == 1


def test_a_retried_join_of_a_group(broker):
    broker.produce("t", "a")
    with broker.inject_error("JOIN_GROUP", "COORDINATOR_LOAD_IN_PROGRESS").once():
        consumer = Consumer(broker.consumer_config("g"))
        consumer.subscribe(["t"])
        assert consumer.poll(20).value() == b"a"
        consumer.close()


def test_an_error_of_metadata_reaches_a_client_that_keeps_its_brokers(broker):
    with broker.inject_error("METADATA", "TOPIC_AUTHORIZATION_FAILED").every_time():
        found = AdminClient(broker.config()).list_topics("t", timeout=10)
    assert found.topics["t"].error.name() == "TOPIC_AUTHORIZATION_FAILED"
    assert [each.port for each in found.brokers.values()] == [broker.port]


def test_an_error_reaches_a_consumer_whose_fetch_session_has_no_changes(broker):
    broker.produce("t", "x")
    consumer = KafkaConsumer(
        "t", **broker.kafka_python_config(auto_offset_reset="earliest", fetch_max_wait_ms=10)
    )
    assert next(consumer).value == b"x"
    consumer.poll(50)  # nothing has changed: later requests of the session have no rows
    with broker.inject_error("FETCH", "TOPIC_AUTHORIZATION_FAILED").once() as fault:
        with pytest.raises(TopicAuthorizationFailedError):
            next(consumer)
        assert fault.struck == 1
    consumer.close()


def test_of_two_faults_the_first_strikes_and_the_second_one_waits_for_the_next_request(broker):
    first = broker.inject_error("PRODUCE", "NOT_LEADER_OR_FOLLOWER").once()
    second = broker.inject_error("PRODUCE", "NOT_LEADER_OR_FOLLOWER").once()
    assert deliver(broker) is None
    assert (first.calls, second.calls) == (1, 1)
    assert broker.values("t") == [b"x"]


def test_a_fault_that_no_request_meets_fails_the_test(shared):
    never = pytest.raises(FaultNeverStruck, match=r"inject_error\(FETCH, .*none of the 0 requests")
    with never, shared.inject_error("FETCH", "NOT_LEADER_OR_FOLLOWER").once():
        pass
    shared.inject_error("FETCH", "NOT_LEADER_OR_FOLLOWER")
    with pytest.raises(FaultNeverStruck, match="was never armed: call once"):
        shared.reset()
    shared.reset()  # it was forgotten
    with shared.inject_error("FETCH", "NOT_LEADER_OR_FOLLOWER", strict=False).once():
        pass
    with pytest.raises(LookupError), shared.inject_error("FETCH", "UNKNOWN_TOPIC_ID").once():
        raise LookupError  # the test fails by itself: no second error hides it


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda broker: broker.inject_error("PRODUC", "NONE"),
            r"There is no API 'PRODUC': did you mean PRODUCE",
        ),
        (lambda broker: broker.inject_error("PRODUCE", "NOT_LEADER"), "NOT_LEADER_OR_FOLLOWER"),
        (lambda broker: broker.inject_error("PRODUCE", "NONE"), "NONE is no error"),
        (lambda broker: broker.delay_on("FETCH", -1), r"delay_on\(FETCH, -1\)"),
        (lambda broker: broker.blackhole_client(""), "must not be empty"),
        (lambda broker: broker.disconnect_on("FETCH").times(0), "must be 1 or more"),
        (lambda broker: broker.disconnect_on("FETCH").on_call(0), "counted from 1"),
        (lambda broker: broker.disconnect_on("FETCH").with_probability(2), "at most 1"),
    ],
)
def test_a_wrong_argument_is_refused_with_the_remedy(call, message):
    with pytest.raises(ValueError, match=message):
        call(Broker())


def test_names(shared):
    assert api_named("FindCoordinator") is api_named("find_coordinator") is ApiKey.FIND_COORDINATOR
    assert error_named("not_leader_or_follower") == error_named(6) == ErrorCode.not_leader_or_follower


#: The response to METADATA is the broker's own, with the error in it.
SERVED = [
    (ApiKey(key), version)
    for key in sorted(modules())
    for version in KAFKA_VERSIONS[ApiKey(key)]
    if key != ApiKey.METADATA
]


def codes_in(message):
    """All error codes in a response, at any depth."""
    for name in message.__dataclass_fields__:
        value = getattr(message, name)
        if name == "error_code":
            yield value
        elif isinstance(value, list):
            for row in value:
                if hasattr(row, "__dataclass_fields__"):
                    yield from codes_in(row)


def codes_of_error_response(key, version, seed):
    """The error codes of the response to a request that is drawn, as its client reads them."""
    body = encode_request(key, version, Drawing(seed).request(key, version))
    response = error_response(decode_request(key, version, body), ErrorCode.invalid_request)
    return set(codes_in(decode_response(key, version, encode_response(key, version, response))))


def test_every_api_in_every_version_has_an_error_response():
    without = []
    for key, version in SERVED:
        codes = set().union(*(codes_of_error_response(key, version, seed) for seed in range(8)))
        assert codes <= {ErrorCode.invalid_request, ErrorCode.none}, (key, version, codes)
        if ErrorCode.invalid_request not in codes:
            without.append((key.name, version))
    assert without == []


def test_a_produce_without_acknowledgement_loses_its_connection(broker):
    request = produce.ProduceRequest(acks=0, timeout_ms=1000, topic_data=[])
    closed = pytest.raises(AssertionError, match="closed by the server")
    fault = broker.inject_error("PRODUCE", "INVALID_RECORD").once()
    with fault, BlockingWire(broker.port) as wire, closed:
        wire.call(ApiKey.PRODUCE, 9, request)
