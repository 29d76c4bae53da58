"""CONNECTOR_READ and TIER_READ: a whole topic through the brokers, and its history from the object store."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from ottla.bench.figures import LoadFailed
from ottla.bench.generators.rows import Row
from ottla.bench.jobs.client import JobClient
from ottla.bench.jobs.options import source_options
from ottla.bench.jobs.verify import verified
from ottla.bench.targets.target import Target
from ottla.bench.workloads.model import SparkJob
from ottla.remote.spark_source.source import TierDataSource


def connector_frame(spark: SparkSession, job: SparkJob, bootstrap: str, *, topic: str) -> DataFrame:
    """Return all records of a topic, as they are when the frame is read."""
    reader = spark.read.format("kafka").options(**source_options(job))
    return reader.option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()


def read(
    spark: SparkSession, job: SparkJob, bootstrap: str, *, topic: str, client: JobClient
) -> Sequence[Row]:
    """Read a whole topic by the connector, and return the rows of the job."""
    frame = connector_frame(spark, job, bootstrap, topic=topic)
    return [*verified(frame, client=client, topic=topic), client.ended(topic)]


def read_tier(
    spark: SparkSession, job: SparkJob, target: Target, *, topic: str, client: JobClient
) -> Sequence[Row]:
    """Read a whole topic by ottla-tier, and return the rows of the job.

    Raises LoadFailed if the bench has not started the store of the target.
    """
    if target.store is None:
        raise LoadFailed(
            f"{target.name} has no store that the bench knows: tier-read needs --start and a tier"
        )
    spark.dataSource.register(TierDataSource)
    reader = spark.read.format("ottla-tier").options(**target.store.properties(), **source_options(job))
    frame = reader.option("kafka.bootstrap.servers", target.bootstrap).option("subscribe", topic).load()
    return [*verified(frame, client=client, topic=topic), client.ended(topic)]
