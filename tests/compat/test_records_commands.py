"""`ottla produce` and `ottla consume` on the server of this run: Ottla, or Apache Kafka."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from ottla.bench.components.processes import Child
from tests.compat.admin import create_topic, eventually_equal, produce, read
from tests.compat.commands import Commands
from tests.harness.readme import ROOT

HEADERS = [["trace", "a=b"], ["empty", None]]


@pytest.fixture
def ottla(server) -> Commands:
    return Commands(server.bootstrap)


def test_a_pipe_copies_a_topic(ottla, topic):
    copy = f"{topic}-copy"
    create_topic(ottla.bootstrap, topic, 2)
    create_topic(ottla.bootstrap, copy, 2)
    # Retention would delete an old record.
    timestamp = round(time.time() * 1000) - 60_000
    lines = [
        {"key": "42", "value": "two apples", "headers": HEADERS, "timestamp": timestamp},
        {"key": {"base64": "/w=="}, "value": None},
        {"key": None, "value": "é\n\t"},
    ]  # fmt: skip
    text = "".join(json.dumps(line) + "\n" for line in lines)
    assert ottla.text("produce", topic, "--json", input=text).startswith(
        f"topic {topic}: 3 records written to "
    )
    ottla.text("produce", topic, "plain", "--partition", 1)
    out = ottla.text("consume", topic, "--json")
    ottla.text("produce", copy, "--json", "--keep-partitions", input=out)

    def rows(name):
        found = ottla.rows("consume", name)
        return sorted((row["partition"], row["offset"], {**row, "topic": None}) for row in found)

    assert len(rows(topic)) == 4
    assert rows(copy) == rows(topic)
    # The partition of a key is that of Kafka's own producer: 42 is in partition 1 of 2.
    [message] = [
        each for index in (0, 1) for each in read_all(ottla.bootstrap, copy, index) if each.key() == b"42"
    ]
    assert message.value() == b"two apples"
    assert message.headers() == [("trace", b"a=b"), ("empty", None)]
    assert message.timestamp() == (1, timestamp)


def read_all(bootstrap, topic, partition):
    ranges = Commands(bootstrap).rows("topics", "describe", topic)[0]["rows"]
    return read(bootstrap, topic, ranges[partition]["log_end_offset"], partition=partition)


@pytest.mark.parametrize(("options", "offsets"), [
    ([],                                [0, 1, 2, 3, 4]),
    (["--from-beginning"],              [0, 1, 2, 3, 4]),
    (["--offset", "3"],                 [3, 4]),
    (["--offset", "-2"],                [3, 4]),
    (["--offset", "latest"],            []),
    (["--timestamp", "2020-01-01"],     [0, 1, 2, 3, 4]),
    (["--partition", "0", "--max-records", "2"], [0, 1]),
])  # fmt: skip
def test_where_it_begins_and_ends(ottla, topic, options, offsets):
    create_topic(ottla.bootstrap, topic, 2)
    produce(ottla.bootstrap, topic, [b"a", b"b", b"c", b"d", b"e"])
    assert [row["offset"] for row in ottla.rows("consume", topic, *options)] == offsets


def test_fields_and_formats(ottla, topic):
    create_topic(ottla.bootstrap, topic)
    ottla.text("produce", topic, "--key-separator", ":", "--header", "h=1", input="a:1\nb:\n")
    ottla.text("produce", topic, "00ff", "--value-format", "hex", "--key", "6b", "--key-format", "hex")
    shown = ["--show", "offset,key,value,headers", "--separator", "|"]
    assert ottla.text("consume", topic, *shown) == "0|a|1|h=1\n1|b||h=1\n2|k|\\x00\\xff|\n"
    assert ottla.text("consume", topic, "--offset", 2, "--value-format", "base64") == "AP8=\n"


def test_a_group_continues_where_it_was(ottla, topic, group):
    create_topic(ottla.bootstrap, topic)
    produce(ottla.bootstrap, topic, [b"a", b"b", b"c"])
    consume = ("consume", topic, "--group", group)
    assert ottla.text(*consume, "--max-records", 2) == "a\nb\n"
    assert ottla.text(*consume) == "c\n"
    assert ottla.text(*consume) == ""
    [row] = ottla.rows("groups", "describe", group)
    assert (row["lag"], row["partitions"][0]["committed_offset"]) == (0, 3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_follows_until_a_signal(ottla, topic, tmp_path, number):
    create_topic(ottla.bootstrap, topic)
    produce(ottla.bootstrap, topic, [b"before"])
    words = ["consume", topic, "--follow", "--offset", "-1", "--bootstrap-server", ottla.bootstrap]
    child = Child([sys.executable, "-m", "ottla", *words], log=tmp_path / "log")
    try:
        child.wait_until(lambda: child.output() == "before\n")
        produce(ottla.bootstrap, topic, [b"later"])
        child.wait_until(lambda: child.output() == "before\nlater\n")
        child.send_signal(number)
        assert child.wait() == 0
    finally:
        child.kill()


def test_a_reader_that_ends_first_is_no_failure(ottla, topic):
    create_topic(ottla.bootstrap, topic)
    produce(ottla.bootstrap, topic, [b"x" * 1000] * 1000)
    words = f"consume {topic} --bootstrap-server {ottla.bootstrap}"
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m ottla {words} | head -n 1 | cut -c 1-3"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("xxx\n", "")


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["produce", "{topic}x", "a"],                 "`ottla topics create {topic}x` creates it."),
    (["produce", "{topic}", "a", "--partition", 7], "--partition 7: the topic {topic} has the partitions 0 to 0."),
    (["produce", "{topic}", "a", "b:c", "--key-separator", ":"], "VALUE 1: 'a' has no ':' between key and value"),
    (["produce", "{topic}", "--json", '{{"value": "a"}}', "x"], "VALUE 2: no JSON: "),
    (["produce", "{topic}", "a", "--header", "b"], "--header b: it must be NAME=VALUE."),
    (["produce", "{topic}", "a", "--json", "--null", "b"], "--key-separator and --null are for lines of text"),
    (["produce", "{topic}", "a", "--key", "g", "--key-format", "hex"], "'g' is not hex: "),
    (["consume", "{topic}", "--json", "--show", "key"], "--show and --separator are for lines of text"),
    (["consume", "{topic}x"],                      "Did you mean {topic}"),
    (["consume", "{topic}", "--partition", 7],     "--partition 7: the topic {topic} has the partitions 0 to 0."),
    (["consume", "{topic}", "--offset", "soon"],   "--offset soon: it must be earliest, latest, an offset, or -N"),
    (["consume", "{topic}", "--offset", "1", "--from-beginning"], "Name only one of --from-beginning, --offset and"),
    (["consume", "{topic}", "--group", "g", "--offset", "1"], "`ottla groups reset-offsets` moves a group."),
    (["consume", "{topic}", "--show", "x"],        "--show x: 'x' is no field; they are topic, partition, "),
])  # fmt: skip
def test_refusals_are_sentences(ottla, topic, arguments, sentence):
    create_topic(ottla.bootstrap, topic)
    said = ottla.text(*(str(each).format(topic=topic) for each in arguments), status=2)
    assert sentence.format(topic=topic) in said
    assert "Traceback" not in said


def test_a_record_that_is_not_in_its_format(ottla, topic):
    create_topic(ottla.bootstrap, topic)
    produce(ottla.bootstrap, topic, [b'{"a":1}', b"no"])
    said = ottla.text("consume", topic, "--value-format", "json", status=2)
    assert said.startswith(f'{{"a": 1}}\nError: {topic}-0, offset 1: no JSON (')
    eventually_equal(lambda: ottla.text("consume", topic, "--offset", 1), "no\n")


def test_the_commands_of_operating_as_written(ottla):
    """In the order in which they are written; what follows would not end."""
    text = (ROOT / "docs/OPERATING.md").read_text()
    _, section = text.split("## Administration without Java\n")
    commands = re.findall(r"^    ottla (.*)", section.partition("\n## ")[0], re.MULTILINE)
    assert len(commands) > 10
    for command in commands:
        words = shlex.split(command, comments=True)
        if "--follow" not in words:
            eventually_equal(lambda words=words: ottla.run(*words, status=None).exit_code, 0)
