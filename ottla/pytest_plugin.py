"""The pytest plug-in: `ottla_broker`, `ottla_topic` and their like. A broker is imported when a test asks for one.

    OTTLA_BOOTSTRAP_SERVERS is set --------------------> ottla_broker is that cluster; none is started
    pytest -n N, unless --ottla-scope=worker ----------> one broker in the controlling process, for all workers:
        worker --asks at its first test--> controller starts it --bootstrap.servers--> worker
    else ----------------------------------------------> one broker in this process

A shared broker can be asked for everything, but not be changed as a whole (faults, clock, kill, reset), because that
would meet the tests of other workers; `ottla_cluster` starts brokers that can.
"""

import hmac
import json
import logging
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pytest

if TYPE_CHECKING:
    from ottla.testing import Broker, Cluster, ClusterMethods

#: The port of the controlling process at 127.0.0.1, and the key for it.
Access: TypeAlias = tuple[int, str]
#: One of xdist, which may be missing.
WorkerController: TypeAlias = Any
#: An argument of `ottla.testing.Broker` or `ottla.testing.Cluster`, or the value of a fixture.
Argument: TypeAlias = Any

_EXTERNAL: Final = "OTTLA_BOOTSTRAP_SERVERS"
#: The name of the `Access` in what xdist gives to a worker.
_SHARED: Final = "ottla_shared"
_MAX_NAME: Final = 200
#: The longest request of a worker, and how long its arrival may take.
_MAX_REQUEST_BYTES: Final = 1024
_REQUEST_S: Final = 30.0
#: Lines of a broker's log that are kept.
_MAX_LINES: Final = 500
_BEGAN: Final = pytest.StashKey[float]()
#: The exception of a test that has failed.
_FAILURE: Final = pytest.StashKey[BaseException]()


class _PlainImport(MetaPathFinder):
    """Imports the modules of this package as they were compiled when it was installed.

    pytest would rewrite the assertions of every module of a distribution that has a plug-in: two seconds of a
    processor for each run, and for each worker, where PYTHONDONTWRITEBYTECODE is set.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of this package; None for others."""
        return PathFinder.find_spec(name, path, target) if name.startswith("ottla.") else None


_PLAIN_IMPORT: Final = _PlainImport()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options --ottla-..., and the settings of pytest.ini and pyproject.toml."""
    if _PLAIN_IMPORT not in sys.meta_path:
        sys.meta_path.insert(0, _PLAIN_IMPORT)
    group = parser.getgroup("ottla", "Ottla, a Kafka broker")
    group.addoption(
        "--ottla-scope",
        choices=("shared", "worker"),
        default="shared",
        help="With pytest-xdist: one broker for all workers, or one for each of them.",
    )
    group.addoption(
        "--ottla-process",
        action="store_true",
        help="Run a broker in a process of its own; clusters of several stay in the test's.",
    )
    group.addoption(
        "--ottla-keep",
        action="store_true",
        help="Keep the data of brokers, in folders ottla-... for temporary files.",
    )
    parser.addini(
        "ottla_config", "Configurations of `ottla_broker`, as KEY=VALUE.", type="linelist", default=[]
    )
    parser.addini(
        "ottla_aliases",
        "Whether kafka_broker and kafka_topic name the same fixtures, for a project that had others before.",
        type="bool",
        default=False,
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker, and the aliases if they are wanted."""
    config.addinivalue_line(
        "markers",
        "ottla_topic(partitions=1, replicas=-1, config=None): how the fixture ottla_topic creates its topic",
    )
    if config.getini("ottla_aliases"):
        config.pluginmanager.register(_aliases(), "ottla-aliases")


def pytest_unconfigure() -> None:
    """Leave imports as they were."""
    if _PLAIN_IMPORT in sys.meta_path:
        sys.meta_path.remove(_PLAIN_IMPORT)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say which cluster is used, if none is started."""
    external = os.environ.get(_EXTERNAL)
    return f"ottla: {_EXTERNAL}={external}, no broker is started" if external else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Give a worker of xdist the address where it can ask for the broker that all workers share."""
    config: pytest.Config = node.config
    if config.getoption("--ottla-scope") != "shared" or os.environ.get(_EXTERNAL):
        return
    server = config.pluginmanager.get_plugin("ottla-shared")
    if server is None:
        server = _SharedBrokerServer(lambda: _new_broker(config))
        config.pluginmanager.register(server, "ottla-shared")
    node.workerinput[_SHARED] = server.access


