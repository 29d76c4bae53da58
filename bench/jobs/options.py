"""The options of Spark jobs: those of the data source, and a few of ours."""

import difflib
from collections.abc import Collection, Mapping
from typing import Final

from ottla.bench.workloads.model import Job, SparkJob

#: The options of CONNECTOR_WRITE: the number of records, and the bytes of each value.
RECORDS: Final = "records"
SIZE: Final = "size"
DEFAULT_SIZE: Final = 1000
#: The option of CONNECTOR_STREAM: the topic to copy into.
TO: Final = "to"
_OURS: Final[Mapping[Job, tuple[str, ...]]] = {
    Job.CONNECTOR_WRITE: (RECORDS, SIZE),
    Job.CONNECTOR_STREAM: (TO,),
}
_READ: Final = ("minPartitions", "failOnDataLoss", "includeHeaders", "kafkaConsumer.pollTimeoutMs")
#: The options of the data sources that users may set. Topics, servers and ranges are the workload's.
_SOURCES: Final[Mapping[Job, tuple[str, ...]]] = {
    Job.CONNECTOR_WRITE: (),
    Job.CONNECTOR_READ: _READ,
    Job.CONNECTOR_STREAM: (*_READ, "maxOffsetsPerTrigger"),
    Job.TIER_READ: ("maxPartitionBytes", "failOnDataLoss", "includeHeaders"),
}
#: The prefix of the client's options: users may set any but `_SERVERS`.
_CLIENT: Final = "kafka."
_SERVERS: Final = "kafka.bootstrap.servers"
#: The stamp of `ottla.bench.generators.records`, and a little text.
_LEAST_SIZE: Final = 32


def check_job(job: SparkJob, topics: Collection[str]) -> str | None:
    """Return the first error in a job's options, as one sentence; `topics` are the workload's.

    >>> check_job(SparkJob(job=Job.CONNECTOR_WRITE, topic="a", options={"recods": "10"}), ["a"])
    'connector-write has no option `recods`; did you mean `records`?'
    """
    name = job.job.value
    known = (*_OURS.get(job.job, ()), *_SOURCES[job.job])
    for option in job.options:
        if option not in known and (not option.startswith(_CLIENT) or option == _SERVERS):
            return f"{name} has no option `{option}`{_hint(option, known)}"
    match job.job:
        case Job.CONNECTOR_WRITE:
            return _number(job, RECORDS, least=1) or _number(
                job, SIZE, least=_LEAST_SIZE, default=DEFAULT_SIZE
            )
        case Job.CONNECTOR_STREAM if job.options.get(TO) not in topics or job.options[TO] == job.topic:
            return f"{name} needs the option `{TO}`: another topic of [[topics]], with as many partitions"
    return None


def source_options(job: SparkJob) -> dict[str, str]:
    """Return the options of the data source."""
    ours = _OURS.get(job.job, ())
    return {name: value for name, value in job.options.items() if name not in ours}


def _number(job: SparkJob, option: str, *, least: int, default: int | None = None) -> str | None:
    text = job.options.get(option, None if default is None else str(default))
    if text is None:
        return f"{job.job.value} needs the option `{option}`, a number"
    if not text.isdecimal() or int(text) < least:
        return f"{job.job.value}: `{option}` must be a number from {least} on, and is {text!r}"
    return None


def _hint(option: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(option, known, n=1)
    if near:
        return f"; did you mean `{near[0]}`?"
    others = f"{', '.join(f'`{each}`' for each in known)} and " if known else ""
    return f"; there are {others}those of the client, `{_CLIENT}...`"
