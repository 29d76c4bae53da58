"""Assignment of a phase's clients to Spark tasks, as the driver sends it to them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ottla.bench.generators.librdkafka import OFFSET_BEGINNING
from ottla.bench.generators.records import stream_id
from ottla.bench.generators.rows import Role
from ottla.bench.workloads.model import Consumers, Phase, Producers, RecordSize, Start


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerPlan:
    """The plan of one producer: its topic, the sizes of its records, their number and rate."""

    name: str
    topic: str
    partitions: int
    #: The id of its stream, in the stamps of the records that it writes.
    stream: int
    size: RecordSize
    settings: Mapping[str, str]
    #: Records per second of this producer, and when its first one is due, in seconds after the start.
    rate: float | None
    first_due_s: float
    #: The bounds of this producer: it ends with the first one that is reached.
    records: int | None
    seconds: float | None
    #: The partition with which it begins: equal producers do not all begin with the same one.
    first_partition: int

    role = Role.PRODUCER

    @property
    def is_paced(self) -> bool:
        """Whether it is busy only at certain times, since it sends at a rate."""
        return self.rate is not None

    @property
    def most_records(self) -> int | None:
        """The number of records that it sends: with a rate, those that are due before the end.

        None if time alone is the end.
        """
        if self.rate is None or self.seconds is None:
            return self.records
        # Rounded: 0.7 s at 10 a second are 7 records, and not 7.000000000000001.
        due = math.ceil(round((self.seconds - self.first_due_s) * self.rate, 6))
        return due if self.records is None else min(self.records, due)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPlan:
    """The plan of one consumer: the partitions that it reads, and from which offsets."""

    name: str
    topic: str
    #: Partition -> first offset; librdkafka's -2 for the beginning.
    offsets: Mapping[int, int]
    settings: Mapping[str, str]
    #: Whether it reads what paced producers have just written.
    is_paced: bool

    role = Role.CONSUMER


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionsPlan:
    """The plan of the idle connections of one task."""

    name: str
    #: Host and port of each, as the brokers advertise them.
    addresses: Sequence[tuple[str, int]]
    #: The frame of an ApiVersions request.
    request: bytes

    role = Role.CONNECTIONS
    is_paced = False


Plan = ProducerPlan | ConsumerPlan | ConnectionsPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """The clients that one task runs, and the address to which it reports."""

    index: int
    plans: Sequence[Plan]
    control: tuple[str, int] = ("", 0)
    #: Proves to the driver that a connection is of this phase's tasks.
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The partitions and end offsets of a cluster, as the driver has read them before the phase."""

    bootstrap: str
    #: Topic in the cluster -> number of partitions.
    partitions: Mapping[str, int]
    #: Topic in the cluster -> partition -> end offset.
    ends: Mapping[str, Mapping[int, int]]


def share(total: int, parts: int, part: int) -> int:
    """The size of one of `parts` nearly equal parts.

    >>> [share(10, 4, part) for part in range(4)]
    [3, 3, 2, 2]
    """
    return total // parts + (part < total % parts)


def _producer_plan(
    group: Producers, at: tuple[int, int], *, topic: str, phase: Phase, cluster: Cluster, stream: int
) -> ProducerPlan:
    number, one = at
    partitions = cluster.partitions[topic]
    name = f"producer-{number}-{one}"
    return ProducerPlan(
        name=name,
        topic=topic,
        partitions=partitions,
        stream=stream,
        size=group.size,
        settings={
            "bootstrap.servers": cluster.bootstrap,
            "client.id": name,
            "acks": group.acks,
            "compression.type": group.compression,
            # Kafka's default, which it gives up without acks=all, too.
            "enable.idempotence": "true" if group.acks in ("all", "-1") else "false",
            **group.client,
        },
        rate=None if group.rate is None else group.rate / group.count,
        # The records of all of them together are spread evenly.
        first_due_s=0.0 if group.rate is None else one / group.rate,
        records=None if group.records is None else share(group.records, group.count, one),
        seconds=phase.seconds,
        first_partition=one * partitions // group.count,
    )


