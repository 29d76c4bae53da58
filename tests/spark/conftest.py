"""One Spark session for all tests of a process: PySpark has one at a time. Tests of other sessions start programs."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ottla.bench.spark.session import spark_session
from tests.compat.conftest import Server, make_server, put_first

#: The files that take longest come first (`make spark`).
LONGEST = (
    "test_bench_run.py",
    "test_tier_source.py",
    "test_session.py",
    "test_bench_smoke.py",
    "test_standalone.py",
    "test_targets_events.py",
    "test_generators_calibration.py",
    "test_aggregation.py",
)

# A test's Spark lives for seconds: what the second compiler would gain costs more than half of its CPU time. Programs
# that tests start have the same.
for _options in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(_options, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sockets between PySpark and its JVM are PySpark's to close. JVMs and brokers start slowly on a busy machine."""
    here = Path(__file__).parent
    put_first(items, here, LONGEST)
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two tasks at the same time, with Spark's Kafka connector."""
    with spark_session("local[2]", name="tests", with_kafka=True) as session:
        yield session


@pytest.fixture(autouse=True)
def no_warning_is_logged_that_the_test_does_not_name() -> None:
    """Accept all warnings: with real processes and networks, timeouts and retries depend on the machine."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One broker for the tests of clients; with KAFKA_ORACLE=1 Kafka's."""
    started = make_server(tmp_path_factory.mktemp("server")).start()
    yield started
    started.stop()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"topic-{uuid.uuid4().hex[:12]}"
