"""The topics of a run: checked before anything is measured, created for each run, deleted after it.

Partition p is on the p-th broker, which leads it, and on those after it, in the order of their ids: the same
on all targets.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import TopicMetadata
from confluent_kafka.cimpl import NewTopic

from ottla.bench.generators.cluster import ClusterDoesNotAnswer, ClusterReader
from ottla.bench.targets.target import Target, TargetError
from ottla.bench.workloads.model import TopicSpec, Workload

_TIMEOUT_S: Final = 60.0
_DELETE_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.05


def name_in_cluster(topic: TopicSpec, run: int | None) -> str:
    """Return the topic's name in a run, which is counted from 0, or in the warm-up.

    >>> name_in_cluster(TopicSpec(name="t"), 0), name_in_cluster(TopicSpec(name="t"), None)
    ('t-1', 't-warm-up')
    """
    return f"{topic.name}-warm-up" if run is None else f"{topic.name}-{run + 1}"


def check_topics(target: Target, workload: Workload, runs: int) -> None:
    """Raise TargetError for a topic that is there and is not an empty one of the same partitions."""
    found = _topics_of(_admin(target), target)
    for topic in workload.topics:
        for run in (None, *range(runs)):
            name = name_in_cluster(topic, run)
            if name in found:
                _check_existing(target, topic, found[name], name)


def _check_existing(target: Target, topic: TopicSpec, found: TopicMetadata, name: str) -> None:
    if len(found.partitions) != topic.partitions:
        raise TargetError(
            f"{target.name}: topic {name} exists with {len(found.partitions)} partitions, and the workload has "
            f"{topic.partitions}: delete the topic, or give it another name in the workload"
        )
    try:
        ends = ClusterReader(target.bootstrap).ends({name: topic.partitions})[name]
    except ClusterDoesNotAnswer as error:
        raise TargetError(f"{target.name}: {error}") from error
    if any(ends.values()):
        raise TargetError(
            f"{target.name}: topic {name} exists and has records: delete the topic, or give it another name "
            "in the workload"
        )


@contextmanager
def topics_of_run(target: Target, workload: Workload, run: int | None) -> Iterator[Mapping[str, str]]:
    """Create the topics of a run, and delete them at the end. Raises TargetError.

    Yields name in the workload -> name in the cluster.
    """
    admin = _admin(target)
    names = {topic.name: name_in_cluster(topic, run) for topic in workload.topics}
    there = _topics_of(admin, target)
    new = [topic for topic in workload.topics if names[topic.name] not in there]
    try:
        _create(admin, target, new, run)
        yield names
    finally:
        # A new client: the first one may wait for a broker that is down now.
        _delete(_admin(target), [names[topic.name] for topic in new])


def _admin(target: Target) -> AdminClient:
    # librdkafka's own lines would be among those of the progress; what fails is raised here.
    return AdminClient({"bootstrap.servers": target.bootstrap, "log_level": 0})


def _topics_of(admin: AdminClient, target: Target) -> dict[str, TopicMetadata]:
    try:
        return dict(admin.list_topics(timeout=_TIMEOUT_S).topics)
    except KafkaException as error:
        raise TargetError(
            f"{target.name}: {target.bootstrap} does not answer: {error.args[0].str()}"
        ) from error


def _create(admin: AdminClient, target: Target, topics: Sequence[TopicSpec], run: int | None) -> None:
    if not topics:
        return
    made = [
        NewTopic(
            name_in_cluster(topic, run),
            num_partitions=topic.partitions,
            replica_assignment=assignment(topic, [each.broker_id for each in target.brokers]),
            config=_configs(topic, target),
        )
        for topic in topics
    ]
    for name, future in admin.create_topics(made, operation_timeout=_TIMEOUT_S).items():
        _result(future, target, f"topic {name}")
    waiting = {name_in_cluster(topic, run): topic for topic in topics}
    deadline = time.monotonic() + _TIMEOUT_S
    while waiting:
        found = _topics_of(admin, target)
        waiting = {name: topic for name, topic in waiting.items() if not _is_led(found.get(name), topic)}
        if time.monotonic() > deadline:
            raise TargetError(
                f"{target.name}: topic {next(iter(waiting))} has no leaders after {_TIMEOUT_S:g} s"
            )
        time.sleep(_POLL_S if waiting else 0)


def assignment(topic: TopicSpec, brokers: Sequence[int]) -> list[list[int]]:
    """Return the brokers of each partition.

    >>> assignment(TopicSpec(name="t", partitions=4, replicas=2), [1, 2, 3])
    [[1, 2], [2, 3], [3, 1], [1, 2]]
    """
    ids = sorted(brokers)
    return [
        [ids[(partition + replica) % len(ids)] for replica in range(topic.replicas)]
        for partition in range(topic.partitions)
    ]


def _configs(topic: TopicSpec, target: Target) -> dict[str, str]:
    tiered = {"remote.storage.enable": "true"} if topic.is_tiered and target.has_tier else {}
    return {**topic.configs, **tiered}


def _is_led(found: TopicMetadata | None, topic: TopicSpec) -> bool:
    return (
        found is not None
        and len(found.partitions) == topic.partitions
        and all(each.leader >= 0 and len(each.isrs) == topic.replicas for each in found.partitions.values())
    )


def _delete(admin: AdminClient, names: Sequence[str]) -> None:
    """Delete the topics. A failure is ignored: a cluster that has just lost brokers may not answer.

    The figures are there already.
    """
    if names:
        for future in admin.delete_topics(list(names), operation_timeout=_DELETE_TIMEOUT_S).values():
            with suppress(TimeoutError):
                future.exception(_DELETE_TIMEOUT_S)


def _result(future: "Future[Any]", target: Target, what: str) -> Any:  # noqa: ANN401 - of each request its own
    try:
        return future.result(_TIMEOUT_S)
    except KafkaException as error:
        raise TargetError(f"{target.name}: {what}: {error.args[0].str()}") from error
