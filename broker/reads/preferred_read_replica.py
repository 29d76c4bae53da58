"""Preferred read replica of a consumer (KIP-392): asks the selector, with the racks and addresses of the brokers.

`broker.replication.follower_reads.candidates`
  -- PartitionView, with racks and lags --> replica.selector.class -- chosen --> PreferredReadReplica

Source: ReplicaManager.findPreferredReadReplica of Kafka 4.3.1.
"""

import logging
from collections.abc import Callable

from broker.metadata_cache import MetadataCache
from broker.replicas.partition import Partition
from broker.replication.follower_reads import candidates
from broker.replication.replica_selector import ClientMetadata, PartitionView, ReplicaSelector, ReplicaView

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

    def choose(self, partition: Partition, client: ClientMetadata, fetch_offset: int) -> int | None:
        """The broker id of the follower that this consumer should read from; None: this leader."""
        if partition.leader is None or self.selector is None:
            return None
        now_ms, log = self._now_ms(), partition.log
        leader = self._view(self._node_id, client, log_end_offset=log.log_end_offset, ms_since_caught_up=0)
        followers = [
            self._view(
                replica, client, log_end_offset=log_end_offset, ms_since_caught_up=now_ms - caught_up_ms
            )
            for replica, log_end_offset, caught_up_ms in candidates(partition.leader.state, fetch_offset)
        ]
        view = PartitionView(replicas=[leader, *followers], leader=leader)
        try:
            chosen = self.selector.select(partition.topic_partition, client, view)
        except Exception:
            logger.exception("replica.selector.class failed for %s", partition)
            return None
        if chosen is None or chosen == leader or not chosen.is_reachable:
            return None
        return chosen.broker_id

    def _view(
        self, broker_id: int, client: ClientMetadata, *, log_end_offset: int, ms_since_caught_up: int
    ) -> ReplicaView:
        broker = self._metadata.broker(broker_id)
        is_reachable = self._metadata.is_available(broker_id, client.listener_name)
        return ReplicaView(
            broker_id=broker_id,
            rack=broker.rack if broker is not None and is_reachable else None,
            is_reachable=is_reachable,
            log_end_offset=log_end_offset,
            ms_since_caught_up=ms_since_caught_up,
        )
