"""A topic of a thousand partitions: created, filled, read, shared by a group, and deleted."""

import kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tests.compat.admin import PATIENCE_S, admin_of, create_topic, wait_until

_PARTITIONS = 1000


def drain(consumer: Consumer, seen: dict[int, bytes]) -> None:
    for message in consumer.consume(1000, 0.1):
        assert message.error() is None, message.error()
        seen[message.partition()] = message.value()


def test_a_thousand_partitions(server, topic, group):
    create_topic(server.bootstrap, topic, _PARTITIONS)
    producer = Producer({"bootstrap.servers": server.bootstrap, "acks": "all"})
    errors = []
    for partition in range(_PARTITIONS):
        producer.produce(
            topic,
            b"%d" % partition,
            partition=partition,
            on_delivery=lambda error, _: error and errors.append(error),
        )
    assert producer.flush(PATIENCE_S) == 0
    assert errors == []
    expected = {partition: b"%d" % partition for partition in range(_PARTITIONS)}

    settings = {"bootstrap.servers": server.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    reader = Consumer({**settings, "enable.auto.commit": False})
    seen: dict[int, bytes] = {}
    reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(_PARTITIONS)])
    wait_until(lambda: drain(reader, seen) or len(seen) == _PARTITIONS, detail=lambda: len(seen))
    assert seen == expected
    reader.close()

    members = [Consumer(settings) for _ in range(2)]
    for member in members:
        member.subscribe([topic])
    seen = {}

    def is_shared_and_read() -> bool:
        for member in members:
            drain(member, seen)
        shares = [len(member.assignment()) for member in members]
        return shares == [_PARTITIONS / 2] * 2 and len(seen) == _PARTITIONS

    wait_until(
        is_shared_and_read, detail=lambda: (len(seen), [len(member.assignment()) for member in members])
    )
    assert seen == expected
    for member in members:
        member.close()

    python = kafka.KafkaConsumer(bootstrap_servers=server.bootstrap)
    wanted = [kafka.TopicPartition(topic, partition) for partition in range(_PARTITIONS)]
    assert set(python.end_offsets(wanted).values()) == {1}
    python.close()
    admin = admin_of(server.bootstrap)
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    wait_until(lambda: topic not in admin.list_topics(timeout=PATIENCE_S).topics)
