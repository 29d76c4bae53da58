"""Samples of processor time, divided into parts that add up to what was measured."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import ottla
from ottla.bench import compare, untimed_rounds
from ottla.bench.environment import REPOSITORY
from ottla.bench.profiles import ALL, BROKER, FOLLOWERS, LEADER, Frame, NodeSamples, part_of, profile_of
from ottla.bench.targets.settings import SETTINGS

RUNNER = Frame("/usr/lib/python3.11/asyncio/runners.py", "Runner.run", 86, 118)


def frame(path, text, function="f", *, is_first=False):
    """The first line of a file of this tree that has this text; a test fails if there is none any more."""
    lines = (REPOSITORY / path).read_text().splitlines()
    line = next(number for number, each in enumerate(lines, 1) if text in each)
    return Frame(str(Path(ottla.__file__).parent / path), function, line if is_first else 1, line)


PRODUCE = frame("broker/api/k00_produce.py", "def _produce(", "_produce")
STORAGE = frame("storage/log.py", "def ", "Log.append")
STANDARD = Frame("/usr/lib/python3.11/struct.py", "pack", 1, 2)


@pytest.mark.parametrize(
    ("stack", "part"),
    [
        ([RUNNER], "waiting for events, and between callbacks (loop)"),
        (
            [frame("broker/network/connection.py", "def get_buffer", "Connection.get_buffer", is_first=True), RUNNER],
            "waiting for events, and between callbacks (loop)",
        ),
        (
            [
                frame("broker/network/connection.py", "def buffer_updated", "Connection.buffer_updated", is_first=True),
                RUNNER,
            ],
            "receiving (socket)",
        ),
        ([frame("broker/network/connection.py", "def get_buffer", is_first=True), PRODUCE, RUNNER], "Python: network"),
        ([frame("broker/network/connection.py", "_transport.write("), RUNNER], "sending (socket)"),
        ([frame("broker/network/connection.py", "_transport.writelines("), RUNNER], "sending (socket)"),
        ([frame("broker/network/outgoing.py", "_transport.write("), RUNNER], "sending (socket)"),
        ([frame("storage/files.py", "os.pwrite("), PRODUCE, RUNNER], "writing files"),
        ([frame("storage/files.py", "os.pwritev("), PRODUCE, RUNNER], "writing files"),
        ([frame("storage/files.py", "os.pread("), PRODUCE, RUNNER], "reading files"),
        ([frame("storage/fast_append.py", "crc32c(records"), PRODUCE, RUNNER], "checksum"),
        ([STORAGE, PRODUCE, RUNNER], "Python: storage"),
        ([STANDARD, STORAGE, PRODUCE, RUNNER], "Python: storage"),
        ([PRODUCE, RUNNER], "Python: api"),
        ([frame("replication/follower.py", "def "), RUNNER], "Python: replicas, replication"),
        ([frame("broker/node.py", "def "), RUNNER], "Python: other"),
        ([STANDARD, RUNNER], "Python: other"),
    ],
)  # fmt: skip
def test_the_part_of_a_sample(stack, part):
    assert part_of(stack) == part


def node(*stacks, others_s=0.0):
    return NodeSamples(stacks=stacks, others_s=others_s)


def sums(profile):
    return {column: pytest.approx(sum(parts.values())) for column, parts in profile.parts.items()}


def test_parts_add_up_to_what_was_measured():
    its = node((0.3, [STORAGE, PRODUCE, RUNNER]), (0.5, [RUNNER]), others_s=0.2)
    profile = profile_of("load", "cpu_s_per_request", [(50e-6, [its]), (30e-6, [its])])
    assert profile.cpu == pytest.approx(40e-6)
    assert sums(profile) == {BROKER: 40e-6}
    assert profile.parts[BROKER]["Python: storage"] == pytest.approx(12e-6)
    assert profile.parts[BROKER]["other threads"] == pytest.approx(8e-6)
    assert profile.functions == {"storage/log.py: Log.append": pytest.approx(12e-6)}


def test_a_leader_is_what_producers_send_to():
    leader, follower = node((3.0, [PRODUCE, RUNNER])), node((0.5, [STORAGE, RUNNER]))
    profile = profile_of("load", "cpu_s_per_request", [(4.0, [follower, leader, follower])])
    assert sums(profile) == {LEADER: 3.0, FOLLOWERS: 1.0}
    assert list(profile.parts) == [LEADER, FOLLOWERS]
    profile = profile_of("load", "cpu_s_per_request", [(6.0, [leader, leader])])
    assert sums(profile) == {ALL: 6.0}


#: Uses processor time in one function for the most part, and before the sampler is on in another one.
SAMPLED = """
import pathlib, signal, sys, time
from ottla.bench.internals.profiled_broker import Sampler

def use(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(100))

def before():
    use(0.3)

def during():
    use(0.4)

sampler = Sampler(pathlib.Path(sys.argv[1]))
signal.signal(signal.SIGPROF, sampler.sample)
before()
sampler.switch(0, None)
during()
sampler.switch(0, None)
before()
"""


def test_a_sampler_weighs_stacks_by_the_threads_own_time(tmp_path):
    subprocess.run([sys.executable, "-c", SAMPLED, str(tmp_path)], cwd=REPOSITORY, check=True)
    [path] = tmp_path.iterdir()
    taken = NodeSamples.from_json(json.loads(path.read_text()))
    during_s = sum(
        seconds for seconds, stack in taken.stacks if any(each.function == "during" for each in stack)
    )
    assert 0.3 < during_s <= taken.total_s < 0.6
    assert taken.others_s < 0.1


def test_a_load_is_profiled_while_it_measures(tmp_path, monkeypatch):
    monkeypatch.setattr(untimed_rounds, "_MOST_ROUNDS", 2)
    loads = [measure for measure in compare.PROGRAM.measures if measure.name == "pipelined-200b"]
    done = []
    rounds = untimed_rounds.Observation(
        program=compare.PROGRAM,
        measures=[replace(loads[0], written_bytes=10.0), replace(loads[0], is_profiled=False)],
        folder=tmp_path,
        properties=SETTINGS["default"],
        scale=0.3,
        touch=done.append,
        say=done.append,
    )
    [profile] = rounds.profile()
    assert done == ["ottla is up", 10.0, 10.0, "profiled  pipelined-200b"]
    assert (profile.load, profile.metric) == ("pipelined-200b", "cpu_s_per_request")
    assert sums(profile) == {BROKER: profile.cpu}
    assert profile.parts[BROKER]["Python: storage"] > 0