class _SharedBrokerServer:
    """Starts one broker when the first worker asks for it, in the controlling process; ends with the session.

    A request is one line: the key, a space, and JSON. Each connection has a thread of its own, so that one that sends
    nothing delays no worker.
    """

    def __init__(self, make: "Callable[[], Broker]") -> None:
        from socketserver import StreamRequestHandler, ThreadingTCPServer  # imported here: only with xdist

        self._make = make
        self._starting = threading.Lock()
        self._broker: Broker | None = None
        self._log = _LogLines()
        key, answer = secrets.token_hex(32), self._answer

        class Handler(StreamRequestHandler):
            timeout = _REQUEST_S

            def handle(self) -> None:
                with suppress(OSError):  # a worker that has died, or another program of this machine
                    given, _, request = self.rfile.readline(_MAX_REQUEST_BYTES).partition(b" ")
                    if hmac.compare_digest(given, key.encode()):
                        self.wfile.write(json.dumps(answer(json.loads(request))).encode())

        self._server = ThreadingTCPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self._server.daemon_threads, self._server.request_queue_size = True, 64
        self._server.server_bind()
        self._server.server_activate()
        self.access = (self._server.server_address[1], key)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="ottla-shared", daemon=True
        )
        self._thread.start()

    def _answer(self, request: str | float) -> dict[str, str]:
        if request != "start":
            return {"result": self._log.since(float(request))}
        from ottla.testing import CannotStart, KafkaError  # imported here: a test asks for the broker

        with self._starting:
            try:
                if self._broker is None:
                    self._log.attach()
                    self._broker = self._make().start()
                return {"result": self._broker.bootstrap_servers}
            except (CannotStart, KafkaError, OSError, RuntimeError, TypeError, ValueError) as error:
                return {"error": str(error)}

    def pytest_unconfigure(self) -> None:
        """Stop the broker, and the threads that serve workers."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        if self._broker is not None:
            self._broker.stop()
        self._log.detach()


class _LogLines(logging.Handler):
    """The last lines that a broker in this process has logged."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._lines: deque[tuple[float, str]] = deque(maxlen=_MAX_LINES)
        self._logger = logging.getLogger("ottla")
        self._level = self._logger.level

    def attach(self) -> None:
        """Keep the lines of the broker from now on."""
        self._logger.addHandler(self)
        self._logger.setLevel(logging.INFO)

    def detach(self) -> None:
        """Leave the logger as it was."""
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line of a record."""
        self._lines.append((record.created, self.format(record)))

    def since(self, time_s: float) -> str:
        """Return the lines since a time, as time.time() has it."""
        return "\n".join(line for at_s, line in list(self._lines) if at_s >= time_s)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note when the test begins."""
    item.stash[_BEGAN] = time.time()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """End the faults of `ottla_broker` that a test has armed and left; one that was never met fails the test.

    They would meet the tests behind it. Faults of fixtures stay, until these end them.
    """
    broker: Argument = getattr(item, "funcargs", {}).get("ottla_broker")
    has_faults = hasattr(broker, "end_faults")  # not a cluster that a test cannot control
    before = broker.present_faults() if has_faults else set()
    try:
        yield
    except BaseException as error:
        item.stash[_FAILURE] = error
        if has_faults:
            broker.end_faults(but=before, verify=False)
        raise
    if has_faults:
        broker.end_faults(but=before, verify=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the shared broker has logged since the test's begin to the report of a test that has failed.

    The lines of a broker in the test's own process are among those that pytest has captured.
    """
    report = yield
    access = getattr(item.config, "workerinput", {}).get(_SHARED)
    if report.failed and access is not None and "ottla_broker" in getattr(item, "fixturenames", ()):
        lines = _ask(access, item.stash.get(_BEGAN, 0.0))
        if lines:
            report.sections.append(("Log of the shared broker", lines))
    return report


@pytest.fixture(scope="session")
def ottla_broker(pytestconfig: pytest.Config) -> "Iterator[ClusterMethods]":
    """A broker for the session: `bootstrap_servers`, `config()`, `create_topic`, `values`, ...

    Without xdist, and with --ottla-scope=worker, an `ottla.testing.Broker`, which also has faults and a clock.
    """
    from ottla.testing import Existing

    access = getattr(pytestconfig, "workerinput", {}).get(_SHARED)
    if external := os.environ.get(_EXTERNAL):
        with Existing(external) as existing:
            yield existing
    elif access is not None:
        with Existing(_ask(access, "start"), is_shared=True) as existing:
            yield existing
    else:
        with _new_broker(pytestconfig) as broker:
            yield broker


@pytest.fixture
def ottla_topic(ottla_broker: "ClusterMethods", request: pytest.FixtureRequest) -> Iterator[str]:
    """A topic of the test's own, named after it; deleted afterwards. @pytest.mark.ottla_topic(partitions=3)."""
    marker = request.node.get_closest_marker("ottla_topic")
    if marker is not None and marker.args:
        raise pytest.UsageError("ottla_topic takes keywords only: @pytest.mark.ottla_topic(partitions=3).")
    name = ottla_broker.create_topic(_name_after(request), **(marker.kwargs if marker is not None else {}))
    yield name
    if name in ottla_broker.topics():
        ottla_broker.delete_topic(name)


@pytest.fixture
def ottla_group(request: pytest.FixtureRequest) -> str:
    """The id of a consumer group of the test's own."""
    return _name_after(request)


@pytest.fixture
def ottla_cluster(
    pytestconfig: pytest.Config, request: pytest.FixtureRequest
) -> "Iterator[Callable[..., Broker | Cluster]]":
    """Start clusters of the test's own: `ottla_cluster(3, racks="abc", tier=True)`; without arguments one broker.

    The other arguments are those of `ottla.testing.Cluster`, or of `ottla.testing.Broker`.
    """
    from ottla.testing import Broker

    started = ExitStack()

    def start(brokers: int = 1, **arguments: Argument) -> "Broker | Cluster":
        arguments.setdefault("keep", pytestconfig.getoption("--ottla-keep"))
        if brokers == 1:
            arguments.setdefault("process", pytestconfig.getoption("--ottla-process"))
            return started.enter_context(Broker(**arguments))
        from ottla.testing import Cluster

        return started.enter_context(Cluster(brokers=brokers, **arguments))

    try:
        yield start
    finally:
        # A fault that a failed test has not reached is no further error.
        failure: BaseException | None = request.node.stash.get(_FAILURE, None)
        started.__exit__(None if failure is None else type(failure), failure, None)


@pytest.fixture
def ottla_clean(ottla_broker: "ClusterMethods") -> "Iterator[ClusterMethods]":
    """The broker, without topics, groups and faults before the test, and reset again afterwards."""
    ottla_broker.reset()
    yield ottla_broker
    ottla_broker.reset()


def _aliases() -> ModuleType:
    """Return a plug-in with names of fixtures that projects have used before; as a module, since it has no state."""

    @pytest.fixture(scope="session")
    def kafka_broker(ottla_broker: "ClusterMethods") -> "ClusterMethods":
        """The fixture `ottla_broker` under another name."""
        return ottla_broker

    @pytest.fixture
    def kafka_topic(ottla_topic: str) -> str:
        """The fixture `ottla_topic` under another name."""
        return ottla_topic

    aliases = ModuleType("ottla_aliases")
    vars(aliases).update(kafka_broker=kafka_broker, kafka_topic=kafka_topic)
    return aliases


def _new_broker(config: pytest.Config) -> "Broker":
    from ottla.config.load import parse_settings
    from ottla.testing import Broker

    return Broker(
        config=parse_settings(config.getini("ottla_config")),
        keep=config.getoption("--ottla-keep"),
        process=config.getoption("--ottla-process"),
    )


def _ask(access: Access, request: str | float) -> str:
    """Ask the controlling process for "start", the broker's address, or for its log since a time.

    Raises CannotStart.
    """
    port, key = access
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"{key} {json.dumps(request)}\n".encode())
        with connection.makefile() as answer:
            text = answer.read()
    if not text:
        raise ConnectionError("The process that has started this worker does not answer.")
    found: dict[str, str] = json.loads(text)
    if "error" in found:
        from ottla.testing import CannotStart  # imported here: few tests have one

        raise CannotStart(found["error"])
    return found["result"]


def _name_after(request: pytest.FixtureRequest) -> str:
    """A name for the test that no other one has, of the characters that topics may have."""
    readable = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name).strip("-.")[:_MAX_NAME]
    return f"{readable}-{secrets.token_hex(4)}"
