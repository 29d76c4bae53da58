"""The services of one broker that its API handlers use.

Source: the fields of kafka.server.KafkaApis and BrokerServer of Kafka 4.3.1.
"""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.config import BrokerConfig
from broker.groups.coordinator import GroupCoordinator
from broker.membership.controller_channel import ControllerChannel
from broker.membership.lifecycle import BrokerLifecycle
from broker.metadata_cache import MetadataCache
from broker.reads.fetch_session_cache import FetchSessionCache
from broker.reads.preferred_read_replica import PreferredReadReplicas
from broker.replicas.producer_ids import ProducerIdManager
from broker.replicas.replica_manager import ReplicaManager
from broker.topic_creator import TopicCreator
from runtime import Runtime

if TYPE_CHECKING:
    # Imported only where it is enabled: `broker.node`.
    from broker.tiering.remote_tier import RemoteTier


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
    #: None: tiered storage is not enabled.
    remote: "RemoteTier | None"
    #: Held by the one long answer that is made (`broker.api.long_answers`).
    long_answers: asyncio.Lock = field(default_factory=asyncio.Lock)
