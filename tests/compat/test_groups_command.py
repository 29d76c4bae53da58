"""`ottla groups` on the server of this run: Ottla, or Apache Kafka, with a member of librdkafka."""

import pytest
from confluent_kafka import Consumer

from tests.compat.admin import create_topic, eventually_equal, once, produce, wait_until
from tests.compat.commands import Commands
from tests.compat.members import ConfluentMember


@pytest.fixture
def ottla(server) -> Commands:
    return Commands(server.bootstrap)


def test_a_group_while_it_consumes_and_afterwards(ottla, topic, group):
    create_topic(ottla.bootstrap, topic, 2)
    produce(ottla.bootstrap, topic, [b"1", b"2", b"3"])
    member = ConfluentMember(ottla.bootstrap, group, topic).start()
    wait_until(lambda: len(member.taken) == 3 and len(member.assigned) == 2)

    def progress():
        [row] = ottla.rows("groups", "describe", group)
        return row["state"], [
            (each["partition"], each["committed_offset"], each["log_end_offset"], each["lag"])
            for each in row["partitions"]
        ]

    # What was never consumed has no committed offset, or the end of the empty log.
    eventually_equal(lambda: (progress()[0], progress()[1][0]), ("Stable", (0, 3, 3, 0)))
    [row] = ottla.rows("groups", "describe", group)
    [client] = row["members"]
    assert (client["client"], client["host"]) == ("rdkafka", "127.0.0.1")
    assert client["partitions"] == [f"{topic}-0", f"{topic}-1"]
    assert {each["member"] for each in row["partitions"]} == {client["member"]}
    assert f"{group}  classic, Stable, assignor range" in ottla.text("groups", "describe", group)
    refusal = f"The group {group} is Stable with 1 member (rdkafka at 127.0.0.1): stop them first"
    reset = ("groups", "reset-offsets", group)
    assert refusal in ottla.text(*reset, "--all-topics", "--to-earliest", "--execute", status=2)
    assert refusal in ottla.text("groups", "delete", group, status=1)

    member.stop()
    eventually_equal(
        lambda: [row["state"] for row in ottla.rows("groups", "list") if row["group"] == group], ["Empty"]
    )
    shown = ottla.text(*reset, "--topic", f"{topic}:0", "--shift-by", -2)
    assert shown.splitlines()[-1] == "Nothing is changed yet: repeat it with --execute."
    assert progress()[1][0] == (0, 3, 3, 0)
    [row] = ottla.rows(*reset, "--topic", f"{topic}:0", "--shift-by", -2, "--execute")
    assert (row["committed_offset"], row["new_offset"], row["is_executed"]) == (3, 1, True)
    assert progress() == ("Empty", [(0, 1, 3, 2), *progress()[1][1:]])
    # The end of an empty partition, for a time before which no record is.
    rows = ottla.rows(*reset, "--topic", topic, "--to-datetime", "2020-01-01")
    assert [row["new_offset"] for row in rows] == [0, 0]
    rows = ottla.rows(*reset, "--topic", topic, "--to-datetime", "2100-01-01T00:00+01:00")
    assert [(row["new_offset"], row["note"]) for row in rows] == [
        (3, "no record is of this time or later"), (0, "no record is of this time or later"),
    ]  # fmt: skip
    first, *_ = ottla.rows(*reset, "--all-topics", "--to-offset", 7)
    assert first["new_offset"] == 3

    again = ConfluentMember(ottla.bootstrap, group, topic).start()
    wait_until(lambda: len(again.taken) == 2)
    again.stop()
    assert [value for _, _, value in again.taken] == [b"2", b"3"]
    eventually_equal(lambda: progress()[0], "Empty")
    assert ottla.text("groups", "delete", group) == f"group {group}: deleted\n"
    assert f"The cluster has no group {group}." in ottla.text("groups", "describe", group, status=2)


def test_members_of_each_protocol(server, ottla, topic, group):
    """Kafka has groups of the consumer protocol, too (KIP-848)."""
    create_topic(ottla.bootstrap, topic, 2)
    protocols = {"classic": "range"} | ({"consumer": "uniform"} if server.is_kafka else {})
    for protocol, assignor in protocols.items():
        name = f"{group}-{protocol}"
        consumer = Consumer(
            {"bootstrap.servers": ottla.bootstrap, "group.id": name, "group.protocol": protocol}
        )
        try:
            consumer.subscribe([topic])
            wait_until(
                lambda consumer=consumer: consumer.poll(0.1) is None and len(consumer.assignment()) == 2
            )
            [row] = once(
                lambda name=name: ottla.rows("groups", "describe", name),
                lambda rows: rows[0]["state"] == "Stable",
            )
        finally:
            consumer.close()
        assert (row["type"], row["assignor"]) == (protocol, assignor)
        [member] = row["members"]
        assert member["partitions"] == [f"{topic}-0", f"{topic}-1"]


def test_a_group_that_does_not_exist_yet_gets_offsets(ottla, topic, group):
    create_topic(ottla.bootstrap, topic)
    produce(ottla.bootstrap, topic, [b"1", b"2"])
    ottla.text("groups", "reset-offsets", group, "--topic", topic, "--to-latest", "--execute")
    [row] = ottla.rows("groups", "describe", group)
    assert (row["state"], row["lag"], row["partitions"][0]["committed_offset"]) == ("Empty", 0, 2)


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["describe", "{group}"],                                     "The cluster has no group {group}."),
    (["delete", "{group}"],                                       "The cluster has no group {group}."),
    (["reset-offsets", "{group}", "--all-topics", "--to-latest"], "The cluster has no group {group}."),
    (["reset-offsets", "{group}", "--all-topics"],                "Where to? Name one of --to-earliest, "),
    (["reset-offsets", "{group}", "--to-latest"],                 "Which partitions? Name --topic, or --all-topics."),
    (["reset-offsets", "{group}", "--topic", "{topic}:9", "--to-latest"], "{topic} has the partitions 0 to 0"),
    (["reset-offsets", "{group}", "--topic", "{topic}x", "--to-latest"],  "Did you mean {topic}"),
    (["reset-offsets", "{group}", "--topic", "{topic}", "--shift-by", "1"], "has committed nothing for {topic}-0"),
    (["reset-offsets", "{group}", "--topic", "{topic}", "--to-datetime", "soon"], "'soon' is no time: it must be as "),
])  # fmt: skip
def test_refusals_are_sentences(ottla, topic, group, arguments, sentence):
    create_topic(ottla.bootstrap, topic)
    words = [each.format(topic=topic, group=group) for each in arguments]
    said = ottla.text("groups", *words, status=2)
    assert sentence.format(topic=topic, group=group) in said
    assert "Traceback" not in said
