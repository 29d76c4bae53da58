"""Checks before Spark is started; each failure is reported in one line."""

import socket
from pathlib import Path

import pytest

from ottla.bench.spark import java
from ottla.bench.spark.errors import SparkCannotStart
from ottla.bench.spark.java import check_java
from ottla.bench.spark.master import parse_master


def java_that_prints(folder: Path, text: str) -> Path:
    """A JAVA_HOME whose Java prints this as its version."""
    program = folder / "bin/java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("printed", "complaint"),
    [
        ('openjdk version "17.0.15" 2025-04-15', None),
        ('openjdk version "21" 2023-09-19', None),
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11, which is too old"),
        ('java version "1.8.0_402"', "is Java 8, which is too old"),
        ("Unrecognized option", "names no version"),
    ],
)
def test_the_version_of_java_is_checked(printed, complaint, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(java_that_prints(tmp_path, printed)))
    if complaint is None:
        check_java()
        return
    with pytest.raises(SparkCannotStart, match=complaint) as error:
        check_java()
    assert "install Java 17 or newer" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_java_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(
        SparkCannotStart, match=r"Spark needs Java, and there is none .*: install Java 17 or newer"
    ):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkCannotStart, match=r"JAVA_HOME is .*/bin/java cannot be run \(No such file"):
        check_java()


def test_a_java_that_does_not_answer_is_one_sentence(tmp_path, monkeypatch):
    program = java_that_prints(tmp_path, "") / "bin/java"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(java, "_TIMEOUT_S", 0.1)
    with pytest.raises(SparkCannotStart, match=r"java -version has not ended within 0.1 s: install Java 17"):
        check_java()


def test_java_home_is_preferred_to_the_search_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(java_that_prints(tmp_path, 'openjdk version "21"') / "bin"))
    (tmp_path / "old").mkdir()
    monkeypatch.setenv("JAVA_HOME", str(java_that_prints(tmp_path / "old", 'java version "1.8.0_402"')))
    with pytest.raises(SparkCannotStart, match="too old"):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    check_java()


@pytest.mark.parametrize(
    ("text", "addresses", "is_on_loopback"),
    [
        ("local", (), True),
        ("local[4]", (), True),
        ("local[*]", (), True),
        ("spark://127.0.0.1:7077", (("127.0.0.1", 7077),), True),
        ("spark://localhost:7077", (("localhost", 7077),), True),
        ("spark://a.example:7077,localhost:7078", (("a.example", 7077), ("localhost", 7078)), False),
    ],
)
def test_masters(text, addresses, is_on_loopback):
    master = parse_master(text)
    assert (master.url, master.addresses, master.is_on_loopback) == (text, addresses, is_on_loopback)
    assert master.is_local == (not addresses)


@pytest.mark.parametrize(
    "text",
    ["", "local[0]", "local[2", "yarn", "k8s://x", "spark://", "spark://a", "spark://a:0", "spark://a:70000"],
)
def test_what_is_no_master_is_refused(text):
    with pytest.raises(SparkCannotStart, match=r"is no Spark master: use local\[N\]"):
        parse_master(text)


def test_one_master_of_several_has_to_answer():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        up, down = (f"127.0.0.1:{each.getsockname()[1]}" for each in (server, closed))
        parse_master(f"spark://{down},{up}").check()
        with pytest.raises(
            SparkCannotStart, match=r"no Spark master can be reached .*\(Connection refused\)"
        ):
            parse_master(f"spark://{down}").check()
