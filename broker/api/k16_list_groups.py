"""ListGroups (key 16): the groups that this broker coordinates.

Who asks: admin clients; sent to every broker.
Versions: v0-5. v4 states and their filter (KIP-518), v5 types and their filter (KIP-848).
Differs from Kafka: all groups are of the type "classic".
Touches: ottla.broker.groups (read only). Waits for nothing; a long response is encoded in turns of the loop.
"""

from collections.abc import Awaitable, Generator

from ottla.broker.api import Api
from ottla.broker.api.long_answers import ROWS_OF_STEP, at_once_or_in_turns, distinct
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse


def handle(
    request: ListGroupsRequest, context: RequestContext, broker: BrokerServices
) -> ListGroupsResponse | Awaitable[ListGroupsResponse]:
    """List the groups; filters ignore case."""
    return at_once_or_in_turns(_list(request, broker), broker.runtime, broker.long_answers)


def _list(request: ListGroupsRequest, broker: BrokerServices) -> Generator[None, None, ListGroupsResponse]:
    states = yield from distinct(request.states_filter, _state)
    types = yield from distinct(request.types_filter, str.lower)
    response = broker.groups.list_groups(states, types)
    if len(response.groups) > ROWS_OF_STEP:
        yield  # the response is encoded in turns
    return response


def _state(name: str) -> str:
    return name.strip().lower()


API = Api(key=ApiKey.LIST_GROUPS, versions=range(6), handle=handle, is_encoded_in_turns=True)
