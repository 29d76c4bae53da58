"""Groups: those of all brokers, and the coordinator, the members and the committed offsets of one."""

from typing import Final

from ottla.broker.cluster_client.client import ClusterClient
from ottla.broker.cluster_client.errors import check
from ottla.broker.network.client import Address
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from ottla.protocol.types import TopicPartition

#: Versions with several groups.
_FIND_COORDINATOR_VERSIONS: Final = range(4, 7)
#: Versions with several groups, and topics by name: 10 has topic ids.
_OFFSET_FETCH_VERSIONS: Final = range(8, 10)
#: The state of a group that the coordinator does not know; version 6 reports an error as well.
DEAD: Final = "Dead"


async def listed_groups(client: ClusterClient) -> dict[str, tuple[int, ListedGroup]]:
    """Return all groups by name, each with the id of the broker that coordinates it. Raises ClusterError."""

    async def attempt() -> dict[str, tuple[int, ListedGroup]]:
        found = {}
        for broker in (await client.metadata([])).brokers:
            address = (broker.host, broker.port)
            response = await client.request(address, ListGroupsRequest(), ListGroupsResponse)
            check(response.error_code, f"groups of broker {broker.node_id}")
            found.update({each.group_id: (broker.node_id, each) for each in response.groups})
        return found

    return await client.patiently(attempt)


async def coordinator_of(client: ClusterClient, group: str) -> Address:
    """Return the address of the group's coordinator. Raises Transient while there is none, ClusterError."""
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    response = await client.ask_any(request, FindCoordinatorResponse, versions=_FIND_COORDINATOR_VERSIONS)
    [found] = response.coordinators
    check(found.error_code, f"group {group}", found.error_message)
    return found.host, found.port


async def classic_group(client: ClusterClient, coordinator: Address, group: str) -> DescribedGroup:
    """Describe a group of the classic protocol; its state is DEAD if there is none. Raises ClusterError."""
    request = DescribeGroupsRequest(groups=[group])
    response = await client.request(coordinator, request, DescribeGroupsResponse)
    [found] = response.groups
    if found.error_code == ErrorCode.group_id_not_found:
        found.group_state = DEAD
    else:
        check(found.error_code, f"group {group}", found.error_message)
    return found


async def delete_group(client: ClusterClient, group: str) -> bool:
    """Delete a group if it exists; returns False, and leaves it, if it has members. Raises ClusterError."""
    coordinator = await coordinator_of(client, group)
    response = await client.request(
        coordinator, DeleteGroupsRequest(groups_names=[group]), DeleteGroupsResponse
    )
    [row] = response.results
    if row.error_code == ErrorCode.non_empty_group:
        return False
    if row.error_code != ErrorCode.group_id_not_found:
        check(row.error_code, f"group {group}")
    return True


async def committed_offsets(
    client: ClusterClient, coordinator: Address, group: str
) -> dict[TopicPartition, int]:
    """Return the committed offsets of a group; there are none of a group that does not exist. Raises ClusterError."""
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    response = await client.request(
        coordinator, request, OffsetFetchResponse, versions=_OFFSET_FETCH_VERSIONS
    )
    [found] = response.groups
    if found.error_code != ErrorCode.group_id_not_found:
        check(found.error_code, f"group {group}")
    return {
        TopicPartition(topic.name, row.partition_index): row.committed_offset
        for topic in found.topics
        for row in topic.partitions
        if not row.error_code and row.committed_offset >= 0
    }
