"""`ottla partitions describe` on real brokers: one of Kafka's, two of ours, which share a remote tier
(KIP-392, KIP-405).
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.bench.components.processes import PATIENCE_S
from tests.compat.admin import eventually_equal, once, produce
from tests.compat.commands import Commands
from tests.compat.tiering.stage import Stage
from tests.compat.tiering.tiered_cluster import DirectoryTier, TieredCluster

KAFKA = 1
OFFSETS = (
    "log_start_offset",
    "local_log_start_offset",
    "pending_upload_offset",
    "high_watermark",
    "log_end_offset",
)


def run(bootstrap: str, *arguments: str, status: int = 0) -> str:
    """The output of the command, which ends with this status."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ottla",
            "partitions",
            "describe",
            "--bootstrap-server",
            bootstrap,
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == status, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def rows(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(bootstrap, "--json", topic).splitlines()]


def offsets(bootstrap: str, topic: str) -> list[list[int | None]]:
    """The offsets of each replica of partition 0."""
    [partition, *_] = rows(bootstrap, topic)
    return [[replica[name] for name in OFFSETS] for replica in partition["replicas"]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredCluster]:
    folder: Path = tmp_path_factory.mktemp("describe")
    # The one broker that is stopped here is to be in the metadata until the test is over.
    settings = {"broker.session.timeout.ms": "60000"}
    with TieredCluster(
        folder, ["kafka", "ottla", "ottla"], DirectoryTier(folder / "tier"), settings
    ) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole: TieredCluster) -> Iterator[TieredCluster]:
    yield whole
    for node in whole.brokers.values():
        node.child.resume()


def tiered(cluster: TieredCluster, topic: str, replicas: str) -> None:
    """A topic of five records, a segment each, of which the last one is local on all replicas."""
    stage = Stage(cluster)
    stage.run(f"topic {topic} {replicas} batches 1")
    stage.run(f"produce {topic}-0 5")
    stage.run(f"tiered {topic}-0 0 1 2 3")
    stage.run(f"local-start {topic}-0 4")


@pytest.mark.parametrize("replicas", ["1,2,3", "2,3,1"])
def test_replicas_of_both_kinds(cluster, replicas):
    """Whichever kind leads, each broker reports its own log, the local part of which is cut on each at its
    own time.
    """
    topic = f"orders-{replicas[0]}"
    tiered(cluster, topic, replicas)
    eventually_equal(lambda: offsets(cluster.bootstrap, topic), [[0, 4, 4, 5, 5]] * 3)
    [partition] = rows(cluster.bootstrap, topic)
    first, *others = partition["replicas"]
    assert (partition["leader"], first["broker"]) == (int(replicas[0]), int(replicas[0]))
    assert first["state"] == ["leader", "preferred", "ISR"]
    assert [each["state"] for each in others] == [["ISR"], ["ISR"]]
    assert len({each["local_bytes"] for each in partition["replicas"]}) == 1
    assert first["local_bytes"] > 0
    head, reason, titles, *table = run(cluster.bootstrap, topic).splitlines()
    assert head == f"{topic}-0  leader {replicas[0]}, epoch 0, min.insync.replicas 1"
    assert reason == f"  {replicas[0]} is the preferred replica, and may lead"
    assert titles.split()[:3] == ["replica", "rack", "state"]
    assert table[0].split()[-7:-2] == ["0", "4", "4", "5", "5"]


def test_a_topic_that_is_not_tiered(cluster):
    """Nothing is pending: what is local is all there is."""
    Stage(cluster).run("untiered topic plain 2,1 3,1 batches 1")
    produce(cluster.bootstrap, "plain", [b"a", b"b"], acks="all")
    eventually_equal(lambda: offsets(cluster.bootstrap, "plain"), [[0, 0, None, 2, 2]] * 2)
    assert [row["partition"] for row in rows(cluster.bootstrap, "plain")] == ["plain-0", "plain-1"]


def test_a_broker_that_does_not_answer(cluster):
    """Its replicas say so; the others are described."""
    tiered(cluster, "waits", "2,3,1")
    eventually_equal(lambda: offsets(cluster.bootstrap, "waits"), [[0, 4, 4, 5, 5]] * 3)
    cluster.brokers[3].child.pause()
    [partition] = rows(cluster.brokers[2].listener, "waits")
    by_id = {each["broker"]: each for each in partition["replicas"]}
    assert cluster.brokers[3].listener in by_id[3]["problem"]
    assert by_id[3]["log_end_offset"] is None
    assert (by_id[2]["log_end_offset"], by_id[KAFKA]["log_end_offset"]) == (5, 5)
    assert f"  replica 3: {by_id[3]['problem']}" in run(cluster.brokers[2].listener, "waits")


def test_a_leader_that_is_not_the_preferred_one(cluster):
    tiered(cluster, "moved", "1,2,3")
    bootstrap = cluster.brokers[2].listener
    cluster.brokers[KAFKA].stop()
    # It hands its leadership over first, and is fenced after that.
    [partition] = once(
        lambda: rows(bootstrap, "moved"), lambda found: "offline" in found[0]["replicas"][0]["state"]
    )
    assert partition["leader"] == 2
    assert partition["why"] == "the preferred replica 1 is not alive"
    assert partition["replicas"][0]["state"] == ["preferred", "offline"]
    [status] = once(
        lambda: Commands(bootstrap).rows("cluster", "status", status=1),
        lambda found: not any("not known" in each["text"] for each in found[0]["reasons"]),
    )
    texts = [each["text"] for each in status["reasons"]]
    assert status["level"] == "degraded"
    assert any("with followers that are not in sync" in text for text in texts)
    assert "broker 1 is fenced: it sends no heartbeats, or has not started yet" in texts
    cluster.brokers[KAFKA].start()
    [partition] = once(lambda: rows(bootstrap, "moved"), lambda found: KAFKA in found[0]["isr"])
    assert partition["preferred_election"] == KAFKA
    assert partition["why"] == (
        "the preferred replica 1 may lead, but could not when this leader was elected; "
        "a preferred leader election would choose 1"
    )


@pytest.mark.parametrize(("bootstrap", "topics", "sentence"), [
    (None,          ["no-such-topic"], "Error: The cluster has no topic no-such-topic.\n"),
    (None,          ["not a name"],    "Error: The cluster has no topic not a name.\n"),
    ("127.0.0.1:1", [],                "Error: No broker answers at 127.0.0.1:1: "),
    ("nowhere",     [],                "Error: --bootstrap-server nowhere: 'nowhere' is no address of a broker: it"),
])  # fmt: skip
def test_what_cannot_be_done(cluster, bootstrap, topics, sentence):
    said = run(bootstrap or cluster.bootstrap, *topics, status=2)
    assert said.startswith(sentence)
    assert said.count("\n") == 1