def _consumer_plan(
    group: Consumers, at: tuple[int, int], *, topic: str, phase: Phase, cluster: Cluster
) -> ConsumerPlan:
    number, one = at
    name = f"consumer-{number}-{one}"
    read = range(cluster.partitions[topic])[
        slice(None) if group.is_each_all else slice(one, None, group.count)
    ]
    match group.start:
        case Start.END:
            offsets = {partition: cluster.ends[topic][partition] for partition in read}
        case Start.BEGINNING:
            offsets = dict.fromkeys(read, OFFSET_BEGINNING)
        case Start.OFFSET:
            offsets = dict.fromkeys(read, group.offset)
    return ConsumerPlan(
        name=name,
        topic=topic,
        offsets=offsets,
        settings={
            "bootstrap.servers": cluster.bootstrap,
            "client.id": name,
            "client.rack": group.rack,
            "isolation.level": group.isolation,
            # Records that are not there any more are an error, and no reason to go on somewhere else.
            "auto.offset.reset": "error",
            # What is next after the last record: also where no consumer is given a record, behind markers.
            "enable.partition.eof": "true",
            # A full queue otherwise stops all fetching for a second.
            "fetch.queue.backoff.ms": "10",
            **group.client,
        },
        is_paced=group.start is Start.END
        and all(each.rate is not None for each in phase.producers if each.topic == group.topic),
    )


def plans_of(
    phase: Phase, *, cluster: Cluster, topics: Mapping[str, str], stream_prefix: str
) -> list[ProducerPlan | ConsumerPlan]:
    """Return the plans of all producers and consumers of a phase; `topics`: name in the workload -> in the cluster."""
    plans: list[ProducerPlan | ConsumerPlan] = []
    for number, producers in enumerate(phase.producers):
        topic = topics[producers.topic]
        for one in range(producers.count):
            stream = stream_id(f"{stream_prefix}/{phase.name}/{number}-{one}")
            plans.append(
                _producer_plan(
                    producers, (number, one), topic=topic, phase=phase, cluster=cluster, stream=stream
                )
            )
    for number, consumers in enumerate(phase.consumers):
        topic = topics[consumers.topic]
        plans.extend(
            _consumer_plan(consumers, (number, one), topic=topic, phase=phase, cluster=cluster)
            for one in range(consumers.count)
        )
    return plans


def connections_plans(
    count: int, *, addresses: Sequence[tuple[str, int]], request: bytes, tasks: int
) -> list[ConnectionsPlan]:
    """Return the plans of idle connections to all brokers in turn, from each of `tasks` tasks."""
    each = [addresses[at % len(addresses)] for at in range(count)]
    plans = [
        ConnectionsPlan(name=f"connections-{part}", addresses=each[part::tasks], request=request)
        for part in range(tasks)
    ]
    return [plan for plan in plans if plan.addresses]


def spread(plans: Sequence[Plan], *, slots: int) -> list[TaskPlan]:
    """Deal the clients out to as many tasks as may run at the same time.

    Producers and consumers are dealt out each in turn, so that a task has some of both.

    Paced clients have tasks of their own: a task is one Python, in which a busy client keeps all others
    waiting, and what is late for that would be counted as the brokers'.
    """
    paced = [plan for plan in plans if plan.is_paced]
    others = [plan for plan in plans if not plan.is_paced]
    if paced and others and slots > 1:
        for_others = min(len(others), slots - 1)
        found = [*_dealt(others, for_others), *_dealt(paced, slots - for_others)]
    else:
        found = _dealt(plans, slots)
    return [TaskPlan(index=index, plans=members) for index, members in enumerate(found)]


def _dealt(plans: Sequence[Plan], most: int) -> list[Sequence[Plan]]:
    tasks = min(most, len(plans))
    return [plans[first::tasks] for first in range(tasks)]
