"""Replicas move between the log directories of a broker, by Kafka's own tools (KIP-113)."""

import json
import re
from pathlib import Path

from confluent_kafka import Consumer, Producer

from tests.compat.admin import PATIENCE_S, create_topic, once, take
from tests.compat.conftest import make_server
from tests.harness.kafka import tool


def directories(where: tuple[str, str], topic: str) -> dict[str, dict[str, bool]]:
    """Log directory -> partition -> whether it is a future log, as kafka-log-dirs shows it."""
    output = tool("kafka-log-dirs", *where, "--describe", "--topic-list", topic)
    (line,) = [line for line in output.splitlines() if line.startswith("{")]
    (broker,) = json.loads(line)["brokers"]
    for directory in broker["logDirs"]:
        assert directory["error"] is None
    return {
        Path(directory["logDir"]).name: {row["partition"]: row["isFuture"] for row in directory["partitions"]}
        for directory in broker["logDirs"]
    }


def test_a_replica_moves_to_another_log_directory(tmp_path):
    dirs = [tmp_path / "a", tmp_path / "b"]
    server = make_server(tmp_path / "server", {"log.dirs": ",".join(map(str, dirs))}).start()
    try:
        where = ("--bootstrap-server", server.bootstrap)
        create_topic(server.bootstrap, "t", 1)
        producer = Producer({"bootstrap.servers": server.bootstrap, "acks": "all"})
        for number in range(2_000):
            producer.produce("t", b"%06d" % number * 100)
            producer.poll(0)
        producer.flush(PATIENCE_S)
        before = directories(where, "t")
        (old,) = [name for name, rows in before.items() if rows]
        (new,) = {"a", "b"} - {old}
        assert before[old] == {"t-0": False}
        (node_id,) = set(re.findall(r'"broker":(\d+)', tool("kafka-log-dirs", *where, "--describe")))
        move = {
            "topic": "t",
            "partition": 0,
            "replicas": [int(node_id)],
            "log_dirs": [str(tmp_path / new)],
        }
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps({"version": 1, "partitions": [move]}))
        reassign = ("kafka-reassign-partitions", *where, "--reassignment-json-file", str(plan))
        output = tool(*reassign, "--execute", "--replica-alter-log-dirs-throttle", "50000000")
        assert f"moving log directory to {tmp_path / new} for replica t-0" in output
        for number in range(2_000, 2_100):
            producer.produce("t", b"%06d" % number * 100)
        assert producer.flush(PATIENCE_S) == 0
        once(lambda: tool(*reassign, "--verify"), lambda output: "completed successfully" in output)
        assert directories(where, "t") == {old: {}, new: {"t-0": False}}
        consumer = Consumer(
            {"bootstrap.servers": server.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["t"])
        values = [message.value() for message in take(consumer, 2_100)]
        assert values == [b"%06d" % number * 100 for number in range(2_100)]
        consumer.close()
    finally:
        server.stop()
