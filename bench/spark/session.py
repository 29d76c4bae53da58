"""A Spark session for a run of the benchmarks: it is checked before it starts, and removes its files at the end.

Each session has a JVM of its own, which ends with it. What the JVM and the Python processes of its tasks
print goes to a file; the reason of a failed start is read from there, and nothing else is shown.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from ottla.bench.components import fetch
from ottla.bench.spark.errors import SparkCannotStart, reason_of
from ottla.bench.spark.java import check_java
from ottla.bench.spark.master import Master, parse_master

__all__ = ["SparkCannotStart", "slots", "spark_session"]

_EXECUTORS_TIMEOUT_S: Final = 60.0
#: The workers of a cluster offer their cores one after the other: all have come when none has for so long.
_QUIET_S: Final = 2.0
_POLL_S: Final = 0.1
_JVM_END_TIMEOUT_S: Final = 30.0
_MAX_REASON: Final = 500

#: Results are small, so a shuffle has few partitions. A load that failed is not repeated: it would be another load.
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.task.maxFailures": "1",
    "spark.locality.wait": "0s",
}
#: The modules that tasks import, and this Python has: a cluster's workers need them too.
_MODULES_OF_TASKS: Final = ("confluent_kafka", "hdrh", "numpy", "pandas", "psutil", "pyarrow")


@contextmanager
def spark_session(master: str, *, name: str, with_kafka: bool = False) -> Iterator[SparkSession]:
    """Start a session at `local[N]` or `spark://HOST:PORT`, with this Python, or PYSPARK_PYTHON on other machines.

    `with_kafka`: with Spark's Kafka connector. One session at a time. Takes some 8 s. Raises SparkCannotStart.
    """
    where = parse_master(master)
    check_java()
    where.check()
    handler = signal.getsignal(signal.SIGINT)
    with tempfile.TemporaryDirectory(prefix="ottla-spark-", ignore_cleanup_errors=True) as folder:
        conf = _conf(where, name=name, with_kafka=with_kafka, folder=Path(folder))
        log_path = Path(folder, "spark.log")
        with log_path.open("wb") as log, _jvm(conf, log) as gateway:
            try:
                session = SparkSession(SparkContext(conf=conf, gateway=gateway))
                # PySpark's handler cancels all jobs, and with them what they would report.
                signal.signal(signal.SIGINT, handler)
                _wait_for_executors(session, where)
                _check_python(session)
            except (PySparkException, Py4JError, OSError) as error:
                raise SparkCannotStart(
                    f"Spark cannot start at {where.url}: {reason_of(str(error), log_path.read_text(errors='replace'))}"
                ) from error
            try:
                yield session
            finally:
                with suppress(Py4JError):
                    session.stop()


def slots(spark: SparkSession) -> int:
    """Return the number of tasks that may run at the same time."""
    context: Any = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def _conf(where: Master, *, name: str, with_kafka: bool, folder: Path) -> SparkConf:
    """Return the session's configuration; the variables that Spark's start script reads are set there, too."""
    # Another Spark on this machine is not the one of this Python.
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    settings = {
        **_SETTINGS,
        "spark.master": where.url,
        "spark.app.name": name,
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    if where.is_on_loopback:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        settings["spark.driver.host"] = "127.0.0.1"
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if with_kafka:
        settings["spark.jars"] = ",".join(map(str, sorted(fetch.spark_jars().glob("*.jar"))))
    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set(key, value)
    return conf


@contextmanager
def _jvm(conf: SparkConf, log: IO[bytes]) -> Iterator[Any]:
    """Return a JVM with Spark, and PySpark's gateway to it.

    PySpark itself keeps the first one until this process ends.
    """
    # A signal to the whole group of processes is this one's: it still needs Spark for its result.
    try:
        gateway = launch_gateway(conf, {"stdout": log, "stderr": log, "start_new_session": True})
    except PySparkException as error:
        printed = Path(log.name).read_text(errors="replace").split("\n")
        words = "; ".join(line.strip() for line in printed if line.strip())[-_MAX_REASON:]
        raise SparkCannotStart(f"Spark's JVM does not start: {words}") from error
    process: subprocess.Popen[bytes] = gateway.proc
    try:
        yield gateway
    finally:
        SparkContext._gateway = SparkContext._jvm = None
        gateway.shutdown()
        assert process.stdin is not None
        process.stdin.close()  # it ends with this pipe
        try:
            process.wait(_JVM_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_executors(spark: SparkSession, where: Master) -> None:
    """Wait until the workers of a cluster have offered their cores."""
    if where.is_local:
        return
    begin = changed = time.monotonic()
    count = 0
    while not count or time.monotonic() - changed < _QUIET_S:
        if time.monotonic() - begin > _EXECUTORS_TIMEOUT_S and not count:
            raise SparkCannotStart(
                f"no worker of {where.url} has offered a core within {_EXECUTORS_TIMEOUT_S:.0f} s: "
                "start workers, or end what occupies them"
            )
        if spark.sparkContext._jsc.sc().isStopped():
            raise SparkCannotStart(
                f"{where.url} does not answer as a Spark master of version {pyspark.__version__}"
            )
        if (now_count := slots(spark)) != count:
            count, changed = now_count, time.monotonic()
        time.sleep(_POLL_S)


def _check_python(spark: SparkSession) -> None:
    """Run a first job, which starts the tasks' Pythons, and check their version and their modules."""
    names = _MODULES_OF_TASKS

    # A local function travels by value: the modules of this package are not there.
    def missing_modules(_: object) -> list[str]:
        from importlib.util import find_spec

        return [name for name in names if find_spec(name) is None]

    count = slots(spark)
    missing = set(spark.sparkContext.parallelize(range(count), count).flatMap(missing_modules).collect())
    if missing:
        raise SparkCannotStart(
            f"the Python of Spark's workers has no {', '.join(sorted(missing))}: install requirements/bench.lock "
            "there, or name the right Python with PYSPARK_PYTHON"
        )
