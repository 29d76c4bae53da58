"""Groups leave Kafka's files on the disk: its dump tool decodes them, and Kafka itself continues from them."""

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.compat.admin import PATIENCE_S, create_topic, take
from tests.harness.kafka import KafkaServer, tool

#: Of a member that is gone and has its place still: longer than a Kafka and its tools take to start.
_SESSION_MS = 300_000


def _work(bootstrap: str, topic: str, group: str) -> None:
    """A static member of generation 1 that has committed, and offsets of a group without members."""
    create_topic(bootstrap, topic, 6)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"x", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    settings = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    member = Consumer(
        {**settings, "group.id": group, "group.instance.id": "i", "session.timeout.ms": _SESSION_MS}
    )
    member.subscribe([topic])
    (message,) = take(member, 1)
    member.commit(message, asynchronous=False)
    member.close()  # a static member keeps its place
    manual = Consumer({**settings, "group.id": f"{group}-manual"})
    manual.commit(offsets=[TopicPartition(topic, 3, 7)], asynchronous=False)
    manual.close()


def test_kafka_reads_the_groups_that_we_wrote(own_server, tmp_path, topic, group):
    _work(own_server.bootstrap, topic, group)
    own_server.stop()
    logs = own_server.data_dir.glob("__consumer_offsets-*/*.log")
    written = ",".join(str(log) for log in logs if log.stat().st_size)
    dump = tool("kafka-dump-log", "--offsets-decoder", "--print-data-log", "--files", written)
    assert f'"group":"{group}","topic":"{topic}","partition":0' in dump
    assert '"generation":1,"protocol":"range"' in dump
    assert f'"assignedPartitions":[{{"topic":"{topic}"' in dump

    kafka = KafkaServer(tmp_path / "kafka", data_dir=own_server.data_dir).start()
    try:
        arguments = ["--bootstrap-server", kafka.bootstrap, "--describe"]
        described = tool("kafka-consumer-groups", *arguments, "--group", group, "--members", "--verbose")
        row = next(line.split() for line in described.splitlines() if line.startswith(group))
        assert row[2] == "i"
        assert f"{topic}:0,1,2,3,4,5" in row
        offsets = tool("kafka-consumer-groups", *arguments, "--group", f"{group}-manual")
        row = next(line.split() for line in offsets.splitlines() if line.startswith(group))
        assert row[1:4] == [topic, "3", "7"]
    finally:
        kafka.stop()
