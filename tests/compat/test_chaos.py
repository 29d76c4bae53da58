"""Brokers and controllers are killed, paused and cut off at random, and configurations are changed and unset.

Meanwhile librdkafka writes and reads with acks=all.

At the end everything is healed. Nothing acknowledged is lost, nothing stands twice or in another order, no reader went
back or passed something over, and the three replicas are the same bytes.

    OTTLA_CHAOS_SECONDS=600 OTTLA_CHAOS_SEED=7 python -m pytest -n0 -s tests/compat/test_chaos.py

The order of faults is the seed's; what the cluster is about at the time is not, so a seed need not break again.
"""

import dataclasses
import json
import os
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.command_line import main
from ottla.protocol.types import TopicPartition
from ottla.storage.checkpoints import HIGH_WATERMARK_FILE, OffsetCheckpoint
from ottla.storage.files import Files
from tests.compat.admin import admin_of, wait_until
from tests.compat.chaos_clients import GroupMember, RecordingConsumer, RecordingProducer
from tests.compat.chaos_cluster import BROKERS, CONTROLLERS, Nemesis, ProxiedCluster
from tests.compat.replicated import Topic
from tests.harness.history import History
from tests.harness.history_checker import check
from tests.harness.proxy import Network

SECONDS = float(os.environ.get("OTTLA_CHAOS_SECONDS", "120"))
SEED = int(os.environ.get("OTTLA_CHAOS_SEED", random.randrange(1_000_000)))

TOPIC = "chaos"
PARTITIONS = 4
#: How soon, after the last fault, all replicas are in the ISR again, and everything is written.
RECOVERY_S = 120

_LEFTOVER = re.compile(r"\.(deleted|swap|cleaned|part|tmp)$|-(delete|stray|future)$|-stray$")
_WARNING = re.compile(r"^\S+ \S+ WARNING ", re.MULTILINE)
_BUG = re.compile(r"^\S+ \S+ (?:ERROR|CRITICAL) .*|^Traceback", re.MULTILINE)
#: What a node may warn of for each fault: an unavailable node is logged once, not at each attempt.
_WARNINGS_PER_FAULT = 3
_MAX_MEMORY_BYTES = 100_000_000
#: Of a change of configuration: it was made, or its broker or its controller was lost in a fault.
_POSSIBLE_ANSWERS = re.compile(r"none|request_timed_out|not_controller|broker_not_available|no answer: .*")

pytestmark = pytest.mark.timeout(SECONDS + 900)


def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    history = History()
    with Network() as network:
        cluster = ProxiedCluster(tmp_path, network)
        nemesis: Nemesis | None = None
        try:
            with cluster:
                Topic.spread(cluster.bootstrap, TOPIC, partitions=PARTITIONS, replicas=len(BROKERS))
                nemesis = Nemesis(cluster, SEED, TOPIC)
                run(cluster, nemesis, history, member_log=tmp_path / "member.log")
            check_folders(cluster)
            assert network.strangers == []
        except BaseException:
            explain(cluster, nemesis, history, tmp_path)
            raise


def run(cluster: ProxiedCluster, nemesis: Nemesis, history: History, *, member_log: Path) -> None:
    options = {"topic": TOPIC, "partitions": PARTITIONS}
    producers = [
        RecordingProducer(f"producer-{number}", cluster.bootstrap, history, seed=SEED + number, **options)
        for number in range(2)
    ]
    consumers = [
        RecordingConsumer(
            f"consumer-{rack or 'of-leaders'}", cluster.bootstrap, history, rack=rack, **options
        )
        for rack in ("", "b")
    ]
    member = GroupMember("member", cluster.bootstrap, history, topic=TOPIC, log=member_log)
    clients = [*producers, *consumers, member]
    try:
        for client in clients:
            client.start()
        nemesis.rage(SECONDS)
        nemesis.heal()
        healed = time.monotonic()
        wait_for_full_isr(cluster)
        recovery_s = time.monotonic() - healed
        for producer in producers:
            producer.finish()
            assert producer.flush(RECOVERY_S) == 0, f"{producer.name} cannot write what it has"
        reader = RecordingConsumer("reader", cluster.bootstrap, history, **options)
        ends = reader.ends(PARTITIONS)
        reader.read_to_the_end(ends, timeout_s=RECOVERY_S)
        member.wait_for(ends, timeout_s=RECOVERY_S)
        member.finish()
        for consumer in consumers:
            consumer.finish()
            history.polls += consumer.polls
    finally:
        for client in clients:
            client.is_over.set()
    answers = nemesis.configurations.answers()
    assert all(map(_POSSIBLE_ANSWERS.fullmatch, answers)), answers
    assert answers["none"]
    assert history.errors == []
    assert check(history, final=reader.polls) == {}
    acknowledged = sum(send.is_ok is True for send in history.sends)
    assert acknowledged == len(history.sends) > 0
    from_followers = sum(consumer.from_followers for consumer in consumers)
    assert from_followers > 0, "nothing was read from followers"
    silences = [
        f"{seconds:.1f} until {over - nemesis.began:.1f}"
        for seconds, over in (producer.longest_silence for producer in producers)
    ]
    summary = {"seed": SEED, "seconds": SECONDS, "acknowledged": acknowledged, "longest silence, s": silences}
    summary |= {"ISR full after, s": round(recovery_s, 1), "read from followers": from_followers}
    summary["assignments"] = member.assignments
    summary["changes of configuration"] = answers
    say("\n".join(nemesis.story))
    say(json.dumps(summary | check_nodes(cluster, nemesis)))


