"""`ottla topics` and `ottla configs` on the server of this run, in this process: Ottla, or Apache Kafka."""

import pytest

from tests.compat.admin import create_topic, eventually_equal, once, produce
from tests.compat.commands import Commands


@pytest.fixture
def ottla(server) -> Commands:
    return Commands(server.bootstrap)


def test_topics_are_listed(ottla, topic):
    create_topic(ottla.bootstrap, topic, 3)
    [row] = [row for row in ottla.rows("topics", "list") if row["topic"] == topic]
    assert (row["partitions"], row["replication_factor"], row["leaderless"]) == (3, 1, 0)
    assert [line.split() for line in ottla.text("topics", "list").splitlines() if topic in line] == [
        [topic, "in", "sync", "3", "1"]
    ]
    assert not any(row["internal"] for row in ottla.rows("topics", "list"))


def test_a_broker_that_does_not_answer_is_passed_over(server):
    assert Commands(f"127.0.0.1:1,{server.bootstrap}").rows("cluster", "status")[0]["brokers"]["alive"] == [1]
    said = Commands("127.0.0.1:1,127.0.0.1:2").text("topics", "list", status=2)
    assert said.startswith("Error: No broker answers at 127.0.0.1:1,127.0.0.1:2: 127.0.0.1:1: ")
    assert "; 127.0.0.1:2: " in said


def test_the_life_of_a_topic(ottla, topic):
    said = ottla.text("topics", "create", topic, "--partitions", 2, "--set", "retention.ms=5000")
    assert said == f"topic {topic}: created, partitions 2, replication factor 1\n"
    eventually_equal(
        lambda: [row["configs"] for row in ottla.rows("topics", "describe", topic)],
        [{"retention.ms": "5000"}],
    )
    produce(ottla.bootstrap, topic, [b"a", b"b", b"c"], partition=1)
    [row] = ottla.rows("topics", "describe", topic)
    assert [(each["leader"], each["log_start_offset"], each["log_end_offset"]) for each in row["rows"]] == [
        (1, 0, 0), (1, 0, 3),
    ]  # fmt: skip
    said = ottla.text(
        "topics", "alter", topic, "--partitions", 3, "--set", "segment.ms=70000", "--unset", "retention.ms"
    )
    assert said == f"topic {topic}: segment.ms=70000, retention.ms deleted, partitions 3\n"
    eventually_equal(
        lambda: [(row["partitions"], row["configs"]) for row in ottla.rows("topics", "describe", topic)],
        [(3, {"segment.ms": "70000"})],
    )
    assert ottla.text("topics", "create", topic, "--if-not-exists") == f"topic {topic}: exists already\n"
    said = ottla.text("topics", "create", topic, status=1)
    assert said.startswith(
        f"Error: topic {topic}: Topic '{topic}' already exists. --if-not-exists leaves it "
    )
    assert ottla.text("topics", "delete", topic) == f"topic {topic}: deleted\n"
    eventually_equal(lambda: [row for row in ottla.rows("topics", "list") if row["topic"] == topic], [])


def test_configurations(ottla, topic):
    create_topic(ottla.bootstrap, topic)
    resource = ("--topic", topic)
    ottla.text(
        "configs", "alter", *resource, "--set", "retention.ms=7000", "--append", "cleanup.policy=compact"
    )
    policy = "delete,compact"
    eventually_equal(
        lambda: {
            row["key"]: row["value"]
            for row in ottla.rows("configs", "describe", *resource)
            if row["source"] == "topic"
        },
        {"retention.ms": "7000", "cleanup.policy": policy},
    )
    [row] = ottla.rows("configs", "describe", *resource, "retention.ms")
    assert [each["source"] for each in row["synonyms"]][:1] == ["topic"]
    text = ottla.text("configs", "describe", *resource, "retention.ms")
    assert text.startswith("retention.ms=7000  (topic)\n  topic: retention.ms=7000\n")
    assert len(ottla.rows("configs", "describe", *resource, "--all")) > 20
    ottla.text(
        "configs", "alter", *resource, "--unset", "retention.ms", "--subtract", "cleanup.policy=compact"
    )
    broker = ottla.rows("configs", "describe", "--broker", 1)
    assert {"node.id", "log.dirs"} <= {row["key"] for row in broker}
    ottla.text("configs", "alter", "--broker-defaults", "--set", "log.cleaner.threads=2")
    eventually_equal(
        lambda: [
            row["value"]
            for row in ottla.rows("configs", "describe", "--broker-defaults")
            if row["key"] == "log.cleaner.threads"
        ],
        ["2"],
    )
    ottla.text("configs", "alter", "--broker-defaults", "--unset", "log.cleaner.threads")
    of_clients = ("--client-metrics", "mine")
    ottla.text("configs", "alter", *of_clients, "--set", "interval.ms=5000", "--set", "metrics=a.")
    rows = {row["key"]: row["value"] for row in ottla.rows("configs", "describe", *of_clients)}
    assert rows == {"interval.ms": "5000", "metrics": "a."}
    ottla.text("configs", "alter", *of_clients, "--unset", "interval.ms", "--unset", "metrics")


