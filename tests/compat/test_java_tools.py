"""Kafka's own command-line tools, as an operator runs them.

A JVM takes a second of CPU to start, so each test is a story of several steps that share what they make.
"""

import json
import re

from tests.compat.admin import create_topic, once, produce
from tests.compat.clients import CLIENTS, Message
from tests.harness.kafka import broker_api_versions, run_tool, tool


def lines(output: str) -> list[str]:
    return [line for line in output.splitlines() if line]


def test_kafka_topics(server, topic):
    where = ("--bootstrap-server", server.bootstrap)
    create = ("--create", "--topic", topic, "--partitions", "5", "--config", "retention.ms=100000")
    assert tool("kafka-topics", *where, *create) == f"Created topic {topic}.\n"
    again = run_tool("kafka-topics", *where, *create)
    assert (again.returncode, again.stdout) == (
        1,
        f"Error while executing topic command : Topic '{topic}' already exists.\n",
    )
    tool("kafka-topics", *where, "--alter", "--topic", topic, "--partitions", "7")
    # The answer of DescribeTopicPartitions comes in pages of two partitions.
    describe = ("--describe", "--topic", topic, "--partition-size-limit-per-response", "2")
    head, *rows = once(
        lambda: lines(tool("kafka-topics", *where, *describe)), lambda printed: len(printed) == 8
    )
    assert re.fullmatch(
        rf"Topic: {topic}\tTopicId: \S{{22}}\tPartitionCount: 7\tReplicationFactor: 1\tConfigs: (.*)", head
    )
    configs = dict(one.split("=") for one in head.split("Configs: ")[1].split(","))
    assert configs == {
        "min.insync.replicas": "1",
        "retention.ms": "100000",
        "max.message.bytes": "12000000",
        "file.delete.delay.ms": "100",
    }
    assert rows == [
        f"\tTopic: {topic}\tPartition: {index}\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: "
        for index in range(7)
    ]
    tool("kafka-topics", *where, "--delete", "--topic", topic)
    once(lambda: lines(tool("kafka-topics", *where, "--list")), lambda printed: topic not in printed)


def test_the_console_producer_and_consumer(server, topic):
    create_topic(server.bootstrap, topic)
    where = ("--bootstrap-server", server.bootstrap, "--topic", topic)
    reader = ("parse.key=true", "parse.headers=true", "headers.separator=;", "null.marker=NULL")
    tool(
        "kafka-console-producer",
        *where,
        *(word for prop in reader for word in ("--reader-property", prop)),
        *("--compression-codec", "zstd", "--command-property", "linger.ms=5"),
        input="h1:v1;h2:v2\tkey 1\tvalue 1\nh1:v1\tkey 2\t\nh1:v1\tkey 3\tNULL\n",
    )
    expected = [
        Message(b"value 1", b"key 1", (("h1", b"v1"), ("h2", b"v2"))),
        Message(b"", b"key 2", (("h1", b"v1"),)),
        Message(None, b"key 3", (("h1", b"v1"),)),
    ]
    for client in CLIENTS:
        assert client.consume(server.bootstrap, topic, 3) == expected, client.name
    CLIENTS[0].produce(server.bootstrap, topic, [Message("grün".encode(), b"key 4")], codec="lz4")
    formatter = ("print.key", "print.headers", "print.offset", "print.partition", "print.timestamp")
    output = tool(
        "kafka-console-consumer",
        *where,
        *(word for name in formatter for word in ("--formatter-property", f"{name}=true")),
        *("--from-beginning", "--max-messages", "4", "--isolation-level", "read_committed"),
    )
    assert [re.sub(r"CreateTime:\d{13}", "CreateTime", line) for line in lines(output)] == [
        "CreateTime\tPartition:0\tOffset:0\th1:v1,h2:v2\tkey 1\tvalue 1",
        "CreateTime\tPartition:0\tOffset:1\th1:v1\tkey 2\t",
        "CreateTime\tPartition:0\tOffset:2\th1:v1\tkey 3\tnull",
        "CreateTime\tPartition:0\tOffset:3\tNO_HEADERS\tkey 4\tgrün",
    ]