def check_nodes(cluster: ProxiedCluster, nemesis: Nemesis) -> dict[str, object]:
    """The processes are small, and what they have printed is little, and no bug; the figures."""
    faults = Counter(nemesis.suffered)
    logs = {
        node_id: "".join(log.read_text(errors="replace") for log in cluster.logs(node_id))
        for node_id in (*BROKERS, *CONTROLLERS)
    }
    assert {node_id: found for node_id, log in logs.items() if (found := _BUG.findall(log))} == {}
    warnings = {node_id: len(_WARNING.findall(log)) for node_id, log in logs.items()}
    assert max(warnings.values()) <= _WARNINGS_PER_FAULT * sum(faults.values())
    memory_bytes = {node_id: cluster.child(node_id).private_bytes() for node_id in logs}
    assert max(memory_bytes.values()) < _MAX_MEMORY_BYTES
    return {
        "faults": dict(faults),
        "warnings": warnings,
        "memory MB": {node_id: round(size / 1e6) for node_id, size in memory_bytes.items()},
    }


def wait_for_full_isr(cluster: ProxiedCluster) -> None:
    """Wait until every partition, of idle topics too, has a leader and all its replicas in the ISR, as every
    broker knows.
    """
    admins = {broker_id: admin_of(cluster.node(broker_id).listener) for broker_id in BROKERS}
    missing: list[str] = []

    def is_full() -> bool:
        missing[:] = [
            f"{broker_id} of {name}-{index}: leader {row.leader}, ISR {sorted(row.isrs)}"
            for broker_id, admin in admins.items()
            for name, topic in admin.list_topics(timeout=RECOVERY_S).topics.items()
            for index, row in topic.partitions.items()
            if row.leader not in BROKERS or sorted(row.isrs) != list(BROKERS)
        ]
        return not missing

    wait_until(is_full, timeout_s=RECOVERY_S, detail=lambda: missing)


def check_folders(cluster: ProxiedCluster) -> None:
    """The nodes have stopped: replicas are equal, sound, committed to their ends; nothing is left over."""
    folders = [cluster.node(node_id).data_dir for node_id in BROKERS]
    first, *others = map(str, folders)
    command = ["verify-log", first, *(word for other in others for word in ("--compare", other))]
    compared = CliRunner().invoke(main, command)
    assert compared.exit_code == 0, compared.output
    watermarks = [OffsetCheckpoint(folder / HIGH_WATERMARK_FILE, Files()).read() for folder in folders]
    ends = [watermarks[0][TopicPartition(TOPIC, index)] for index in range(PARTITIONS)]
    for found in watermarks:
        assert [found[TopicPartition(TOPIC, index)] for index in range(PARTITIONS)] == ends
    for node_id in (*BROKERS, *CONTROLLERS):
        folder = cluster.node(node_id).data_dir
        verified = CliRunner().invoke(main, ["verify-log", str(folder)])
        assert verified.exit_code == 0, verified.output
        assert [path for path in folder.rglob("*") if _LEFTOVER.search(path.name)] == []


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def explain(cluster: ProxiedCluster, nemesis: Nemesis | None, history: History, folder: Path) -> None:
    """The information that is needed to understand a failure."""
    file = folder / "history.jsonl"
    with file.open("w") as output:
        for entry in (*history.sends, *history.polls):
            output.write(f"{json.dumps(dataclasses.asdict(entry), default=repr)}\n")
    say(f"seed {SEED}, {SECONDS:g} s; the history is in {file}, the nodes' folders beside it")
    if nemesis is not None:
        say("\n".join(nemesis.story))
    logs = [log for node_id in (*BROKERS, *CONTROLLERS) for log in cluster.logs(node_id)[-2:]]
    for log in (folder / "member.log", *logs):
        if log.exists():
            say(f"---- {log}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-30:]))
