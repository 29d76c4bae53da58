"""DeleteGroups (key 42): delete groups without members, and their committed offsets.

Who asks: admin clients (kafka-consumer-groups.sh --delete); sent to the groups' coordinator.
Versions: v0-3. v2 flexible, v3 an error message per group.
Differs from Kafka: nothing; the throttle time is 0.
Touches: ottla.broker.groups, the offsets topic. Waits for the replication of the tombstones.
Long requests take several turns of the loop.
"""

from collections.abc import Awaitable

from ottla.broker.api import Api
from ottla.broker.api.answering_each import answer_each
from ottla.broker.api.long_answers import when_all
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse


def handle(
    request: DeleteGroupsRequest, context: RequestContext, broker: BrokerServices
) -> DeleteGroupsResponse | Awaitable[DeleteGroupsResponse]:
    """Delete the groups; one row for each distinct name."""
    return answer_each(
        request.groups_names,
        broker.groups.delete,
        lambda answers: when_all(answers, lambda rows: DeleteGroupsResponse(results=rows), broker.runtime),
        broker,
        is_distinct=True,
    )


API = Api(key=ApiKey.DELETE_GROUPS, versions=range(4), handle=handle, is_encoded_in_turns=True)
