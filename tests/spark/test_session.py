"""Sessions of programs: on this machine and on a standalone cluster, and why there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.spark import StandaloneCluster

REPOSITORY = Path(__file__).parents[2]
#: Longer than JVMs, one after the other, take on a busy machine, and shorter than the test's timeout.
PATIENCE_S = 500
PROGRAM = """
import os, sys, time
from ottla.bench.spark import session
from ottla.bench.spark.session import SparkCannotStart, slots, spark_session
session._EXECUTORS_TIMEOUT_S = float(os.environ.get("EXECUTORS_TIMEOUT_S", "90"))
try:
    for master in sys.argv[1:]:
        with spark_session(master, name="test", with_kafka=True) as spark:
            while (count := slots(spark)) < int(os.environ.get("LEAST_SLOTS", "1")):
                time.sleep(0.1)  # the other worker is slow today
            executors = spark.sparkContext.parallelize(range(count), count).map(lambda _: os.getppid()).collect()
            topic = spark.read.format("kafka").option("kafka.bootstrap.servers", "x:1").option("subscribe", "x")
            columns = topic.load().columns
            print(count, len(set(executors)), spark.range(100).selectExpr("sum(id)").first()[0], columns[0])
except SparkCannotStart as error:
    sys.exit(f"refused: {error}")
"""


def run(*masters, **environment):
    """The program's output on both channels, which is all that a user sees."""
    done = subprocess.run(
        # PySpark leaves the pipe to a JVM that has not started to the garbage collector.
        [
            sys.executable,
            "-W",
            "error",
            "-W",
            "ignore:unclosed file:ResourceWarning",
            "-c",
            PROGRAM,
            *masters,
        ],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_sessions_follow_each_other_and_print_nothing():
    assert run("local[2]", "local[1]", SPARK_HOME="/another/spark") == (
        0,
        "2 1 4950 key\n1 1 4950 key\n",
        "",
    )


def test_a_standalone_cluster_runs_tasks_on_all_workers(tmp_path):
    with StandaloneCluster(tmp_path / "spark", workers=2) as cluster:
        assert run(cluster.url, LEAST_SLOTS="2") == (0, "2 2 4950 key\n", "")


def test_a_cluster_without_workers_is_one_line(tmp_path, monkeypatch):
    with StandaloneCluster(tmp_path / "spark", workers=0) as cluster:
        status, output, errors = run(cluster.url, EXECUTORS_TIMEOUT_S="3")
    assert (status, output) == (1, "")
    assert errors.startswith(
        f"refused: no worker of {cluster.url} has offered a core within 3 s: start workers"
    )
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"JAVA_HOME": "/nowhere"}, "JAVA_HOME is /nowhere, but /nowhere/bin/java cannot be run"),
        # A setting of the user's that Spark's own start script reads.
        (
            {"SPARK_SUBMIT_OPTS": "-Xss1"},
            "Spark's JVM does not start: The Java thread stack size specified is too small",
        ),
    ],
)
def test_a_spark_that_cannot_start_is_one_line(environment, complaint):
    status, output, errors = run("local[2]", **environment)
    assert (status, output) == (1, "")
    assert errors.startswith(f"refused: {complaint}")
    assert errors.count("\n") == 1
