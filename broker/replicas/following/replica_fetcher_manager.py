"""Replica fetcher manager: assigns each partition that this broker follows to a fetcher.

One leader's partitions are distributed over `num.replica.fetchers` fetchers, so that one slow response does not delay
all of them; a partition always has the same fetcher number. A fetcher without partitions is stopped.

Source: ReplicaFetcherManager, AbstractFetcherManager of Kafka 4.3.1.
"""

from collections.abc import Callable
from zlib import crc32

from ottla.broker.network.client import Address, NodeClient
from ottla.broker.replicas.following.leader_endpoint import FetcherSettings, LeaderEndpoint
from ottla.broker.replicas.following.replica_fetcher import ReplicaFetcher
from ottla.broker.replicas.following.replication_throttle import FollowerThrottle
from ottla.broker.replicas.partition import Partition
from ottla.remote.auxiliary_state import AuxiliaryStates
from ottla.replication.replication_quota import ReplicationQuota
from ottla.runtime import Runtime

#: A fetcher: (broker id of the leader, number of the fetcher).
_Key = tuple[int, int]


class ReplicaFetcherManager:
    """Assigns each followed partition to a replica fetcher; the replica manager decides which are followed."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        settings: FetcherSettings,
        fetcher_count: int,
        address_of: Callable[[int], Address | None],
        broker_epoch: Callable[[], int],
        quota: ReplicationQuota,
        prefers_last_tiered: Callable[[], bool] = lambda: False,
        auxiliary: AuxiliaryStates | None = None,
    ) -> None:
        """`address_of` returns a broker's inter-broker address, None while it is unavailable.

        `prefers_last_tiered`: follower.fetch.last.tiered.offset.enable. `auxiliary` None: this broker has no
        remote tier.
        """
        self._runtime = runtime
        self._settings = settings
        self._fetcher_count = fetcher_count
        self._address_of = address_of
        self._broker_epoch = broker_epoch
        self._throttle = FollowerThrottle(quota, node_id=settings.node_id, monotonic=runtime.monotonic)
        self._fetchers: dict[_Key, ReplicaFetcher] = {}
        self._by_partition: dict[Partition, _Key] = {}
        self._prefers_last_tiered = prefers_last_tiered
        self._auxiliary = auxiliary
        self._is_stopped = False

    def follow(self, partition: Partition) -> None:
        """Follow the leader that the metadata log names, in its epoch; no leader while it names none."""
        if partition.leader_id is None or self._is_stopped:
            self.unfollow(partition)
            return
        topic, index = partition.topic_partition
        # A topic's consecutive partitions go to consecutive fetchers, so that each gets an equal share.
        key = (partition.leader_id, (crc32(topic.encode()) + index) % self._fetcher_count)
        if self._by_partition.get(partition, key) != key:
            self.unfollow(partition)
        self._by_partition[partition] = key
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            fetcher = self._fetchers[key] = self._make(key)
        fetcher.follow(partition)

    def unfollow(self, partition: Partition) -> None:
        """Stop following: this broker leads, or does not host the partition any more."""
        key = self._by_partition.pop(partition, None)
        if key is not None:
            fetcher = self._fetchers[key]
            fetcher.unfollow(partition)
            if not fetcher:
                del self._fetchers[key]
                self._runtime.create_task(fetcher.stop(), name=f"stop-fetcher-{key[0]}")

    def refresh(self, partition: Partition) -> None:
        """Report the partition's log start, which this broker's retention has moved, in the next Fetch."""
        key = self._by_partition.get(partition)
        if key is not None:
            self._fetchers[key].refresh(partition)

    def lag(self, partition: Partition) -> int | None:
        """The number of offsets by which the leader's high watermark is ahead of the log.

        None: the partition is not followed, or the number is not known.
        """
        key = self._by_partition.get(partition)
        return None if key is None else self._fetchers[key].lag(partition)

    def resize(self, fetcher_count: int) -> None:
        """Reassign all partitions if `num.replica.fetchers` has changed; each starts with a new `Follower`."""
        if fetcher_count != self._fetcher_count:
            self._fetcher_count = fetcher_count
            for partition in list(self._by_partition):
                self.follow(partition)

    async def stop(self) -> None:
        """Stop all fetchers; `follow` has no effect afterwards."""
        self._is_stopped = True
        fetchers, self._fetchers = list(self._fetchers.values()), {}
        self._by_partition.clear()
        for fetcher in fetchers:
            await fetcher.stop()

    def _make(self, key: _Key) -> ReplicaFetcher:
        leader_id, number = key
        client = NodeClient(
            self._runtime,
            client_id=f"broker-{self._settings.node_id}-fetcher-{number}",
            settings=self._settings.connections,
        )
        leader = LeaderEndpoint(
            client,
            leader_id=leader_id,
            address=lambda: self._address_of(leader_id),
            broker_epoch=self._broker_epoch,
            settings=self._settings,
        )
        return ReplicaFetcher(
            runtime=self._runtime,
            leader=leader,
            settings=self._settings,
            throttle=self._throttle,
            prefers_last_tiered=self._prefers_last_tiered,
            auxiliary=self._auxiliary,
        )
