"""Partitions on a disk and the purgatory of Fetch, without the rest of a replica manager."""

import sys
from random import Random

from replicas_support import NODE_ID, PartitionOnDisk, batch, image

from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.replicas.following.replication_throttle import LeaderThrottle
from ottla.broker.replicas.hosted_partitions import HostedPartitions
from ottla.broker.replicas.reading.fetch import fetch
from ottla.broker.replicas.reading.fetch_contexts import new_context
from ottla.broker.replicas.reading.fetch_params import FetchParams
from ottla.broker.replicas.reading.fetch_session_cache import FetchSessionCache
from ottla.broker.replicas.reading.response_rows import count_and_group
from ottla.broker.replicas.topic_stats import BrokerTopicStats
from ottla.broker.replicas.waiting.delayed_operation import DelayedOperationPurgatory
from ottla.metadata.image import MetadataImage
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition
from ottla.protocol.records.batch import batches
from ottla.protocol.records.record import records
from ottla.replication.replication_quota import ReplicationQuota

SIZE = len(batch(b"x" * 1000))


KEY, OTHER_KEY = ("t", 0), ("u", 0)


class Hosting:
    """Partitions and a purgatory, without the rest of a replica manager."""

    def __init__(self, runtime, *, session_slots=10):
        self.runtime = runtime
        self.purgatory = DelayedOperationPurgatory(
            call_later=runtime.call_later, call_soon=runtime.loop.call_soon, turns=runtime.turns
        )
        self.sessions = FetchSessionCache(slots=session_slots, random=Random(1))
        unbounded = ReplicationQuota(rate=lambda: sys.maxsize)
        self.throttle = LeaderThrottle(unbounded, node_id=NODE_ID, monotonic=runtime.monotonic)
        self.topic_stats = BrokerTopicStats()
        self.metadata = MetadataCache(MetadataImage())
        self.hosted = HostedPartitions(
            node_id=NODE_ID, metadata=self.metadata, is_being_created=lambda topic_partition: False
        )

    def add(self, folder, key=KEY, **config) -> PartitionOnDisk:
        folder.mkdir(exist_ok=True)
        on_disk = PartitionOnDisk(folder, **config)
        on_disk.partition.watchers._signal = self.purgatory.signal
        on_disk.partition.apply(image())
        self.hosted.by_key[key] = on_disk.partition
        return on_disk

    def fetch(self, offsets, *, session=(0, -1), forgotten=(), **params):
        asked = {
            key: FetchPartition(
                partition=key[1], partition_max_bytes=params.get("partition_max_bytes", 10**6), **fields
            )
            for key, fields in (
                (key, value if isinstance(value, dict) else {"fetch_offset": value})
                for key, value in offsets.items()
            )
        }
        params.pop("partition_max_bytes", None)
        replica_id = params.get("replica_id")
        context = new_context(
            self.sessions,
            session_id=session[0],
            epoch=session[1],
            requested=asked.items(),
            forgotten=forgotten,
            is_follower=replica_id is not None,
            uses_topic_ids=False,
            is_read_committed=params.get("is_read_committed", False),
            now_ms=0,
        )

        def respond(answers):
            error, self.session_id = context.update_session(answers, now_ms=lambda: 0)
            assert error == ErrorCode.none
            count_and_group(answers, context.session, self, is_follower=replica_id is not None)
            return {fetched.key: row for fetched, row in answers}

        defaults = {
            "version": 12, "replica_id": None, "max_wait_ms": 500, "min_bytes": 1, "max_bytes": 10**6,
            "is_read_committed": False, "now_ms": 0,
        }  # fmt: skip
        return fetch(self, None, context, FetchParams(**(defaults | params)), respond)


def values(row):
    return [record.value for _, part in batches(memoryview(row.records)) for record in records(part)]


def sizes(answer):
    return {key: len(row.records) for key, row in answer.items()}
