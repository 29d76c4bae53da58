"""A project's tests, as its authors would write them: 30 tests with three clients by the fixtures of the plug-in.

`tests/unit/testing/test_plugin.py` runs them in a process of their own, with and without xdist.
"""

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer


def deliver(broker, topic, *values, **config):
    producer = Producer(broker.config(**config))
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(10) == 0


def consume(broker, topic, group, count):
    consumer = Consumer(broker.consumer_config(group))
    consumer.subscribe([topic])
    values = []
    while len(values) < count:
        message = consumer.poll(10)
        assert message is not None, "nothing has arrived"
        assert message.error() is None
        values.append(message.value())
    consumer.commit(asynchronous=False)
    consumer.close()
    return values


@pytest.mark.parametrize("number", range(10))
def test_what_is_produced_is_there(ottla_broker, ottla_topic, number):
    deliver(ottla_broker, ottla_topic, str(number))
    assert ottla_broker.values(ottla_topic) == [str(number).encode()]


@pytest.mark.parametrize("number", range(6))
def test_what_is_there_is_consumed(ottla_broker, ottla_topic, ottla_group, number):
    ottla_broker.produce(ottla_topic, str(number), "last")
    assert consume(ottla_broker, ottla_topic, ottla_group, 2) == [str(number).encode(), b"last"]
    assert ottla_broker.lag(ottla_group) == {(ottla_topic, 0): 0}


@pytest.mark.parametrize("number", range(4))
async def test_aiokafka(ottla_broker, ottla_topic, number):
    async with AIOKafkaProducer(**ottla_broker.aiokafka_config()) as producer:
        await producer.send_and_wait(ottla_topic, str(number).encode())
    async with AIOKafkaConsumer(
        ottla_topic, **ottla_broker.aiokafka_config(auto_offset_reset="earliest")
    ) as consumer:
        assert (await consumer.getone()).value == str(number).encode()
    assert len(await ottla_broker.aio.wait_for_records(ottla_topic, 1)) == 1


@pytest.mark.parametrize("number", range(2))
def test_kafka_python(ottla_broker, ottla_topic, number):
    producer = KafkaProducer(**ottla_broker.kafka_python_config())
    producer.send(ottla_topic, str(number).encode()).get(10)
    producer.close()
    assert ottla_broker.values(ottla_topic) == [str(number).encode()]


@pytest.mark.ottla_topic(partitions=3, config={"cleanup.policy": "compact"})
def test_a_topic_as_the_test_wants_it(ottla_broker, ottla_topic):
    assert len(ottla_broker.end_offsets(ottla_topic)) == 3


def test_a_topic_is_named_after_its_test(ottla_topic):
    assert ottla_topic.startswith("test_a_topic_is_named_after_its_test-")


def test_admin(ottla_broker, ottla_topic):
    assert ottla_topic in AdminClient(ottla_broker.config()).list_topics(timeout=10).topics


def test_a_retry(ottla_cluster):
    broker = ottla_cluster()
    broker.create_topic("orders")
    with broker.inject_error("PRODUCE", "NOT_LEADER_OR_FOLLOWER").times(2):
        deliver(broker, "orders", b"x", retry_backoff_ms=1)
    assert broker.values("orders") == [b"x"]


def test_a_broker_that_is_killed(ottla_cluster):
    broker = ottla_cluster()
    deliver(broker, "orders", b"before")
    broker.kill()
    producer = Producer(broker.config())
    producer.produce("orders", b"during")
    broker.start()
    assert producer.flush(10) == 0
    assert broker.values("orders") == [b"before", b"during"]


def test_retention(ottla_cluster):
    broker = ottla_cluster(config={"log.retention.hours": 24})
    broker.produce("orders", "old")
    broker.advance(hours=25)
    assert broker.values("orders") == []


@pytest.mark.parametrize("number", range(2))
def test_recording(ottla_broker, ottla_topic, number):
    with ottla_broker.recording(ottla_topic, [str(number)]):
        deliver(ottla_broker, ottla_topic, str(number))
