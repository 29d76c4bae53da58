"""The shapes of a workload, into which `bench/workloads/*.toml` are read: immutable, and equal for every target.

workload
    cluster                 what `--start` starts: brokers, remote tier, properties
    topics                  created again for each run
    phases, one after the other
        producers, consumers    clients in Spark tasks
        jobs                    Spark jobs instead of clients: Spark's Kafka connector, the ottla-tier source
        events                  what happens to the cluster at given times, and how long it takes
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Tier(Enum):
    """The store behind the brokers that `--start` starts."""

    NONE = "none"
    #: A directory in the layout of LocalTieredStorage, for Kafka and Ottla.
    DIRECTORY = "directory"
    #: A MinIO server on this machine, for Ottla only.
    MINIO = "minio"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNeeds:
    """The shape of a cluster that the bench starts for a workload. Targets that run already are taken as they are."""

    brokers: int = 1
    tier: Tier = Tier.NONE
    #: The properties of all nodes, over Kafka's defaults.
    properties: Mapping[str, str] = field(default_factory=dict)
    #: The properties of single brokers of a cluster, by their id, on top.
    broker_properties: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic; its name in the cluster has the run's number behind `name`.

    Partition p is on the p-th broker, which leads it, and on the following ones, in the order of their ids.
    """

    name: str
    partitions: int = 1
    replicas: int = 1
    #: Whether `remote.storage.enable` is set; dropped where the target has no remote tier.
    is_tiered: bool = False
    configs: Mapping[str, str] = field(default_factory=dict)


class SizeLaw(Enum):
    """The distribution of the sizes of records."""

    FIXED = "fixed"
    UNIFORM = "uniform"
    LOGNORMAL = "lognormal"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSize:
    """The sizes of values in bytes, the stamp of `generators.records` included (least: its size)."""

    law: SizeLaw = SizeLaw.FIXED
    #: The size, or the mean.
    mean: int = 1024
    #: The bounds of the size; equal to `mean` for FIXED.
    least: int = 1024
    most: int = 1024
    #: The standard deviation of the logarithm, for LOGNORMAL.
    sigma: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Producers:
    """A group of equal producers."""

    topic: str
    count: int = 1
    #: Records per second of all of them together, sent by the clock; None for as fast as possible.
    rate: float | None = None
    #: The records of all of them together, after which they are done; None for the whole phase.
    records: int | None = None
    size: RecordSize = field(default_factory=RecordSize)
    compression: str = "none"
    acks: str = "all"
    #: Configurations of librdkafka on top.
    client: Mapping[str, str] = field(default_factory=dict)


class Start(Enum):
    """The offset at which a consumer begins."""

    #: The end at the start of the phase: a consumer at the tail.
    END = "end"
    BEGINNING = "beginning"
    #: The offset in `Consumers.offset` for each partition.
    OFFSET = "offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumers:
    """A group of equal consumers; together they read each partition once, unless `is_each_all`."""

    topic: str
    count: int = 1
    start: Start = Start.END
    offset: int = 0
    #: The consumer's `client.rack` (KIP-392).
    rack: str = ""
    is_each_all: bool = False
    isolation: str = "read_committed"
    client: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleConnections:
    """Connections that are opened at the start of the phase, and only answer for being there."""

    count: int


class Job(Enum):
    """A Spark job as the load of a phase; `SparkJob.options` says on which topics."""

    #: spark-sql-kafka-0-10, batch: N records into a topic.
    CONNECTOR_WRITE = "connector-write"
    #: spark-sql-kafka-0-10, batch: a whole topic, counted and verified.
    CONNECTOR_READ = "connector-read"
    #: Structured streaming from a topic to another one, stopped and restarted once from its checkpoint.
    CONNECTOR_STREAM = "connector-stream"
    #: The ottla-tier source: a whole topic from the object store.
    TIER_READ = "tier-read"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkJob:
    """A job that is run once; the phase ends with it."""

    job: Job
    topic: str
    options: Mapping[str, str] = field(default_factory=dict)


class Action(Enum):
    """The action of an event. All but the last three need a cluster that the bench itself started."""

    KILL = "kill"
    STOP = "stop"
    #: Remove all that a stopped broker has on its disk but for `meta.properties`.
    WIPE = "wipe"
    START = "start"
    #: The object store answers later, and no faster than some rate; a rate of zero is no bound.
    SLOW_STORE = "slow_store"
    ELECT_PREFERRED = "elect_preferred"
    #: Alter configurations of a topic.
    ALTER_TOPIC = "alter_topic"
    #: Do nothing: only `until` is of interest.
    WAIT = "wait"


class Condition(Enum):
    """The condition that an event waits for; the time from the action until it holds is a figure of the phase."""

    #: All replicas of the topic are in sync.
    IN_SYNC = "in_sync"
    #: All partitions of the topic have a leader, which answers.
    LED = "led"
    #: All closed segments of the topic are in the remote tier.
    TIERED = "tiered"
    #: The local tier of the topic has its active segments only.
    LOCAL_ACTIVE_ONLY = "local_active_only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event in a phase: an action on the cluster, and the condition that is waited for."""

    #: Seconds after the start of the phase; events of one phase are carried out in their order, one at a time.
    at_s: float
    action: Action
    #: The name of the event's mark in the report, and of its figure if `until` is set.
    name: str
    #: The id of the broker; or None with `leader_of`.
    broker: int | None = None
    #: A topic; the broker is the leader of its first partition when the event happens.
    leader_of: str | None = None
    #: For SLOW_STORE: seconds before each answer, and bytes per second.
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    #: The topic of ALTER_TOPIC, and of `until`.
    topic: str | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    until: Condition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseGoal:
    """A bound for one figure of a phase: of the ratio Ottla / Kafka, or of Ottla's own figure if `is_absolute`."""

    #: The figure's name in the result: `producer_p99_s`, `consumer_1_bytes_per_s`, `event_in_sync_s`
    #: (`ottla.bench.aggregation.tables`).
    figure: str
    #: One of these two is set; an absolute one in base units: seconds, bytes.
    at_least: float | None = None
    at_most: float | None = None
    is_absolute: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Clients that run at the same time.

    It ends when all producers are done (their records, or `seconds`), all consumers have read up to the end
    offsets that then hold, and all events have happened. Consumers that do not start at the end, in a phase
    without producers, read up to the end and are done.
    """

    name: str
    seconds: float | None = None
    producers: Sequence[Producers] = ()
    consumers: Sequence[Consumers] = ()
    connections: IdleConnections | None = None
    jobs: Sequence[SparkJob] = ()
    events: Sequence[Event] = ()
    goals: Sequence[PhaseGoal] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload as its file describes it."""

    #: The file's name without its ending.
    name: str
    title: str
    #: The question that it answers, and its source.
    about: str
    phases: Sequence[Phase]
    cluster: ClusterNeeds = field(default_factory=ClusterNeeds)
    topics: Sequence[TopicSpec] = ()
