"""`ottla bench run` as its users call it: a result whose counts are right, interrupts,
and what is refused before any load.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.bench.components.processes import has_ended, wait_until
from ottla.bench.generators.cluster import ClusterDoesNotAnswer, ClusterReader
from ottla.bench.report import from_json

ROOT = Path(__file__).parents[2]
#: Longer than this takes on a busy machine.
PATIENCE_S = 400

WORKLOAD = """
title = "Does it work?"
about = "Some records."

[[topics]]
name = "{topic}"
partitions = 2

[[phases]]
name = "write"
seconds = {seconds}
producers = [{{ topic = "{topic}", rate = 200, size = 100 }}]
consumers = [{{ topic = "{topic}" }}]

[[phases]]
name = "read"
consumers = [{{ topic = "{topic}", start = "beginning" }}]
"""


def command(*arguments):
    return [sys.executable, "-m", "ottla", "bench", "run", *map(str, arguments)]


def bench(*arguments):
    return subprocess.run(
        command(*arguments, "--allow-dirty"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def workload(folder, topic, *, seconds=2):
    path = folder / "some.toml"
    path.write_text(WORKLOAD.format(topic=topic, seconds=seconds))
    return path


def report_in(out):
    (folder,) = out.iterdir()
    report = from_json((folder / "summary.json").read_text())
    assert report is not None
    return folder, report


def samples(report, phase, target):
    (section,) = report.sections
    (table,) = (table for table in section.tables if table.name == phase)
    return table.samples[target]


def test_a_workload_on_a_cluster_that_runs(server, topic, tmp_path):
    done = bench(
        workload(tmp_path, topic),
        "--target",
        f"mine={server.bootstrap}",
        "--runs",
        2,
        "--out",
        tmp_path / "out",
    )
    assert done.returncode == 0, done.stderr
    folder, report = report_in(tmp_path / "out")
    assert (report.runs, report.is_partial, list(report.targets)) == (2, False, ["mine"])
    assert f"--target mine={server.bootstrap} --runs 2" in report.command
    for sample in samples(report, "write", "mine"):
        assert (sample["acknowledged"], sample["to_read"]) == (400, 400)
        assert (sample["lost"], sample["duplicates"], sample["corrupt"], sample["out_of_order"]) == (
            0,
            0,
            0,
            0,
        )
    for sample in samples(report, "read", "mine"):
        assert (sample["to_read"], sample["lost"], sample["duplicates"]) == (400, 0, 0)
    assert f"written: {folder}" in done.stdout
    assert (folder / "report.html").exists()
    # A line for each phase, where there is no terminal for a bar.
    assert "run 2/2  mine  read" in done.stderr
    # Nothing of it is left in a cluster that is not its own.
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    # A broker learns of a deletion a moment after it is acknowledged.
    wait_until(
        lambda: not any(name.startswith(topic) for name in admin.list_topics(timeout=PATIENCE_S).topics)
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_an_interrupt_ends_the_phase_and_what_there_is_is_aggregated(server, topic, tmp_path, number):
    path = workload(tmp_path, topic, seconds=300)
    arguments = command(
        path, "--target", f"mine={server.bootstrap}", "--out", tmp_path / "out", "--allow-dirty"
    )
    with subprocess.Popen(
        arguments, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        try:
            wait_for_records(server.bootstrap, f"{topic}-1")
            children = psutil.Process(run.pid).children(recursive=True)
            run.send_signal(number)
            _, errors = run.communicate(timeout=PATIENCE_S)
        finally:
            run.kill()
    assert run.returncode == 130, errors
    assert "Stopped: the result is of what there was." in errors
    _, report = report_in(tmp_path / "out")
    assert report.is_partial
    (sample,) = samples(report, "write", "mine")
    assert sample["acknowledged"] > 0
    assert sample.get("lost", 0) == 0
    wait_until(lambda: all(map(has_ended, children)))


def wait_for_records(bootstrap, topic):
    deadline = time.monotonic() + PATIENCE_S
    reader = ClusterReader(bootstrap)
    while time.monotonic() < deadline:
        try:
            if sum(reader.read([topic]).ends[topic].values()) > 0:
                return
        except ClusterDoesNotAnswer:
            pass
        time.sleep(0.2)
    pytest.fail(f"{topic} has no records")


@pytest.mark.parametrize(
    ("partitions", "records", "sentence"),
    [
        (3, 0, "exists with 3 partitions, and the workload has 2: delete the topic, or"),
        (2, 1, "exists and has records: delete the topic, or"),
    ],
)
def test_a_topic_that_is_there_is_refused(server, topic, tmp_path, partitions, records, sentence):
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    # Of the second run: it is found before the first one.
    admin.create_topics([NewTopic(f"{topic}-2", partitions, 1)])[f"{topic}-2"].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for _ in range(records):
        producer.produce(f"{topic}-2", b"value")
    assert producer.flush(PATIENCE_S) == 0
    done = bench(
        workload(tmp_path, topic),
        "--target",
        f"mine={server.bootstrap}",
        "--runs",
        2,
        "--out",
        tmp_path / "out",
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: mine: topic {topic}-2 {sentence}")
    assert_nothing_was_done(done, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "there is no target: name one with --target NAME=HOST:PORT, or --start ottla"),
        (["--target", "a=127.0.0.1:1"], "--target a: no Kafka broker answers"),
        (["--target", "a=nowhere"], "nowhere is not HOST:PORT"),
        (["--start", "ottla", "--target", "ottla=127.0.0.1:1"], "there are two targets called ottla"),
        (["--start", "ottla", "--master", "yarn"], "'yarn' is no Spark master"),
        (["--start", "ottla", "--master", "spark://127.0.0.1:1"], "no Spark master can be reached"),
        (["--start", "ottla", "--store", "minio"], "some has no remote tier: remove --store"),
        (["--start", "minio"], "some has no remote tier"),
    ],
)
def test_what_cannot_be_run_is_one_line(arguments, sentence, tmp_path):
    done = bench(workload(tmp_path, "t"), *arguments, "--out", tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert sentence in done.stderr
    assert_nothing_was_done(done, tmp_path)


def test_a_client_configuration_that_librdkafka_does_not_know_is_one_line(tmp_path):
    path = tmp_path / "some.toml"
    text = WORKLOAD.format(topic="t", seconds=1).replace("size = 100", 'client = { "linger.msec" = 1 }')
    path.write_text(text)
    done = bench(path, "--start", "ottla", "--out", tmp_path / "out")
    assert done.returncode == 1
    assert (
        "phases 1 (write), producers 1, client: librdkafka does not take it: "
        'No such configuration property: "linger.msec"' in done.stderr
    )
    assert_nothing_was_done(done, tmp_path)


def test_without_java_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    done = bench(workload(tmp_path, "t"), "--start", "ottla", "--out", tmp_path / "out")
    assert done.returncode == 1
    assert "JAVA_HOME is /nonexistent" in done.stderr
    assert_nothing_was_done(done, tmp_path)


def assert_nothing_was_done(done, tmp_path):
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "out").exists()
