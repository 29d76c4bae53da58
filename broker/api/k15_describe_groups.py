"""DescribeGroups (key 15): state and members of groups.

Who asks: admin clients (kafka-consumer-groups.sh --describe); sent to the groups' coordinator.
Versions: v0-6. v3 authorized operations (KIP-430), v4 group instance ids, v6 GROUP_ID_NOT_FOUND for a
group that does not exist, which older versions report as Dead.
Differs from Kafka: a group that is named twice is described once; the throttle time is 0.
Touches: ottla.broker.groups (read only). Never waits; long requests take several turns.
"""

from collections.abc import Awaitable

from ottla.broker.api import Api
from ottla.broker.api import authorized_operations as operations
from ottla.broker.api.answering_each import answer_each
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)


def handle(
    request: DescribeGroupsRequest, context: RequestContext, broker: BrokerServices
) -> DescribeGroupsResponse | Awaitable[DescribeGroupsResponse]:
    """Return a row for each distinct name: a short request must not cause a multiple of a long response."""

    def describe(group_id: str) -> DescribedGroup:
        group = broker.groups.describe(group_id, version=context.version)
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = operations.GROUP
        return group

    return answer_each(
        request.groups,
        describe,
        lambda rows: DescribeGroupsResponse(groups=rows),
        broker,
        is_distinct=True,
    )


API = Api(key=ApiKey.DESCRIBE_GROUPS, versions=range(7), handle=handle, is_encoded_in_turns=True)
