"""Preferred read replica of a consumer (KIP-392): asks the selector, with the racks and addresses of the brokers.

`ottla.replication.follower_reads.candidates`
  -- PartitionView, with racks, lags and local log starts --> replica.selector.class -- chosen --> PreferredReadReplica

Source: ReplicaManager.findPreferredReadReplica of Kafka 4.3.1.
"""

import logging
from collections.abc import Callable

from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.replicas.partition import Partition
from ottla.replication.follower_reads import Candidate, candidates
from ottla.replication.replica_selector import (
    ClientMetadata,
    PartitionView,
    ReplicaSelector,
    ReplicaView,
)

logger = logging.getLogger(__name__)


class PreferredReadReplicas:
    """Calls the selector for the partitions of one broker; without a selector no consumer is redirected."""

    def __init__(
        self,
        selector: ReplicaSelector | None,
        *,
        node_id: int,
        metadata: MetadataCache,
        now_ms: Callable[[], int],
    ) -> None:
        self.selector = selector
        self._node_id = node_id
        self._metadata = metadata
        self._now_ms = now_ms

    @property
    def uses_local_logs(self) -> bool:
        """Whether the selector asks where local logs start; then this broker reports its own to the leaders it follows.

        A follower does not know the selector of its leader: the brokers of a cluster are expected to have the same one.
        """
        return bool(getattr(self.selector, "uses_local_logs", False))

    def choose(self, partition: Partition, client: ClientMetadata, fetch_offset: int) -> int | None:
        """The broker id of the follower that this consumer should read from; None: this leader."""
        if partition.leader is None or self.selector is None:
            return None
        now_ms, log = self._now_ms(), partition.log
        leader = self._view(
            Candidate(self._node_id, log.log_end_offset, now_ms, log.local_log_start_offset), client, now_ms
        )
        followers = [
            self._view(each, client, now_ms) for each in candidates(partition.leader.state, fetch_offset)
        ]
        view = PartitionView(replicas=[leader, *followers], leader=leader, fetch_offset=fetch_offset)
        try:
            chosen = self.selector.select(partition.topic_partition, client, view)
        except Exception:
            logger.exception("replica.selector.class failed for %s", partition)
            return None
        if chosen is None or chosen == leader or not chosen.is_reachable:
            return None
        return chosen.broker_id

    def _view(self, replica: Candidate, client: ClientMetadata, now_ms: int) -> ReplicaView:
        broker = self._metadata.broker(replica.broker_id)
        is_reachable = self._metadata.is_available(replica.broker_id, client.listener_name)
        return ReplicaView(
            broker_id=replica.broker_id,
            rack=broker.rack if broker is not None and is_reachable else None,
            is_reachable=is_reachable,
            log_end_offset=replica.log_end_offset,
            ms_since_caught_up=now_ms - replica.caught_up_ms,
            local_log_start_offset=replica.local_log_start_offset,
        )
