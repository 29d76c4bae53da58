"""Topics: found by a part of their name and paged here, so that thousands stay usable; and one topic's partitions.

The log of each replica is this node's own, or is asked of the replica's broker (`ottla.broker.reports`); all brokers
are asked in parallel, for the partitions of one page. A replica whose broker does not answer has its problem in its
row, and its neighbours have their numbers.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ottla.broker.page.query import CannotShow, Query
from ottla.broker.page.sources import Sources, each_of
from ottla.broker.page.tally import TopicRow, min_isr_of
from ottla.broker.reports.description import ReplicaLog
from ottla.broker.reports.health import partition_state
from ottla.broker.reports.replica_reports import Asked, Reported, replica_reports
from ottla.metadata.image import PartitionImage, TopicImage
from ottla.protocol import kafka_uuid
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.schema import Request, Response
from ottla.protocol.types import TopicPartition
from ottla.runtime.turns import in_turns

TOPICS_OF_PAGE: Final = 50
PARTITIONS_OF_PAGE: Final = 20
#: A further page cannot be asked for: a cluster of Kafka has fewer partitions.
_LAST_PAGE: Final = 1_000_000
_ROWS_OF_STEP: Final = 100
_TIERED: Final = "remote.storage.enable"
_ORDERS: Final = ("name", "state", "partitions")


async def topics(sources: Sources, query: Query) -> dict[str, Any]:
    """One page of the topics whose name contains `search`, in the order of their names or the worst first."""
    search, page = query.text("search").lower(), query.number("page", 0, most=_LAST_PAGE)
    order, has_internal = query.text("order", "name"), query.is_set("internal")
    query.check_all_read()
    if order not in _ORDERS:
        raise CannotShow(400, f"order must be one of {', '.join(_ORDERS)}.")
    tallied = await sources.tally.current()
    found: list[TopicRow] = []

    def select() -> Iterator[None]:
        for number, row in enumerate(tallied.topics.values(), start=1):
            if search in row.name.lower() and (has_internal or not row.name.startswith("__")):
                found.append(row)
            if number % _ROWS_OF_STEP == 0:
                yield

    await in_turns(sources.runtime, select())
    if order == "state":
        found.sort(key=lambda row: row.severity, reverse=True)
    elif order == "partitions":
        found.sort(key=lambda row: -row.partition_count)
    begin = page * TOPICS_OF_PAGE
    return {
        "total": len(found),
        "page": page,
        "page_size": TOPICS_OF_PAGE,
        "topics": [_topic(sources, row) for row in found[begin : begin + TOPICS_OF_PAGE]],
    }


def _topic(sources: Sources, row: TopicRow) -> dict[str, Any]:
    configs = sources.broker.metadata.image.topic_config(row.name)
    return {
        "name": row.name,
        "partitions": row.partition_count,
        "replication_factor": row.replication_factor,
        "leaderless": row.leaderless,
        "under_min_isr": row.under_min_isr,
        "under_replicated": row.under_replicated,
        "tiered": configs.get(_TIERED) == "true",
        "messages_in_per_second": sources.rates.messages_in(row.name),
    }


async def topic(sources: Sources, query: Query) -> dict[str, Any]:
    """One page of a topic's partitions, each with its replicas' logs."""
    name, page = query.required("topic"), query.number("page", 0, most=_LAST_PAGE)
    query.check_all_read()
    image = topic_named(sources, name)
    begin = page * PARTITIONS_OF_PAGE
    rows = {
        index: image.partitions[index]
        for index in range(begin, begin + PARTITIONS_OF_PAGE)
        if index in image.partitions
    }
    logs = await replica_logs(sources, image, rows)
    configs = sources.broker.metadata.image.topic_config(name)
    min_isr = min_isr_of(sources.broker, configs)
    return {
        "name": name,
        "topic_id": kafka_uuid.to_text(image.topic_id),
        "total": len(image.partitions),
        "page": page,
        "page_size": PARTITIONS_OF_PAGE,
        "min_isr": min_isr,
        "configs": dict(sorted(configs.items())),
        "partitions": [partition_row(sources, index, rows[index], logs, min_isr) for index in rows],
    }


def topic_named(sources: Sources, name: str) -> TopicImage:
    """The topic of this name. Raises CannotShow."""
    image = sources.broker.metadata.topic(name)
    if image is None:
        raise CannotShow(404, f"The cluster has no topic {name[:249]}.")
    return image


def partition_row(
    sources: Sources,
    index: int,
    partition: PartitionImage,
    logs: Mapping[tuple[int, int], Reported],
    min_isr: int,
) -> dict[str, Any]:
    """One partition with its replicas, in the order of the assignment."""
    brokers = sources.broker.metadata.brokers_for(sources.broker.config.inter_broker_listener_name)
    offline = brokers.offline_replicas(partition)
    return {
        "partition": index,
        "state": partition_state(
            has_leader=partition.leader is not None,
            replica_count=len(partition.replicas),
            isr_count=len(partition.isr),
            min_isr=min_isr,
        ),
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "isr": list(partition.isr),
        "elr": list(partition.elr),
        "last_known_elr": list(partition.last_known_elr),
        "replicas": [
            _replica(broker_id, partition, logs.get((broker_id, index)), is_offline=broker_id in offline)
            for broker_id in partition.replicas
        ],
    }


def _replica(
    broker_id: int, partition: PartitionImage, reported: Reported | None, *, is_offline: bool
) -> dict[str, Any]:
    log = ReplicaLog() if reported is None else reported.log
    return {
        "broker": broker_id,
        "leads": broker_id == partition.leader,
        "in_isr": broker_id in partition.isr,
        "in_elr": broker_id in partition.elr,
        "offline": is_offline,
        "moving": "in" if broker_id in partition.adding_replicas
        else "out" if broker_id in partition.removing_replicas else None,
        "log_start_offset": log.log_start_offset,
        "local_log_start_offset": log.local_log_start_offset,
        "tier_end_offset": log.pending_upload_offset,
        "high_watermark": log.high_watermark,
        "log_end_offset": log.log_end_offset,
        "local_bytes": log.local_bytes,
        "problem": None if reported is None else reported.problem,
    }  # fmt: skip


async def replica_logs(
    sources: Sources, image: TopicImage, rows: Mapping[int, PartitionImage]
) -> dict[tuple[int, int], Reported]:
    """The logs of these partitions' replicas by broker and partition; a problem instead where they are not known."""
    found: dict[tuple[int, int], Reported] = {}
    asked: dict[int, list[Asked]] = {}
    for index, partition in rows.items():
        at = TopicPartition(image.name, index)
        for broker_id in partition.replicas:
            if broker_id == sources.broker.node_id:
                found[broker_id, index] = own_log(sources, at)
            else:
                asked.setdefault(broker_id, []).append(Asked(at, image.topic_id, needs_timestamp=False))

    async def of_broker(broker_id: int) -> Mapping[TopicPartition, Reported]:
        registered = sources.broker.metadata.broker(broker_id)
        if registered is None or registered.is_fenced:
            raise CannotShow(503, f"The broker {broker_id} is not alive.")

        async def ask(_: ApiKey, message: Request, versions: range) -> Response:
            return await sources.ask(broker_id, message, Response, versions=versions)

        known = sources.watermarks(broker_id)
        reports = await replica_reports(ask, asked[broker_id], known_watermarks=known)
        for each, reported in reports.items():
            if reported.log.high_watermark is None:
                known.pop(each, None)
            else:
                known[each] = reported.log.high_watermark
        return reports

    answers, problems = await each_of(asked, of_broker)
    for broker_id, replicas in asked.items():
        for each in replicas:
            at = each.topic_partition
            unknown = Reported(ReplicaLog(), problems.get(broker_id))
            found[broker_id, at.partition] = answers.get(broker_id, {}).get(at, unknown)
    return found


def own_log(sources: Sources, at: TopicPartition) -> Reported:
    """The log of this broker's replica."""
    hosted = sources.broker.replicas.hosted
    partition = hosted.get(at)
    if partition is None:
        return Reported(ReplicaLog(), str(hosted.missing_partition_error(at)))
    log = partition.log
    offsets = log.offsets
    return Reported(
        ReplicaLog(
            log_start_offset=offsets.log_start_offset,
            local_log_start_offset=offsets.local_log_start_offset,
            pending_upload_offset=offsets.earliest_pending_upload_offset if log.is_tiered else None,
            high_watermark=offsets.high_watermark,
            log_end_offset=offsets.log_end_offset,
            local_bytes=log.segments.size_bytes,
        ),
        None,
    )
