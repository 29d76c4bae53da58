"""The services of one controller that the handlers of its listener use."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ottla.broker.membership.controller_channel import LeaderWatch, LocalController
from ottla.broker.metadata_cache import MetadataCache
from ottla.config.broker_config import BrokerConfig
from ottla.protocol.api_keys import ApiKey
from ottla.runtime import Runtime

#: The quorum's own requests: every node of the quorum handles them, the leader and the others.
QUORUM_REQUESTS: Final = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.FETCH_SNAPSHOT,
        ApiKey.VOTE,
        ApiKey.BEGIN_QUORUM_EPOCH,
        ApiKey.END_QUORUM_EPOCH,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
        ApiKey.UPDATE_RAFT_VOTER,
    }
)

#: Requests of nodes of the cluster only: with an authorizer these need CLUSTER_ACTION on the cluster.
NODE_REQUESTS: Final = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.FETCH_SNAPSHOT,
        ApiKey.VOTE,
        ApiKey.BEGIN_QUORUM_EPOCH,
        ApiKey.END_QUORUM_EPOCH,
        ApiKey.UPDATE_RAFT_VOTER,
        ApiKey.ENVELOPE,
        ApiKey.ALTER_PARTITION,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.CONTROLLER_REGISTRATION,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
    }
)


@dataclass(slots=True, kw_only=True)
class ControllerServices:
    """The services that a handler may use."""

    node_id: int
    cluster_id: str
    runtime: Runtime
    #: Returns this node's static properties, overridden by the dynamic configurations.
    current_config: Callable[[], BrokerConfig]
    #: The committed metadata; a combined node's broker role uses the same cache.
    metadata: MetadataCache
    leader: LeaderWatch
    controller: LocalController
    #: The API keys that `controller` handles, besides those of the quorum.
    controller_apis: frozenset[int]

    @property
    def config(self) -> BrokerConfig:
        """The effective configuration. Cost: two comparisons, or some milliseconds after a change."""
        return self.current_config()
