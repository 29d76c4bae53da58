"""`ottla format` beside kafka-storage.sh: the same files, the same refusals, and each starts what the other
has formatted.
"""

import re

import pytest
from click.testing import CliRunner

from ottla.command_line import main
from ottla.controller.metadata_log import snapshots
from ottla.storage.files import Files
from tests.harness.kafka import run_tool

CLUSTER_ID = "q1Sh-9_ISia_zwGINzRvyQ"
DIRECTORIES = ("JEXY6aqzQY-32P5TStzaFg", "MvDxzVmcRsaTz33bUuRU6A")
VOTERS = f"1@127.0.0.1:9093:{DIRECTORIES[0]},2@127.0.0.1:9094:{DIRECTORIES[1]}"
#: What Kafka finalizes in new clusters and Ottla does not serve yet.
ALIKE = (
    "-f",
    "group.version=0",
    "-f",
    "transaction.version=0",
    "-f",
    "share.version=0",
    "-f",
    "streams.version=0",
)


def properties(folder, *, roles="controller", node_id=1, voters=False):
    listeners = {
        "controller": "CONTROLLER://127.0.0.1:9093",
        "broker": "PLAINTEXT://127.0.0.1:9092",
        "broker,controller": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    }
    where = "voters=1@127.0.0.1:9093" if voters else "bootstrap.servers=127.0.0.1:9093"
    folder.mkdir()
    file = folder / "server.properties"
    file.write_text(
        f"process.roles={roles}\nnode.id={node_id}\nlisteners={listeners[roles]}\n"
        f"controller.listener.names=CONTROLLER\ncontroller.quorum.{where}\nlog.dirs={folder}/one,{folder}/two\n"
    )
    return file


def ottla(*arguments):
    done = CliRunner().invoke(main, ["format", "-t", CLUSTER_ID, *arguments])
    return done.exit_code, done.output


def kafka(*arguments):
    done = run_tool("kafka-storage", "format", "-t", CLUSTER_ID, *arguments)
    return done.returncode, done.stdout + done.stderr


def files_of(folder):
    """Relative path -> what the file says, without what differs between two runs."""
    found = {}
    for path in sorted(
        each for each in folder.rglob("*") if each.is_file() and each.name != "server.properties"
    ):
        name = str(path.relative_to(folder))
        if name.endswith("meta.properties"):
            lines = {line for line in path.read_text().splitlines() if not line.startswith("#")}
            found[name] = sorted(re.sub(r"directory.id=.*", "directory.id=", line) for line in lines)
        else:
            batches = [
                (
                    header.base_offset,
                    header.next_offset,
                    header.is_control,
                    header.partition_leader_epoch,
                    len(batch),
                )
                for header, batch in snapshots.valid_batches(path, Files())
            ]
            found[name] = (
                batches,
                snapshots.quorum_messages(path, Files()),
                list(snapshots.read(path, Files())),
            )
    return found


def without_times(found):
    """Headers of snapshots have the time when they were written."""
    return re.sub(r"last_contained_log_timestamp=\d+", "", repr(found))


@pytest.mark.parametrize(
    ("roles", "node_id", "voters", "arguments"),
    [
        ("controller", 1, True, ()),
        ("controller", 1, False, ("--initial-controllers", VOTERS)),
        ("controller", 3, False, ("--no-initial-controllers",)),
        ("broker", 4, False, ()),
        ("broker,controller", 1, True, ("-S", "SCRAM-SHA-256=[name=alice,password=secret,salt=\"N3E=\"]")),
    ],
    ids=["static voters", "initial controllers", "one who joins", "a broker", "a user"],
)  # fmt: skip
@pytest.mark.parametrize("release", ["3.9", "4.1"])
def test_the_same_files(tmp_path, roles, node_id, voters, arguments, release):
    found = []
    for name, command in (("ottla", ottla), ("kafka", kafka)):
        file = properties(tmp_path / name, roles=roles, node_id=node_id, voters=voters)
        status, output = command("-c", str(file), "-r", release, *ALIKE, *arguments)
        assert status == 0, output
        assert "Formatting" in output
        found.append(files_of(tmp_path / name))
    assert found[0].keys() == found[1].keys()
    assert without_times(found[0]) == without_times(found[1])
    assert "one/meta.properties" in found[0]
    if "--initial-controllers" in arguments:
        text = (tmp_path / "ottla/one/meta.properties").read_text()
        assert f"directory.id={DIRECTORIES[0]}" in text


@pytest.mark.parametrize(
    ("voters", "roles", "arguments"),
    [
        (False, "controller", ()),
        (True, "controller", ("--standalone",)),
        (False, "broker", ("--standalone",)),
        (False, "controller", ("--standalone", "-f", "kraft.version=0")),
        (True, "controller", ("-f", "kraft.version=1")),
        (True, "controller", ("-r", "2.8")),
        (True, "controller", ("-r", "4.0", "-f", "metadata.version=20")),
        (True, "controller", ("-f", "no.such.feature=1")),
    ],
)
def test_the_same_refusals(tmp_path, voters, roles, arguments):
    printed = []
    for name, command in (("ottla", ottla), ("kafka", kafka)):
        file = properties(
            tmp_path / name, roles=roles, node_id=1 if roles == "controller" else 4, voters=voters
        )
        status, output = command("-c", str(file), *arguments)
        assert status != 0
        printed.append(output)
    sentence = printed[0].removeprefix("Error: ").strip().splitlines()[-1].rstrip(".")
    assert sentence[:60] in printed[1], printed


def test_what_is_formatted_is_left_alone(tmp_path):
    file = properties(tmp_path / "node", voters=True)
    assert ottla("-c", str(file))[0] == 0
    before = files_of(tmp_path / "node")
    status, output = ottla("-c", str(file))
    assert (status, "is already formatted" in output) == (1, True)
    status, output = ottla("-c", str(file), "-g")
    assert (status, output.strip()) == (0, "All of the log directories are already formatted.")
    done = CliRunner().invoke(main, ["format", "-t", "AAAAAAAAAAAAAAAAAAAAAw", "-g", "-c", str(file)])
    assert "belongs to cluster" in done.output
    assert files_of(tmp_path / "node") == before


def test_info_is_kafkas(tmp_path):
    file = properties(tmp_path / "node", voters=True)
    for is_formatted in (False, True):
        if is_formatted:
            ottla("-c", str(file))
        ours = CliRunner().invoke(main, ["info", "-c", str(file)])
        theirs = run_tool("kafka-storage", "info", "-c", str(file))
        assert ours.exit_code == theirs.returncode == (0 if is_formatted else 1)
        assert ours.output.strip().splitlines() == theirs.stdout.strip().splitlines()


def test_random_ids_are_ids():
    ids = {CliRunner().invoke(main, ["random-uuid"]).output.strip() for _ in range(50)}
    assert len(ids) == 50
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", each) for each in ids)
