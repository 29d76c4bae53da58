"""One server for the whole run: Ottla, or with KAFKA_ORACLE=1 Apache Kafka 4.3.1 itself.

The suite says what Kafka's clients see. It passes against both; where the two differ, the test says so
by asking `server.is_kafka`.
"""

import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.compat.admin")

from tests.compat.members import Member
from tests.harness.kafka import KafkaServer
from tests.harness.ottla import OttlaServer

Server = OttlaServer | KafkaServer

#: What both are started with: 10 MB messages, no wait before a group's first rebalance, and maintenance
#: that does not keep tests waiting.
SETTINGS = {
    "message.max.bytes": "12000000",
    "socket.request.max.bytes": "104857600",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "log.retention.check.interval.ms": "200",
    "log.cleaner.backoff.ms": "100",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "100",
}


#: Whether this run is against Kafka.
IS_ORACLE = os.environ.get("KAFKA_ORACLE") == "1"


def make_server(folder: os.PathLike[str], settings: dict[str, str] | None = None) -> Server:
    """A server that is not started yet, of the kind that this run is about."""
    kind = KafkaServer if IS_ORACLE else OttlaServer
    return kind(folder, settings={**SETTINGS, **(settings or {})})


def asks_the_server(item: pytest.Function) -> bool:
    """Whether the server that a test asks is of the kind that this run is about; others start what they compare."""
    return bool({"server", "own_server", "broker_kind"}.intersection(item.fixturenames)) or hasattr(
        item.module, "make_server"
    )


#: The files that take longest. They come first (`make compat`): one that began last would leave the other workers idle.
LONGEST = (
    "tiering/test_tiering_stories.py",
    "test_chaos.py",
    "tiering/test_bad_store.py",
    "test_data_folders.py",
    "test_quorum_tools.py",
    "test_closest_replica.py",
    "test_mixed_brokers.py",
    "test_mixed_quorum.py",
    "test_cluster.py",
    "test_kafka_broker.py",
)


def put_first(items: list[pytest.Item], folder: Path, names: Sequence[str]) -> None:
    """Order the tests so that these files of the folder come before all others."""
    assert not (missing := [name for name in names if not (folder / name).is_file()]), missing
    ranks = {folder / name: at for at, name in enumerate(names)}
    items.sort(key=lambda item: ranks.get(item.path, len(names)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Against Kafka only what asks the server is run: all else is the same in both runs.

    Here a test may wait several times for as long as `PATIENCE_S`, and set up JVMs: it may take longer than others.

    And the sockets of this process are the client libraries': what they leave to the garbage collector is
    theirs to close, and would fail whichever test runs by then.
    """
    here = Path(__file__).parent
    if IS_ORACLE:
        others = [item for item in items if not asks_the_server(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    put_first(items, here, LONGEST)
    for item in items:
        if here not in item.path.parents:
            continue
        item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = make_server(tmp_path_factory.mktemp("server")).start()
    yield started
    started.stop()


@pytest.fixture
def own_server(tmp_path) -> Iterator[Server]:
    """A server that a test may restart and kill."""
    started = make_server(tmp_path / "own").start()
    yield started
    if started.child.is_running:
        started.stop()


@pytest.fixture
def broker_kind() -> str:
    """The kind of the brokers of a cluster that a test starts: "ottla" or "kafka"."""
    return "kafka" if IS_ORACLE else "ottla"


@pytest.fixture(autouse=True)
def no_member_outlives_its_test() -> Iterator[None]:
    yield
    Member.end_all()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"topic-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def group() -> str:
    """A group that no other test uses."""
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture(autouse=True)
def no_warning_is_logged_that_the_test_does_not_name() -> None:
    """Accept all warnings: with real processes and networks, timeouts and retries depend on the machine."""
