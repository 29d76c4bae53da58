"""The services of one controller, as the handlers of its listener see them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from broker.channel import LeaderWatch, LocalController
from broker.config import BrokerConfig
from broker.metadata_cache import MetadataCache
from protocol.api_keys import ApiKey
from protocol.errors import KafkaError

#: The quorum's own requests: every node of the quorum answers them, whether it leads or not.
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

#: What only nodes of the cluster may ask: with an authorizer these need CLUSTER_ACTION on the cluster.
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
    """What a handler may touch."""

    node_id: int
    cluster_id: str
    #: This node's properties under what the metadata log has altered since.
    current_config: Callable[[], BrokerConfig]
    #: What is committed, as the broker's half of a combined node sees it, too.
    metadata: MetadataCache
    leader: LeaderWatch
    controller: LocalController
    #: The keys that `controller` decides, beside those of the quorum.
    decided: frozenset[int]
    #: The response to a request that was refused as a whole: (api_key, request, error).
    refuse: Callable[[int, Any, KafkaError], Any]

    @property
    def config(self) -> BrokerConfig:
        """The configuration in effect now. Cost: some milliseconds, once for each who asks."""
        return self.current_config()
