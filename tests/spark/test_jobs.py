"""Spark jobs of workloads against a running broker: each record is written, copied and seen once,
and the rows say so.
"""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from ottla.bench.components.processes import PATIENCE_S, wait_until
from ottla.bench.figures import LoadFailed
from ottla.bench.generators.rows import Kind, Role
from ottla.bench.jobs.run import cancel_jobs, run_job
from ottla.bench.targets.events import carry_out
from ottla.bench.targets.running import running
from ottla.bench.targets.started import started
from ottla.bench.workloads.model import Action, ClusterNeeds, Condition, Event, Job, Phase, SparkJob, Tier
from tests.compat.admin import create_topic, produce, read

RECORDS = 20_001


@pytest.fixture
def run(spark, server, topic):
    """Run one job; topics of a workload have the test's topic as prefix."""
    target = running("broker", server.bootstrap)
    topics = {name: f"{topic}-{name}" for name in ("from", "to")}
    for name in topics.values():
        create_topic(server.bootstrap, name, 3)

    def run_one(kind, **options):
        job = SparkJob(job=kind, topic="from", options=options)
        phase = Phase(name="phase", jobs=[job])
        started_at_s = time.time()
        rows = run_job(spark, job, target, topics, phase, started_at_s=started_at_s)
        [client] = [row for row in rows if row.kind is Kind.CLIENT]
        assert started_at_s <= client.begin_s < client.end_s <= time.time()
        assert {row.client for row in rows} == {"job-0"}
        return rows

    run_one.topics = topics
    return run_one


def total(rows, kind, role, field):
    chosen = [row for row in rows if row.kind is kind and row.role is role]
    return sum(getattr(row, field) or 0 for row in chosen)


def streams(rows, role):
    """(stream, partition) -> (first, next, records)"""
    return {
        (row.stream, row.partition): (row.first_sequence, row.next_sequence, row.distinct_records)
        for row in rows
        if row.kind is Kind.STREAM and row.role is role
    }


def test_what_is_written_is_read_and_copied_once(run):
    written = run(Job.CONNECTOR_WRITE, records=str(RECORDS), size="200", **{"kafka.compression.type": "lz4"})
    assert total(written, Kind.SECOND, Role.JOB, "records") == RECORDS
    assert total(written, Kind.SECOND, Role.JOB, "payload_bytes") == 200 * RECORDS
    wrote = streams(written, Role.PRODUCER)
    assert sum(records for _, _, records in wrote.values()) == RECORDS
    assert Counter(partition for _, partition in wrote) == {0: 2, 1: 2, 2: 2}

    for kind, options in [(Job.CONNECTOR_READ, {}), (Job.CONNECTOR_STREAM, {"to": "to"})]:
        seen = run(kind, **options)
        assert total(seen, Kind.SECOND, Role.JOB, "records") == RECORDS, kind
        assert total(seen, Kind.SECOND, Role.JOB, "payload_bytes") == 200 * RECORDS, kind
        assert streams(seen, Role.CONSUMER) == wrote, kind
        for fault in ("duplicates", "out_of_order", "corrupt"):
            assert total(seen, Kind.STREAM, Role.CONSUMER, fault) == 0, (kind, fault)


def test_records_that_are_changed_or_there_twice_are_counted(run, server):
    run(Job.CONNECTOR_WRITE, records="300", size="100")
    name = run.topics["from"]
    twice = read(server.bootstrap, name, 10, partition=1)[4].value()
    changed = bytes([twice[0] ^ 1]) + twice[1:]
    produce(server.bootstrap, name, [twice, changed, b"short"], partition=1)
    seen = run(Job.CONNECTOR_READ)
    assert total(seen, Kind.SECOND, Role.JOB, "records") == 303
    assert total(seen, Kind.STREAM, Role.CONSUMER, "distinct_records") == 300
    assert total(seen, Kind.STREAM, Role.CONSUMER, "duplicates") == 1
    assert total(seen, Kind.STREAM, Role.CONSUMER, "corrupt") == 2


@pytest.mark.parametrize(
    ("kind", "options"),
    [(Job.CONNECTOR_WRITE, {"records": "50000000"}), (Job.CONNECTOR_STREAM, {"to": "to"})],
)
def test_a_job_is_cancelled(spark, run, kind, options):
    if kind is Job.CONNECTOR_STREAM:
        run(Job.CONNECTOR_WRITE, records="200000")
    with ThreadPoolExecutor(1) as threads:
        running_job = threads.submit(run, kind, **options)
        is_busy = spark.sparkContext.statusTracker().getActiveJobsIds
        wait_until(is_busy)
        while not running_job.done():
            cancel_jobs(spark)
            wait([running_job], 0.1)
        with pytest.raises(LoadFailed, match=f"{kind.value}|stream|records more"):
            running_job.result(PATIENCE_S)


def test_history_is_read_from_the_store(spark, tmp_path):
    needs = ClusterNeeds(tier=Tier.DIRECTORY)
    target = started("ottla", needs, tmp_path / "target")
    topics = {"from": "history"}
    small = {"remote.storage.enable": "true", "segment.bytes": "1048576", "local.retention.bytes": "1"}
    write, read_tier = (
        SparkJob(job=Job.CONNECTOR_WRITE, topic="from", options={"records": "6000", "size": "1000"}),
        SparkJob(job=Job.TIER_READ, topic="from"),
    )
    target.start()
    try:
        create_topic(target.bootstrap, "history", 2, small)
        rows = run_job(spark, write, target, topics, Phase(name="a", jobs=[write]), started_at_s=time.time())
        wrote = streams(rows, Role.PRODUCER)
        wait = Event(
            at_s=0, action=Action.WAIT, name="tiered", topic="from", until=Condition.LOCAL_ACTIVE_ONLY
        )
        assert carry_out(wait, target, topics) is not None
        rows = run_job(
            spark, read_tier, target, topics, Phase(name="b", jobs=[read_tier]), started_at_s=time.time()
        )
    finally:
        target.kill()
    seen = streams(rows, Role.CONSUMER)
    assert seen.keys() == wrote.keys()
    for key, (first, following, records) in seen.items():
        # All but what active segments have: a prefix of each stream, each record once.
        assert first == wrote[key][0]
        assert 500 <= records <= wrote[key][2]
        assert records == len(range(first, following, 2))
    for fault in ("duplicates", "out_of_order", "corrupt"):
        assert total(rows, Kind.STREAM, Role.CONSUMER, fault) == 0


def test_a_job_that_fails_is_one_sentence(run):
    with pytest.raises(LoadFailed, match="phase: connector-write: ") as error:
        run(Job.CONNECTOR_WRITE, records="10", **{"kafka.acks": "7"})
    assert "\n" not in str(error.value)