@pytest.mark.parametrize(("arguments", "status", "sentence"), [
    (["topics", "create", "{topic}-2", "--set", "retention.mss=5"], 1, "Did you mean retention.ms, "),
    (["topics", "create", "{topic}-2", "--set", "retention.ms=x"],  1, "Invalid value "),
    (["topics", "create", "{topic}-2", "--set", "retention.ms"],    2, "--set: 'retention.ms' is not a setting"),
    (["topics", "create", "{topic}-2", "--replication-factor", 3],  1, "Unable to replicate the partition 3 time(s)"),
    (["topics", "create", "a/b"],                                   1, "topic a/b: "),
    (["topics", "alter", "{topic}", "--partitions", 1],             2, "has 1 partition, and can get more only"),
    (["topics", "alter", "{topic}"],                                2, "Nothing is to be changed"),
    (["topics", "alter", "{topic}", "--set", "segment.mss=1"],      2, "Did you mean segment.ms, "),
    (["topics", "describe", "{topic}x"],                            2, "has no topic {topic}x. Did you mean {topic}"),
    (["topics", "delete", "{topic}x"],                              2, "has no topic {topic}x. Did you mean {topic}"),
    (["configs", "describe"],                                       2, "Whose configurations? Name one of --topic"),
    (["configs", "describe", "--topic", "{topic}x"],                2, "Did you mean {topic}"),
    (["configs", "describe", "--topic", "{topic}", "segment.mss"],  2, "Did you mean segment.ms, "),
    (["configs", "describe", "--broker", 7],                        2, "no broker 7 that is alive: it has 1."),
    (["configs", "alter", "--broker", 1, "--set", "log.dirs=/x"],   2, "log.dirs is read-only"),
    (["configs", "alter", "--broker-defaults", "--set", "log.retention.mss=1"], 2, "Did you mean log.retention.ms, "),
])  # fmt: skip
def test_refusals_are_sentences(ottla, topic, arguments, status, sentence):
    create_topic(ottla.bootstrap, topic)
    said = ottla.text(*(str(each).format(topic=topic) for each in arguments), status=status)
    assert sentence.format(topic=topic) in said
    assert "Traceback" not in said


def test_the_status_of_a_healthy_cluster(ottla, topic, group):
    create_topic(ottla.bootstrap, topic)
    produce(ottla.bootstrap, topic, [b"1", b"2"])
    ottla.text("groups", "reset-offsets", group, "--topic", topic, "--to-earliest", "--execute")
    [row] = once(lambda: ottla.rows("cluster", "status"), lambda rows: not rows[0]["reasons"])
    assert (row["level"], row["reasons"], row["brokers"]["alive"]) == ("healthy", [], [1])
    assert (row["controller"], row["voters"]) == (1, [1])
    assert {"group": group, "lag": 2, "members": 0} in row["groups"]
    text = ottla.text("cluster", "status")
    assert text.startswith("Healthy: 1 broker is alive, controller 1 is active with 1 voter, and ")
    [row] = ottla.rows("cluster", "status", "--max-lag", 1, status=1)
    assert f"the group {group} with 0 members lags by 2, more than 1" in row["sentence"]
