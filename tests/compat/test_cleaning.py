"""Clients read a log that is cleaned: by compaction, by retention of size and of time."""

import confluent_kafka
from confluent_kafka import Producer, TopicPartition

from tests.compat.admin import PATIENCE_S, create_topic, produce, read, wait_until


def watermarks(consumer: confluent_kafka.Consumer, topic: str) -> tuple[int, int]:
    return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S, cached=False)


def put(bootstrap: str, topic: str, *pairs: tuple[bytes, bytes | None], codec: str = "none") -> None:
    """Each record in a batch of its own."""
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 1, "compression.type": codec})
    for key, value in pairs:
        producer.produce(topic, value=value, key=key, partition=0)
    assert producer.flush(PATIENCE_S) == 0


def everything(bootstrap: str, topic: str, end: int) -> list[tuple[int, bytes, bytes | None]]:
    """All records that are there; the one at `end` - 1 is the last, and compaction leaves that one."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "fetch.wait.max.ms": 100}
    )
    taken: list[tuple[int, bytes, bytes | None]] = []
    try:
        consumer.assign([TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
        wait_until(
            lambda: (
                taken.extend((one.offset(), one.key(), one.value()) for one in consumer.consume(1000, 0.2))
                or (taken and taken[-1][0] == end - 1)
            )
        )
    finally:
        consumer.close()
    return taken


def test_compaction_keeps_the_last_value_of_each_key(server, topic):
    create_topic(
        server.bootstrap,
        topic,
        config={
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "segment.ms": "300",
            "delete.retention.ms": "0",
        },
    )
    for number in range(20):
        pairs = [(b"%d" % key, b"%d of %d" % (number, key)) for key in range(5)]
        put(server.bootstrap, topic, *pairs, codec="zstd" if number % 2 else "none")
    put(server.bootstrap, topic, (b"0", None))
    end = 101

    def is_clean() -> bool:
        # The active segment is never cleaned: another record, later, rolls it.
        nonlocal end
        put(server.bootstrap, topic, (b"last", b"%d" % end))
        end += 1
        found = [(key, value) for _, key, value in everything(server.bootstrap, topic, end) if key != b"last"]
        return found == [(b"%d" % key, b"19 of %d" % key) for key in range(1, 5)]

    wait_until(is_clean)
    kept = everything(server.bootstrap, topic, end)
    assert [offset for offset, _, _ in kept[:4]] == [96, 97, 98, 99]  # offsets stay what they were
    # A read at an offset that has gone begins at the next one that is there.
    assert read(server.bootstrap, topic, 1, offset=3)[0].offset() == 96


def test_retention_by_size_moves_the_log_start(server, topic):
    create_topic(server.bootstrap, topic, config={"segment.bytes": "1048576", "retention.bytes": "2200000"})
    produce(server.bootstrap, topic, [b"x" * 10_000] * 1000, batch_size=100_000)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": server.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    try:
        wait_until(lambda: watermarks(consumer, topic)[0] > 600, detail=lambda: watermarks(consumer, topic))
        low, high = watermarks(consumer, topic)
        assert high == 1000
        assert low < 800
        consumer.assign([TopicPartition(topic, 0, 5)])  # out of range: sent to the new start
        first = consumer.poll(PATIENCE_S)
        assert first is not None
        assert low <= first.offset() <= watermarks(consumer, topic)[0]  # retention may run once more
    finally:
        consumer.close()


def test_retention_by_time_deletes_old_records(server, topic):
    create_topic(server.bootstrap, topic, config={"retention.ms": "500"})
    produce(server.bootstrap, topic, [b"old"] * 10)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": server.bootstrap, "group.id": topic})
    try:
        wait_until(lambda: watermarks(consumer, topic) == (10, 10))
    finally:
        consumer.close()
