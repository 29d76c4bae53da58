"""Arguments, lines and outputs that are mistakes: a command ends with a sentence, without a stack or a signal."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.broker.cli.bootstrap import ask_cluster
from ottla.broker.cluster_client.client import ClusterClient
from ottla.testing import Broker
from tests.harness.readme import ROOT

NINES = "9" * 5000
JSON = ["produce", "t", "--json"]


@pytest.fixture(scope="module")
def broker():
    with Broker() as broker:
        broker.produce("t", "a")
        yield broker


def run(broker, arguments, **options):
    command = [sys.executable, "-m", "ottla", *arguments, "--bootstrap-server", broker.bootstrap_servers]
    return subprocess.run(command, cwd=ROOT, check=False, stderr=subprocess.PIPE, timeout=60, **options)


@pytest.mark.parametrize(("arguments", "line", "sentence"), [
    (["topics", "create", "u", "--partitions", "99999999999"],  b"",
     "'--partitions': 99999999999 is not in the range 1<=x<=2147483647."),
    (["consume", "t", "--timestamp", "1969-12-31"],             b"",  "'1969-12-31' is no time"),
    (["consume", "t", "--timestamp", "9" * 20],                 b"",  "is no time"),
    (["consume", "t", "--offset", NINES],                       b"",  "it must be earliest, latest, an offset"),
    (["consume", "t", "--group", ""],                           b"",  "--group: the name is empty."),
    (["groups", "reset-offsets", "g", "--to-earliest", "--topic", f"t:{NINES}"], b"", "TOPIC:PARTITION"),
    (["topics", "describe", ""],                                b"",  "The cluster has no topic ''."),
    (["topics", "describe", b"\xff"],                           b"",  "is not UTF-8"),
    (["produce", "t", "a", "--header", b"\xff=1"],              b"",  "is not text"),
    (JSON, b'{"value": "x", "headers": [["\\ud800", "1"]]}',          "is not text"),
    (JSON, b'{"value": "x", "timestamp": 99999999999999999999}',      "is no number from 0 to"),
    ([*JSON, "--keep-partitions"], b'{"value": "x", "partition": 99999999999}', "is no number from 0 to"),
])  # fmt: skip
def test_a_sentence_says_what_is_wrong(broker, arguments, line, sentence):
    done = run(broker, arguments, input=line, stdout=subprocess.PIPE)
    assert sentence in done.stderr.decode()
    assert done.returncode == 2


@pytest.mark.parametrize("arguments", [["consume", "t"], ["topics", "list"]], ids=lambda each: each[0])
def test_a_full_output_is_named(broker, arguments):
    with Path("/dev/full").open("wb") as full:
        done = run(broker, arguments, stdout=full)
    assert done.stderr == b"Error: The output cannot be written: No space left on device.\n"
    assert done.returncode == 1


def test_closed_streams_are_empty_ones(broker):
    """The first socket of the command got their number, and libuv aborted the process."""
    command = f"{sys.executable} -m ottla produce t --bootstrap-server {broker.bootstrap_servers} <&- >&-"
    done = subprocess.run(command, shell=True, cwd=ROOT, check=False, stderr=subprocess.PIPE, timeout=60)
    assert (done.stderr, done.returncode) == (b"", 0)


def test_a_pipe_is_no_log(tmp_path):
    """The command waited for a writer."""
    pipe = tmp_path / "00000000000000000000.log"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "ottla", "dump-log", pipe]
    done = subprocess.run(command, cwd=ROOT, check=False, stderr=subprocess.PIPE, timeout=60)
    assert done.stderr.decode() == f"Error: {pipe}: only a regular file can be shown, and no pipe.\n"


@pytest.mark.parametrize("is_alive", [True, False])
def test_ctrl_c_ends_a_consumer(is_alive):
    """The client library drops the exception of a signal's handler, mostly while no broker answers."""
    with Broker() as broker:
        broker.produce("t", "a")
        options = ["--follow", "--from-beginning", "--bootstrap-server", broker.bootstrap_servers]
        with subprocess.Popen(
            [sys.executable, "-m", "ottla", "consume", "t", *options],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout.readline() == b"a\n"
            if not is_alive:
                broker.kill()
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60) == (b"", b"")
            assert process.returncode == 0


def test_a_long_turn_of_a_command_is_not_reported(caplog):
    async def question(client: ClusterClient) -> int:
        return sum(range(20_000_000))

    assert ask_cluster("127.0.0.1:1", question) > 0
    assert caplog.messages == []
