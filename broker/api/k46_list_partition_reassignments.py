"""ListPartitionReassignments (key 46): ongoing reassignments, with adding and removing replicas (KIP-455).

Who asks: admin clients (kafka-reassign-partitions --list and --verify).
Versions: v0.
Differs from Kafka: nothing known.
Touches: the controller.
"""

from ottla.broker.api import Api
from ottla.broker.api.forwarding import forward
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.refusals import refuse

API = Api(
    key=ApiKey.LIST_PARTITION_REASSIGNMENTS,
    versions=range(1),
    handle=forward,
    refuse=refuse,
    is_encoded_in_turns=True,
)
