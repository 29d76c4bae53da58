"""The options of a workload's Spark job."""

import pytest

from ottla.bench.jobs.options import check_job, source_options
from ottla.bench.workloads.model import Job, SparkJob


@pytest.mark.parametrize(
    ("job", "options", "complaint"),
    [
        (Job.CONNECTOR_WRITE, {"records": "10"}, None),
        (Job.CONNECTOR_WRITE, {"records": "10", "size": "32", "kafka.acks": "1"}, None),
        (Job.CONNECTOR_WRITE, {}, "connector-write needs the option `records`, a number"),
        (
            Job.CONNECTOR_WRITE,
            {"records": "0"},
            "connector-write: `records` must be a number from 1 on, and is '0'",
        ),
        (Job.CONNECTOR_WRITE, {"records": "1", "size": "8"}, "`size` must be a number from 32 on"),
        (Job.CONNECTOR_WRITE, {"recods": "1"}, "has no option `recods`; did you mean `records`?"),
        (Job.CONNECTOR_READ, {"minPartitions": "4", "kafka.isolation.level": "read_committed"}, None),
        (Job.CONNECTOR_READ, {"records": "4"}, "connector-read has no option `records`"),
        (Job.CONNECTOR_READ, {"subscribe": "x"}, "connector-read has no option `subscribe`"),
        (Job.CONNECTOR_READ, {"kafka.bootstrap.servers": "x:1"}, "no option `kafka.bootstrap.servers`"),
        (Job.CONNECTOR_STREAM, {"to": "b", "maxOffsetsPerTrigger": "10"}, None),
        (Job.CONNECTOR_STREAM, {}, "connector-stream needs the option `to`: another topic of [[topics]]"),
        (Job.CONNECTOR_STREAM, {"to": "a"}, "needs the option `to`: another topic"),
        (Job.CONNECTOR_STREAM, {"to": "c"}, "needs the option `to`: another topic"),
        (Job.TIER_READ, {"maxPartitionBytes": "1000"}, None),
        (Job.TIER_READ, {"path": "/x"}, "tier-read has no option `path`"),
    ],
)
def test_options(job, options, complaint):
    found = check_job(SparkJob(job=job, topic="a", options=options), ["a", "b"])
    assert found is None if complaint is None else complaint in found


def test_the_source_gets_its_own_options_only():
    job = SparkJob(
        job=Job.CONNECTOR_WRITE, topic="a", options={"records": "1", "size": "40", "kafka.acks": "1"}
    )
    assert source_options(job) == {"kafka.acks": "1"}
