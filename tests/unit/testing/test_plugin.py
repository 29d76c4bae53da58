"""The pytest plug-in, in runs of their own: a project of 30 tests, workers, options, aliases."""

import os
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from ottla import pytest_plugin
from ottla.testing import Broker

ROOT = Path(__file__).parents[3]
PROJECT = Path(__file__).parent / "project"
HEAD = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"


@pytest.fixture
def run(tmp_path):
    """Runs pytest in a folder of its own: on the text of a file, and on the project's tests if they are wanted."""

    def pytest_run(*arguments, tests, ini="", with_project=False, **environment):
        if with_project:
            shutil.copy(PROJECT / "test_orders.py", tmp_path)
        (tmp_path / "test_it.py").write_text(tests)
        (tmp_path / "pytest.ini").write_text(HEAD + ini)
        # An environment in which the package was installed before it had a plug-in does not find it by itself.
        is_found = "ottla" in {each.name for each in entry_points(group="pytest11")}
        plugins = ("-p", "no:cacheprovider", *(() if is_found else ("-p", "ottla.pytest_plugin")))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *plugins, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )
        return done.stdout + done.stderr

    return pytest_run


def test_a_project_of_thirty_tests_and_workers_that_share_one_broker(run, tmp_path):
    tests = (
        "import pytest\n"
        "@pytest.mark.parametrize('number', range(6))\n"
        "def test_it(ottla_broker, number):\n"
        "    open(f'address-{number}', 'w').write(ottla_broker.bootstrap_servers)\n"
        "    with pytest.raises(AttributeError, match='shared by all workers'):\n"
        "        ottla_broker.advance(hours=1)\n"
    )
    failing = (
        "import socket\n"
        "def test_that_fails(ottla_broker):\n"
        "    host, port = ottla_broker.bootstrap_servers.split(':')\n"
        "    with socket.create_connection((host, int(port))) as connection:\n"
        "        connection.sendall(b'\\xff' * 8)\n"
        "        connection.recv(1)\n"
        "    assert False\n"
    )
    output = run("-n2", tests=tests + failing, with_project=True)
    assert "1 failed, 36 passed" in output
    assert "a frame of -1 bytes" in output.partition("Log of the shared broker")[2]
    addresses = {file.read_text() for file in tmp_path.glob("address-*")}
    assert len(addresses) == 1


def test_each_worker_has_its_own_broker_if_that_is_wanted(run, tmp_path):
    tests = (
        "import pytest\n"
        "def test_it(ottla_broker, worker_id):\n"
        "    open(worker_id, 'w').write(ottla_broker.bootstrap_servers)\n"
        "    ottla_broker.advance(hours=1)\n"
    )
    assert "2 passed" in run("-n2", "--dist=each", "--ottla-scope=worker", tests=tests)
    addresses = {(tmp_path / name).read_text() for name in ("gw0", "gw1")}
    assert len(addresses) == 2


def test_an_external_cluster_and_nothing_that_is_not_asked_for(run):
    with Broker() as broker:
        broker.produce("there", "x")
        tests = (
            "import sys\n"
            "def test_nothing_is_imported(): assert 'ottla.broker' not in sys.modules\n"
            "def test_it(ottla_broker, ottla_topic):\n"
            "    assert ottla_broker.values('there') == [b'x']\n"
            "    ottla_broker.produce(ottla_topic, 'y')\n"
            "def test_the_package_is_not_rewritten():\n"
            "    import ottla.testing.broker as module\n"
            "    assert type(module.__loader__).__name__ == 'SourceFileLoader'\n"
        )
        output = run(tests=tests, OTTLA_BOOTSTRAP_SERVERS=broker.bootstrap_servers)
        assert "3 passed" in output
        assert broker.topics() == ["there"]


def test_settings_aliases_and_a_clean_broker(run):
    tests = (
        "def test_first(kafka_broker, kafka_topic):\n"
        "    kafka_broker.produce('auto', 'x')\n"
        "    assert len(kafka_broker.end_offsets('auto')) == 3\n"
        "def test_second(ottla_clean):\n"
        "    assert ottla_clean.topics() == []\n"
        "def test_that_leaves_faults(ottla_broker):\n"
        "    ottla_broker.disk.slow(0.001)\n"
        "    ottla_broker.delay_on('FETCH', 1).every_time()\n"
        "    ottla_broker.produce('t', 'x')\n"
        "def test_that_fails_before_its_fault(ottla_cluster):\n"
        "    ottla_cluster(process=False).disconnect_on('FETCH').once()\n"
        "    raise LookupError\n"
        "def test_behind_it(ottla_broker):\n"
        "    assert ottla_broker.present_faults() == set()\n"
    )
    output = run(
        "--ottla-process", tests=tests, ini="ottla_aliases = true\nottla_config =\n  num.partitions=3\n"
    )
    assert "2 failed, 3 passed" in output
    assert "1 error" not in output  # of a fixture
    assert "warning" not in output
    assert "FAILED test_it.py::test_that_leaves_faults" in output
    assert "delay_on(FETCH, 1) was armed, and none of the 0 requests" in output


def test_a_broker_that_cannot_start_fails_the_test_with_its_sentence(run):
    output = run(
        "-n1", tests="def test_it(ottla_broker): pass\n", ini="ottla_config =\n  num.partitions=many\n"
    )
    assert "1 error" in output
    assert "CannotStart: " in output
    assert "num.partitions" in output


def test_a_silent_process_of_this_machine_delays_no_worker():
    with ExitStack() as ends:
        server = pytest_plugin._SharedBrokerServer(Broker)
        ends.callback(server.pytest_unconfigure)
        port, key = server.access
        for beginning in (b"", b"x" * 30, key.encode()):
            silent = ends.enter_context(socket.create_connection(("127.0.0.1", port)))
            silent.sendall(beginning)
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b'key "start"\n')
            assert stranger.recv(1) == b""
        address = pytest_plugin._ask(server.access, "start")
        assert pytest_plugin._ask(server.access, "start") == address
        assert "READY" not in pytest_plugin._ask(server.access, 0.0)
