"""AlterPartitionReassignments (key 45): reassign partitions to other brokers, or cancel that (KIP-455).

Who asks: admin clients (kafka-reassign-partitions, cruise control).
Versions: v0-1. v1 allow_replication_factor_change (KIP-860).
Differs from Kafka: never throttles.
Touches: the controller.
"""

from ottla.broker.api import Api
from ottla.broker.api.forwarding import forward
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.refusals import refuse

API = Api(
    key=ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    versions=range(2),
    handle=forward,
    refuse=refuse,
    is_encoded_in_turns=True,
)
