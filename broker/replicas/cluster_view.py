"""Other brokers as this broker's partitions see them: registration, fencing, epochs, from the metadata image.

Source: Kafka's Partition.isReplicaIsrEligible and MetadataCache.
"""

from collections.abc import Callable
from uuid import UUID

from ottla.broker.metadata_cache import MetadataCache
from ottla.replication.leader_state import NO_BROKER_EPOCH


class ClusterView:
    """The other brokers' registrations, fencing and epochs, for all partitions of this broker (metadata image)."""

    def __init__(
        self,
        metadata: MetadataCache,
        *,
        max_lag_ms: int,
        now_ms: Callable[[], int],
        reports_local_logs: bool = False,
    ) -> None:
        """`max_lag_ms`: replica.lag.time.max.ms; `now_ms`: the clock of fetches and appends.

        `reports_local_logs`: leaders' replica selectors ask for local log starts (KIP-392), whatever elections
        ask for.
        """
        self._metadata = metadata
        self.max_lag_ms = max_lag_ms
        self.now_ms = now_ms
        self.reports_local_logs = reports_local_logs

    def is_isr_eligible(self, broker_id: int, broker_epoch: int | None) -> bool:
        """Whether this incarnation of a broker may be in an ISR; without an epoch: the present incarnation."""
        broker = self._metadata.broker(broker_id)
        return broker is not None and broker.is_active and broker_epoch in (NO_BROKER_EPOCH, broker.epoch)

    def is_online(self, broker_id: int, directory: UUID) -> bool:
        """Whether this log directory of a broker is not known to be offline."""
        return self._metadata.is_online(broker_id, directory)

    def is_alive(self, broker_id: int) -> bool:
        """Whether the broker is registered and not fenced."""
        broker = self._metadata.broker(broker_id)
        return broker is not None and not broker.is_fenced

    def is_stale(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether the broker is known to have registered again, with a newer broker epoch."""
        broker = self._metadata.image.brokers.get(broker_id)
        return broker is not None and broker.epoch > broker_epoch
