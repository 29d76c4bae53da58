"""ListGroups (key 16): the groups that this broker coordinates.

Who asks: admin clients; sent to every broker.
Versions: v0-5. v4 states and their filter (KIP-518), v5 types and their filter (KIP-848).
Differs from Kafka: all groups are of the type "classic".
Touches: broker.groups (read only). Never waits.
"""

from broker.api import Api
from broker.request_context import RequestContext
from broker.services import BrokerServices
from protocol.api_keys import ApiKey
from protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse


def handle(request: ListGroupsRequest, context: RequestContext, broker: BrokerServices) -> ListGroupsResponse:
    """List the groups; filters ignore case."""
    return broker.groups.list_groups(request)


API = Api(key=ApiKey.LIST_GROUPS, versions=range(6), handle=handle)
