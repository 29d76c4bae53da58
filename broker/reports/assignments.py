"""The assignment of a member of a classic group, as its consumer's assignor has encoded it."""

from ottla.protocol.codec import decode_struct
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from ottla.protocol.types import TopicPartition


def assigned_partitions(assignment: bytes) -> list[TopicPartition]:
    """The partitions in a member's assignment of the classic protocol; none if it is not that of a consumer."""
    try:
        version = int.from_bytes(assignment[:2], signed=True)
        last = ConsumerProtocolAssignment.__versions__.last or 0
        if len(assignment) < 2 or version < 0:
            return []
        found = decode_struct(ConsumerProtocolAssignment, min(version, last), assignment[2:])
    except KafkaError:
        return []
    return [
        TopicPartition(topic.topic, index)
        for topic in found.assigned_partitions
        for index in topic.partitions
    ]
