"""The copies of topics, by the records of `__remote_log_metadata`, and the bounds of their logs, by the leaders.

Nothing else is requested from brokers: the metadata partitions of these topics are read once, with confluent-kafka,
which has all security protocols: `kafka.security.protocol` and the like are librdkafka's settings.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from logging import getLogger
from typing import Final
from uuid import UUID

from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from ottla.protocol import types
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.kafka_uuid import from_text, to_text
from ottla.protocol.remote.record_codec import UnknownRemoteLogMetadata
from ottla.remote.errors import RemoteStorageError
from ottla.remote.known_copies import KnownCopies
from ottla.remote.segment_metadata import TopicIdPartition
from ottla.remote.spark_source.copies import PartitionCopies
from ottla.remote.topic_metadata.partitioner import metadata_partition
from ottla.remote.topic_metadata.records import from_value
from ottla.remote.topic_metadata.topic import TOPIC

_LOG: Final = getLogger(__name__)

#: The longest wait for one response of the cluster, and for a record of the metadata.
_TIMEOUT_S: Final = 30.0
_RECORDS_AT_ONCE: Final = 10_000
#: Offsets are not committed, and the library demands a name.
_GROUP: Final = "ottla-tier"


class ClusterUnusable(RemoteStorageError):
    """The cluster cannot be read; the message has the reason."""


def copies_by_records(
    settings: Mapping[str, str], topics: Sequence[str], topic_id: UUID | None
) -> Iterator[PartitionCopies]:
    """Yield the copies of all partitions of these topics. `settings` are librdkafka's. Raises ClusterUnusable.

    The records are read before the logs' bounds: a copy that retention deletes meanwhile is before the log start.
    """
    try:
        admin = AdminClient(dict(settings))
        partitions = _partitions_of(admin, topics)
        if topic_id is not None and (other := partitions[0].topic_id) != topic_id:
            raise ClusterUnusable(
                f"The topic {topics[0]} of the cluster has the id {to_text(other)}, not {to_text(topic_id)}."
            )
        known = _known_copies(settings, partitions)
        starts = _offsets(admin, partitions, OffsetSpec.earliest())
        ends = _offsets(admin, partitions, OffsetSpec.latest())
    except KafkaException as error:
        raise ClusterUnusable(f"{settings['bootstrap.servers']}: {error.args[0].str()}.") from error
    by_partition = known.by_partition()
    for each in partitions:
        yield PartitionCopies(
            partition=each,
            copies=() if each in known.deletions else tuple(by_partition.get(each, ())),
            log_start_offset=starts.get(each),
            log_end_offset=ends.get(each),
        )


def _partitions_of(admin: AdminClient, topics: Sequence[str]) -> list[TopicIdPartition]:
    """Return the partitions of these topics, by topic and number. Raises ClusterUnusable."""
    found = []
    for topic, future in admin.describe_topics(
        TopicCollection(list(topics)), request_timeout=_TIMEOUT_S
    ).items():
        try:
            described = future.result()
        except KafkaException as error:
            raise ClusterUnusable(f"The topic {topic} cannot be described: {error.args[0].str()}.") from error
        topic_id = from_text(str(described.topic_id))
        found += [
            TopicIdPartition(topic_id, types.TopicPartition(topic, each.id)) for each in described.partitions
        ]
    return sorted(found, key=lambda each: each.topic_partition)


def _known_copies(settings: Mapping[str, str], partitions: Collection[TopicIdPartition]) -> KnownCopies:
    """Return the copies by all records of the metadata partitions of these partitions."""
    known = KnownCopies()
    consumer = Consumer(
        {
            **settings,
            "group.id": _GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": False,
        }
    )
    try:
        count = len(consumer.list_topics(TOPIC, timeout=_TIMEOUT_S).topics[TOPIC].partitions)
        if not count:
            raise ClusterUnusable(
                f"{settings['bootstrap.servers']} has no topic {TOPIC}: none of its topics has been tiered."
            )
        ranges = {}
        wanted = sorted({metadata_partition(each, partition_count=count) for each in partitions})
        for number in wanted:
            start, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=_TIMEOUT_S)
            if start < end:
                ranges[number] = start, end
        consumer.assign([TopicPartition(TOPIC, number, start) for number, (start, _) in ranges.items()])
        _apply(consumer, ranges, known)
    finally:
        consumer.close()
    if known.unread_count:
        _LOG.warning("%d records of %s are of newer software and ignored", known.unread_count, TOPIC)
    return known


def _apply(consumer: Consumer, ranges: Mapping[int, tuple[int, int]], known: KnownCopies) -> None:
    """Apply the records [start, end) of these metadata partitions."""
    left = {number: end - start for number, (start, end) in ranges.items()}
    while left:
        # Returns when it has so many records: with a larger number than there are it would wait for its whole timeout.
        messages = consumer.consume(min(sum(left.values()), _RECORDS_AT_ONCE), timeout=_TIMEOUT_S)
        if not messages:
            raise ClusterUnusable(
                f"The partitions {sorted(left)} of {TOPIC} did not answer for {_TIMEOUT_S:g} s."
            )
        for message in messages:
            if (error := message.error()) is not None:
                raise KafkaException(error)
            number, offset = message.partition(), message.offset()
            assert number is not None, message
            assert offset is not None, message
            end = ranges[number][1]
            if offset >= end:
                continue
            try:
                known.apply(from_value(message.value()))
            except (MalformedMessage, UnknownRemoteLogMetadata):
                known.unread_count += 1
            left[number] = end - offset - 1
            if not left[number]:
                del left[number]


def _offsets(
    admin: AdminClient, partitions: Collection[TopicIdPartition], spec: OffsetSpec
) -> dict[TopicIdPartition, int]:
    """Return the offsets that the leaders report, without those of partitions that have no leader."""
    asked = {TopicPartition(*each.topic_partition): each for each in partitions}
    found = {}
    futures = admin.list_offsets(dict.fromkeys(asked, spec), request_timeout=_TIMEOUT_S)
    for partition, future in futures.items():
        try:
            found[asked[partition]] = future.result().offset
        except KafkaException as error:
            _LOG.warning(
                "The offsets of %s are unknown: %s", asked[partition].topic_partition, error.args[0].str()
            )
    return found
