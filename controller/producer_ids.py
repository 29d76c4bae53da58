"""AllocateProducerIds: blocks of producer ids for brokers, each id allocated once in a cluster (KIP-730).

Source: ProducerIdControlManager of Kafka 4.3.1.
"""

from ottla.controller.result import Result
from ottla.controller.state import ClusterState
from ottla.metadata.records import ProducerIdsRecord
from ottla.protocol.errors import UnknownServerError
from ottla.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)

BLOCK_SIZE = 1_000
_MAX_PRODUCER_ID = 2**63 - 1


def allocate(state: ClusterState, request: AllocateProducerIdsRequest) -> Result[AllocateProducerIdsResponse]:
    """The next block for a registered broker. Raises StaleBrokerEpoch."""
    state.check_broker_epoch(request.broker_id, request.broker_epoch)
    first = state.image.next_producer_id
    if first > _MAX_PRODUCER_ID - BLOCK_SIZE:
        raise UnknownServerError("All producer ids have been allocated.")
    return Result(
        response=AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=BLOCK_SIZE),
        records=[
            ProducerIdsRecord(
                broker_id=request.broker_id,
                broker_epoch=request.broker_epoch,
                next_producer_id=first + BLOCK_SIZE,
            )
        ],
    )
