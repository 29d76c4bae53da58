"""Checks that a workload's file can be run: rules between keys that are right by themselves."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from ottla.bench.aggregation.tables import event_metric, figures_of
from ottla.bench.jobs.options import check_job
from ottla.bench.workloads.keys import Place
from ottla.bench.workloads.model import (
    Action,
    ClusterNeeds,
    Consumers,
    Event,
    Phase,
    Producers,
    RecordSize,
    SizeLaw,
    Start,
    Tier,
    TopicSpec,
    Workload,
)

COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS: Final = ("all", "0", "1")
ISOLATIONS: Final = ("read_committed", "read_uncommitted")
#: The value of `ottla.bench.generators.records.STAMP_BYTES`, without the import of numpy.
LEAST_VALUE_BYTES: Final = 28
#: The configuration of librdkafka, and its default.
_LARGEST: Final = "message.max.bytes"
_LARGEST_BYTES: Final = 1_000_000
#: The characters that Kafka allows in a name; the run's number comes behind it.
_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_BROKER_ACTIONS: Final = {Action.KILL, Action.STOP, Action.WIPE, Action.START}


def check(workload: Workload, place: Place) -> None:
    """Raise WorkloadError for the first thing that cannot be run."""
    _check_cluster(workload.cluster, place / "cluster")
    if not workload.phases:
        raise place.error("there is no phase: add [[phases]]")
    _unique("topics", (topic.name for topic in workload.topics), place)
    _unique("phases", (phase.name for phase in workload.phases), place)
    for number, topic in enumerate(workload.topics, 1):
        _check_topic(topic, workload, place / f"topics {number} ({topic.name})")
    for number, phase in enumerate(workload.phases, 1):
        _check_phase(phase, workload, place / f"phases {number} ({phase.name})")


def _at_least(least: float, value: float | None, place: Place) -> None:
    if value is not None and value < least:
        raise place.error(f"must be {least:g} or more, and is {value:g}")


def _above_zero(value: float | None, place: Place) -> None:
    if value is not None and value <= 0:
        raise place.error(f"must be above 0, and is {value:g}")


def _one_of(known: Iterable[str], value: str, place: Place) -> None:
    if value not in known:
        choices = ", ".join(f'"{each}"' for each in known)
        raise place.error(f'must be one of {choices}, and is "{value}"')


def _unique(what: str, names: Iterable[str], place: Place) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise (place / what).error(f'"{name}" is there {count} times: each needs a name of its own')


def _check_cluster(cluster: ClusterNeeds, place: Place) -> None:
    _at_least(1, cluster.brokers, place / "brokers")
    if cluster.broker_properties and cluster.brokers == 1:
        raise (place / "broker_properties").error("is for clusters of several brokers: write `properties`")
    known = [str(number) for number in range(1, cluster.brokers + 1)]
    for broker in cluster.broker_properties:
        if broker not in known:
            raise (place / "broker_properties").error(
                f"there is no broker {broker}: they are 1 to {known[-1]}"
            )


def _check_topic(topic: TopicSpec, workload: Workload, place: Place) -> None:
    if not _TOPIC_NAME.fullmatch(topic.name):
        raise (place / "name").error("must be of letters, digits, `.`, `_` and `-`, 200 at most")
    _at_least(1, topic.partitions, place / "partitions")
    _at_least(1, topic.replicas, place / "replicas")
    if topic.replicas > workload.cluster.brokers:
        raise (place / "replicas").error(
            f"is {topic.replicas}, and cluster.brokers is {workload.cluster.brokers}: there are not so many brokers"
        )
    if topic.is_tiered and workload.cluster.tier is Tier.NONE:
        raise (place / "tiered").error('is true, and cluster.tier is "none": write tier = "directory" there')
    if "remote.storage.enable" in topic.configs:
        raise (place / "configs").error("has remote.storage.enable: write tiered = true instead")


def _check_phase(phase: Phase, workload: Workload, place: Place) -> None:
    has_clients = bool(phase.producers or phase.consumers or phase.connections)
    if not (has_clients or phase.jobs or phase.events):
        raise place.error("does nothing: it has no producers, consumers, connections, jobs or events")
    if has_clients and phase.jobs:
        raise (place / "jobs").error(
            "cannot run beside producers, consumers or connections: give them a phase of their own"
        )
    _above_zero(phase.seconds, place / "seconds")
    if phase.connections is not None:
        _at_least(1, phase.connections.count, place / "connections")
    if phase.seconds is None and _needs_seconds(phase):
        raise place.error("`seconds` is missing: without it the phase has no end")
    has_topic = _topic_check(workload)
    for number, producers in enumerate(phase.producers, 1):
        where = place / f"producers {number}"
        has_topic(producers.topic, where)
        _check_producers(producers, where)
    for number, consumers in enumerate(phase.consumers, 1):
        where = place / f"consumers {number}"
        has_topic(consumers.topic, where)
        _check_consumers(consumers, where)
    for number, job in enumerate(phase.jobs, 1):
        has_topic(job.topic, place / f"jobs {number}")
        wrong = check_job(job, [topic.name for topic in workload.topics])
        if wrong is not None:
            raise (place / f"jobs {number}" / "options").error(wrong)
    _check_events(phase, workload, place)
    _check_goals(phase, place)


def _check_events(phase: Phase, workload: Workload, place: Place) -> None:
    has_topic = _topic_check(workload)
    _unique("events", (event.name for event in phase.events), place)
    figures = (event_metric(event.name) for event in phase.events if event.until is not None)
    for figure, count in Counter(figures).items():
        if count > 1:
            raise (place / "events").error(
                f"{count} of them have the figure {figure}: give them names of different words"
            )
    earlier_s = 0.0
    for number, event in enumerate(phase.events, 1):
        where = place / f"events {number} ({event.name})"
        _at_least(0, event.at_s, where / "at_s")
        if event.at_s < earlier_s:
            raise (where / "at_s").error(
                f"is {event.at_s:g}, and the event before it is at {earlier_s:g}: order them"
            )
        earlier_s = event.at_s
        for topic in (event.topic, event.leader_of):
            if topic is not None:
                has_topic(topic, where)
        _check_event(event, workload, where)


def _check_goals(phase: Phase, place: Place) -> None:
    known = [figure.metric for figure in figures_of(phase)]
    for number, goal in enumerate(phase.goals, 1):
        where = place / f"goals {number} ({goal.figure})"
        _one_of(known, goal.figure, where / "figure")
        if (goal.at_least is None) == (goal.at_most is None):
            raise where.error("needs either `at_least` or `at_most`")
    _unique("goals", (goal.figure for goal in phase.goals), place)


def _needs_seconds(phase: Phase) -> bool:
    """Whether a client of the phase has no end of its own."""
    is_at_the_tail = any(consumers.start is Start.END for consumers in phase.consumers)
    return (
        any(producers.records is None for producers in phase.producers)
        or phase.connections is not None
        or (is_at_the_tail and not phase.producers)
    )


def _topic_check(workload: Workload) -> Callable[[str, Place], None]:
    names = [topic.name for topic in workload.topics]

    def has_topic(name: str, place: Place) -> None:
        if name not in names:
            known = ", ".join(names) or "none"
            raise place.error(f'there is no topic "{name}": add it to [[topics]] (there: {known})')

    return has_topic


def _check_producers(producers: Producers, place: Place) -> None:
    _at_least(1, producers.count, place / "count")
    _above_zero(producers.rate, place / "rate")
    if producers.records is not None:
        _at_least(producers.count, producers.records, place / "records")
    _one_of(COMPRESSIONS, producers.compression, place / "compression")
    _one_of(ACKS, producers.acks, place / "acks")
    _check_size(producers.size, place / "size")
    limit = producers.client.get(_LARGEST, str(_LARGEST_BYTES))
    if limit.isdecimal() and producers.size.most > int(limit):
        raise (place / "size").error(
            f'is up to {producers.size.most}, and librdkafka takes records of {limit} bytes: set "{_LARGEST}" in '
            "`client`, and `max.message.bytes` of the topic if it is above 1 MiB"
        )


def _check_size(size: RecordSize, place: Place) -> None:
    if not LEAST_VALUE_BYTES <= size.least <= size.mean <= size.most:
        raise place.error(
            f"must be {LEAST_VALUE_BYTES} <= least <= mean <= most, and is {size.least}, {size.mean}, {size.most}"
        )
    if size.law is SizeLaw.FIXED and size.least != size.most:
        raise place.error('has bounds, and its law is "fixed": write law = "uniform" or "lognormal"')
    if size.law is SizeLaw.UNIFORM and 2 * size.mean != size.least + size.most:
        raise place.error(
            f"must have the mean {(size.least + size.most) / 2:g}: a uniform law's is between its bounds"
        )
    if (size.law is SizeLaw.LOGNORMAL) != (size.sigma > 0):
        raise place.error("must have a sigma above 0 if its law is lognormal, and none with another law")


def _check_consumers(consumers: Consumers, place: Place) -> None:
    _at_least(1, consumers.count, place / "count")
    _at_least(0, consumers.offset, place / "offset")
    _one_of(ISOLATIONS, consumers.isolation, place / "isolation")
    if consumers.offset and consumers.start is not Start.OFFSET:
        raise (place / "offset").error('needs start = "offset"')


def _check_event(event: Event, workload: Workload, place: Place) -> None:
    action = event.action
    if action in _BROKER_ACTIONS:
        if (event.broker is None) == (event.leader_of is None):
            raise place.error(f'"{action.value}" needs either `broker` or `leader_of`')
        if event.leader_of is not None and action in (Action.START, Action.WIPE):
            raise (place / "leader_of").error(f'a broker to {action.value} is down: name it with "broker"')
        if event.broker is not None and not 1 <= event.broker <= workload.cluster.brokers:
            raise (place / "broker").error(
                f"is {event.broker}, and the brokers are 1 to {workload.cluster.brokers}"
            )
    elif event.broker is not None or event.leader_of is not None:
        raise place.error(f'"{action.value}" is not of one broker: remove `broker` and `leader_of`')
    if action is Action.SLOW_STORE and workload.cluster.tier is not Tier.MINIO:
        raise place.error('"slow_store" needs a store with a connection: write tier = "minio" in [cluster]')
    if action is Action.ALTER_TOPIC and (event.topic is None or not event.configs):
        raise place.error('"alter_topic" needs `topic` and `configs`')
    if action is Action.ELECT_PREFERRED and event.topic is None:
        raise place.error('"elect_preferred" needs `topic`')
    if action is Action.WAIT and event.until is None:
        raise place.error('"wait" needs `until`')
    if event.until is not None and event.topic is None:
        raise place.error(f'until = "{event.until.value}" needs `topic`')
