"""The services of one broker that its API handlers use.

Source: the fields of kafka.server.KafkaApis and BrokerServer of Kafka 4.3.1.
"""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.broker.groups.coordinator import GroupCoordinator
from ottla.broker.membership.controller_channel import ControllerChannel
from ottla.broker.membership.lifecycle import BrokerLifecycle
from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.producer_ids import ProducerIdManager
from ottla.broker.replicas.reading.fetch_session_cache import FetchSessionCache
from ottla.broker.replicas.reading.preferred_read_replica import PreferredReadReplicas
from ottla.broker.replicas.replica_manager import ReplicaManager
from ottla.broker.telemetry.client_metrics import ClientMetrics
from ottla.broker.topic_creator import TopicCreator
from ottla.config.broker_config import BrokerConfig
from ottla.runtime import Runtime

if TYPE_CHECKING:
    # Imported only where it is enabled: `ottla.broker.node`.
    from ottla.broker.telemetry.series import ClientSeries
    from ottla.broker.tiering.remote_tier import RemoteTier


@dataclass(slots=True, kw_only=True)
class BrokerServices:
    """The services that a handler may use. `config` is replaced as a whole when a dynamic configuration changes."""

    node_id: int
    cluster_id: str
    runtime: Runtime
    config: BrokerConfig
    metadata: MetadataCache
    controller: ControllerChannel
    lifecycle: BrokerLifecycle
    replicas: ReplicaManager
    fetch_sessions: FetchSessionCache
    preferred_read_replicas: PreferredReadReplicas
    groups: GroupCoordinator
    producer_ids: ProducerIdManager
    topic_creator: TopicCreator
    client_metrics: ClientMetrics
    #: The series that clients have pushed; None: they are not exported.
    client_series: "ClientSeries | None"
    #: The remote tier; None: tiered storage is not enabled.
    remote: "RemoteTier | None"
    #: Held by the one long answer that is made (`ottla.broker.api.long_answers`).
    long_answers: asyncio.Lock = field(default_factory=asyncio.Lock)