def test_kafka_configs(server, topic):
    create_topic(server.bootstrap, topic)
    of_topic = ("--bootstrap-server", server.bootstrap, "--entity-type", "topics", "--entity-name", topic)
    added = "cleanup.policy=[compact,delete],max.message.bytes=2000"
    tool("kafka-configs", *of_topic, "--alter", "--add-config", added)
    refused = run_tool("kafka-configs", *of_topic, "--alter", "--add-config", "segment.ms=soon")
    assert refused.returncode != 0
    assert "InvalidConfigurationException" in refused.stderr + refused.stdout
    described = once(
        lambda: tool("kafka-configs", *of_topic, "--describe"),
        lambda printed: "max.message.bytes=2000" in printed,
    )
    assert "\n  max.message.bytes=2000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:" in described
    assert "\n  cleanup.policy=compact,delete sensitive=false" in described
    of_brokers = ("--bootstrap-server", server.bootstrap, "--entity-type", "brokers", "--entity-default")
    tool("kafka-configs", *of_brokers, "--alter", "--add-config", "log.retention.ms=777777777")
    try:
        every = ("--bootstrap-server", server.bootstrap, "--entity-type", "brokers", "--entity-name", "1")
        output = once(
            lambda: tool("kafka-configs", *every, "--describe", "--all"),
            lambda printed: (
                "  log.retention.ms=777777777 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER" in printed
            ),
        )
        assert len(lines(output)) > 250
    finally:
        tool("kafka-configs", *of_brokers, "--alter", "--delete-config", "log.retention.ms")


def test_kafka_consumer_groups(server, topic, group):
    create_topic(server.bootstrap, topic, 2)
    produce(server.bootstrap, topic, [b"1", b"2", b"3"])
    where = ("--bootstrap-server", server.bootstrap)
    tool(
        "kafka-console-consumer",
        *where,
        *("--topic", topic, "--group", group, "--from-beginning", "--max-messages", "3"),
    )
    rows = [
        line.split() for line in lines(tool("kafka-consumer-groups", *where, "--describe", "--group", group))
    ]
    assert [row[:6] for row in rows if row[0] == group] == [
        [group, topic, "0", "3", "3", "0"],
        [group, topic, "1", "0", "0", "0"],
    ]
    to_first = ("--reset-offsets", "--topic", f"{topic}:0", "--shift-by", "-2", "--execute")
    rows = [
        line.split() for line in lines(tool("kafka-consumer-groups", *where, "--group", group, *to_first))
    ]
    assert [group, topic, "0", "1"] in [row[:4] for row in rows]
    listed = [line.split() for line in lines(tool("kafka-consumer-groups", *where, "--list", "--state"))]
    assert [group, "Empty"] in [[row[0], row[-1]] for row in listed]
    deleted = tool("kafka-consumer-groups", *where, "--delete", "--group", group)
    assert f"('{group}')" in deleted
    assert "successful" in deleted


def test_offsets_records_and_directories(server, topic, tmp_path):
    create_topic(server.bootstrap, topic, 2)
    produce(server.bootstrap, topic, [b"x" * 1000] * 10)
    where = ("--bootstrap-server", server.bootstrap)
    offsets = ("kafka-get-offsets", *where, "--topic", topic, "--time")
    assert lines(tool(*offsets, "latest")) == [f"{topic}:0:10", f"{topic}:1:0"]
    wanted = tmp_path / "delete.json"
    wanted.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 4}]})
    )
    output = tool("kafka-delete-records", *where, "--offset-json-file", str(wanted))
    assert f"partition: {topic}-0\tlow_watermark: 4" in output
    assert lines(tool(*offsets, "earliest")) == [f"{topic}:0:4", f"{topic}:1:0"]
    found = tool("kafka-log-dirs", *where, "--describe", "--topic-list", topic)
    (broker,) = json.loads(lines(found)[-1])["brokers"]
    (folder,) = broker["logDirs"]
    assert (broker["broker"], folder["error"], folder["logDir"]) == (1, None, str(server.data_dir))
    sizes = {one["partition"]: one["size"] for one in folder["partitions"]}
    assert sizes[f"{topic}-0"] > 10_000
    assert sizes[f"{topic}-1"] == 0
    versions = broker_api_versions(server.bootstrap, tmp_path)
    assert f"127.0.0.1:{server.port} (id: 1 rack: null isFenced: false) -> (" in versions
    assert "Produce(0): 0 to 13 [usable: 13]" in versions
    assert ("ShareFetch(78): UNSUPPORTED" in versions) is not server.is_kafka


def test_the_performance_tools(server, topic):
    create_topic(server.bootstrap, topic, 2)
    produced = tool(
        "kafka-producer-perf-test",
        *("--bootstrap-server", server.bootstrap, "--topic", topic, "--num-records", "20000"),
        *("--record-size", "100", "--throughput", "-1", "--command-property", "acks=all"),
    )
    assert "20000 records sent" in produced
    consumed = tool(
        "kafka-consumer-perf-test",
        *("--bootstrap-server", server.bootstrap, "--topic", topic, "--num-records", "20000"),
        *("--timeout", "90000", "--hide-header"),
    )
    assert int(lines(consumed)[-1].split(", ")[4]) >= 20000
