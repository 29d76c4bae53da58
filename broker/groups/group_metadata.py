"""Group metadata records (GroupMetadataValue): a group to its record in the offsets topic and back.

Source: GroupCoordinatorRecordHelpers.newGroupMetadataRecord and ClassicGroup of Kafka 4.3.
"""

from collections.abc import Mapping

from ottla.broker.groups.config import GroupConfig
from ottla.broker.groups.group import ClassicGroup
from ottla.broker.groups.group_state import GroupState
from ottla.broker.groups.member import Member
from ottla.protocol.coordinator.group_records import GroupMetadataValue, MemberMetadata
from ottla.protocol.errors import MalformedMessage


def group_value(group: ClassicGroup, assignments: Mapping[str, bytes]) -> GroupMetadataValue:
    """The group's generation with these assignments; each member must have one."""
    return GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=-1 if group.state_timestamp_ms is None else group.state_timestamp_ms,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription(group.protocol_name),
                assignment=assignments[member.member_id],
            )
            for member in group.members.values()
        ],
    )


def new_group_value(group: ClassicGroup) -> GroupMetadataValue:
    """The record value of a group before its first generation."""
    timestamp = -1 if group.state_timestamp_ms is None else group.state_timestamp_ms
    return GroupMetadataValue(current_state_timestamp=timestamp)


def group_from_value(group_id: str, value: GroupMetadataValue, config: GroupConfig) -> ClassicGroup:
    """Restore the group of a record value: Stable if it has members, else Empty.

    The record has only the selected one of a member's protocols. A rejoining member names others, too, which counts
    as a change and rebalances the group. Raises MalformedMessage if two members have the same id or instance
    id; what else no coordinator writes (members without a protocol, a leader that is no member, a negative
    generation) is put right.
    """
    ids = [member.member_id for member in value.members]
    instances = [member.group_instance_id for member in value.members if member.group_instance_id is not None]
    if len(set(ids)) < len(ids) or len(set(instances)) < len(instances):
        raise MalformedMessage(f"group {group_id} has two members of one id")
    timestamp = value.current_state_timestamp
    group = ClassicGroup(
        group_id,
        config,
        state=GroupState.STABLE if value.members else GroupState.EMPTY,
        state_timestamp_ms=None if timestamp == -1 else timestamp,
        generation_id=max(value.generation, 0),
        protocol_type=value.protocol_type or None,
        protocol_name=(value.protocol or "") if value.members else value.protocol,
        leader_id=value.leader,
    )
    for stored in value.members:
        rebalance_timeout = stored.rebalance_timeout
        group.add(
            Member(
                member_id=stored.member_id,
                group_instance_id=stored.group_instance_id,
                client_id=stored.client_id,
                client_host=stored.client_host,
                rebalance_timeout_ms=stored.session_timeout if rebalance_timeout == -1 else rebalance_timeout,
                session_timeout_ms=stored.session_timeout,
                protocols=((value.protocol or "", bytes(stored.subscription)),),
                assignment=bytes(stored.assignment),
            )
        )
    if group.leader_id not in group.members:
        # The leader must be a member, or no join phase could end (`elect_joined_leader` looks it up).
        group.leader_id = next(iter(group.members), None)
    group.subscribed_topics = group.compute_subscribed_topics()
    return group
