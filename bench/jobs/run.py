"""A Spark job of a workload, run to its end."""

from collections.abc import Iterable, Mapping

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ottla.bench.figures import LoadFailed
from ottla.bench.generators.cluster import ClusterDoesNotAnswer
from ottla.bench.generators.rows import Role, Row
from ottla.bench.generators.shipping import ship_bench
from ottla.bench.jobs.client import JobClient
from ottla.bench.jobs.options import TO
from ottla.bench.jobs.read import read, read_tier
from ottla.bench.jobs.stream import stream
from ottla.bench.jobs.write import write
from ottla.bench.spark.errors import reason_of
from ottla.bench.targets.target import Target
from ottla.bench.workloads.model import Job, Phase, SparkJob


def run_job(
    spark: SparkSession,
    job: SparkJob,
    target: Target,
    topics: Mapping[str, str],
    phase: Phase,
    *,
    started_at_s: float,
) -> list[Row]:
    """Run one of the phase's jobs, and return its rows; `topics`: name in the workload -> in the cluster.

    Seconds count from `started_at_s`, when the phase began. Raises LoadFailed if the job fails, or was cancelled.
    """
    ship_bench(spark.sparkContext)
    number = next(at for at, each in enumerate(phase.jobs) if each is job)
    client = JobClient(
        name=f"{Role.JOB.value}-{number}", phase=phase.name, start_us=round(started_at_s * 1e6)
    )
    try:
        return list(_rows(spark, job, target, topics, client=client))
    except (PySparkException, Py4JError, ClusterDoesNotAnswer) as error:
        raise LoadFailed(f"{phase.name}: {job.job.value}: {reason_of(str(error))}") from error


def cancel_jobs(spark: SparkSession) -> None:
    """Cancel the Spark jobs of all threads: the jobs that run now end with LoadFailed.

    A job that is between two of its queries goes on.
    """
    for query in spark.streams.active:
        query.stop()
    spark.sparkContext.cancelAllJobs()


def _rows(
    spark: SparkSession,
    job: SparkJob,
    target: Target,
    topics: Mapping[str, str],
    *,
    client: JobClient,
) -> Iterable[Row]:
    topic, bootstrap = topics[job.topic], target.bootstrap
    match job.job:
        case Job.CONNECTOR_WRITE:
            return write(spark, job, bootstrap, topic=topic, client=client)
        case Job.CONNECTOR_READ:
            return read(spark, job, bootstrap, topic=topic, client=client)
        case Job.CONNECTOR_STREAM:
            to = topics[job.options[TO]]
            return stream(spark, job, bootstrap, topic=topic, to=to, client=client)
        case Job.TIER_READ:
            return read_tier(spark, job, target, topic=topic, client=client)
