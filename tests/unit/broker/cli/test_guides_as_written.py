"""The sessions of docs/OPERATING.md and docs/TESTING.md as they are written: only ports and folders are the test's."""

import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from ottla.bench.components.processes import free_port
from tests.harness.readme import README, ROOT

OPERATING = (ROOT / "docs/OPERATING.md").read_text()
TESTING = (ROOT / "docs/TESTING.md").read_text()


def shown(text, first):
    """The block of commands that begins with these words."""
    lines = text[text.index(first) :].split("\n\n", 1)[0].splitlines()
    return [line.partition("  #")[0].strip() for line in lines]


def shell(command, folder):
    """Run a line of a shell, and return its output."""
    words = command.replace("ottla ", f"{sys.executable} -m ottla ", 1)
    done = subprocess.run(
        words,
        shell=True,
        cwd=folder,
        env=_ENVIRONMENT,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout


_ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}


@contextmanager
def running(command, folder):
    """Run a command up to its READY line, and stop it in the end."""
    arguments = [sys.executable, "-m", *command.split()]
    with subprocess.Popen(
        arguments, cwd=folder, env=_ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            for line in process.stdout:
                if line.startswith("READY "):
                    break
            assert process.poll() is None
            yield line
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0


def test_a_first_node(tmp_path):
    """From a file and an id to a broker, its folders, and what is shown of them."""
    text = Path(ROOT / "config/server.properties").read_text().replace("/var/lib/ottla", str(tmp_path))
    for port in ("9092", "9093", "9404"):
        text = text.replace(f":{port}", f":{free_port()}")
    (tmp_path / "server.properties").write_text(text)
    make_id, write_folders, start = shown(OPERATING, "    ottla random-uuid")
    cluster_id = shell(make_id, tmp_path).strip()
    shell(write_folders.replace("-t ID", f"-t {cluster_id}"), tmp_path)
    assert cluster_id in shell("ottla info -c server.properties", tmp_path)
    with running(start, tmp_path) as ready:
        assert f"cluster.id={cluster_id}" in ready
        bootstrap = re.search(r"bootstrap=(\S+)", ready)[1]
        at = f"--bootstrap-server {bootstrap}"
        for topic in ("A", "B"):
            shell(f"ottla topics create {topic} {at}", tmp_path)
        shell(f"ottla produce A one two {at}", tmp_path)
        copied = "ottla consume A --json | ottla produce B --json"
        assert f"`{copied}`" in OPERATING
        consume, produce = copied.split(" | ")
        shell(f"{consume} {at} | {sys.executable} -m {produce} {at}", tmp_path)
        assert shell(f"ottla consume B {at}", tmp_path) == "one\ntwo\n"
        reset = re.search(r"`(ottla groups reset-offsets GROUP [^`]*)`", OPERATING)[1]
        reset = reset.replace("GROUP", "g").replace("orders", "A")
        assert "repeat it with --execute" in shell(f"{reset} {at}", tmp_path)
    assert "nothing is wrong" in shell(f"ottla verify-log {tmp_path}/data", tmp_path)
    [dashboards] = shown(OPERATING, "    ottla dashboards DIR")
    shell(dashboards.replace("DIR", "shown"), tmp_path)
    assert len(list((tmp_path / "shown").iterdir())) == 4


def test_the_remote_tier_of_the_readme(tmp_path):
    """The broker is that of `make run`, at a free port."""
    [serve] = re.findall(r"ottla (broker [^$\n]*?) \$", (ROOT / "Makefile").read_text())
    commands = re.findall(r"^    (ottla tier (?:ls|verify)[^#\n|]*?)  +#", README, re.MULTILINE)
    assert len(commands) == 2
    with running(f"ottla {serve} --port 0", tmp_path) as ready:
        bootstrap = re.search(r"bootstrap=(\S+)", ready)[1]
        for command in commands:
            shell(f"{command} --bootstrap-server {bootstrap}", tmp_path)


def test_a_broker_for_tests_in_other_languages(tmp_path):
    session = re.search(r"^```\n\$ (ottla test-broker .*?)^```", TESTING, re.MULTILINE | re.DOTALL)[1]
    for port in ("9092", "9099"):
        session = session.replace(port, str(free_port()))
    start, *calls = session.split("\n$ ")
    command, _ = start.split("\n")
    with running(command, tmp_path):
        for call in calls:
            line, answer = call.strip().split("\n")
            found = shell(line.replace("curl ", "curl -s "), tmp_path).strip()
            assert re.fullmatch(re.escape(answer).replace(r"\.\.\.", ".*"), found), (line, found)
