"""DeleteTopics (key 20): delete topics with all their records.

Who asks: admin clients.
Versions: v1-6. v3 TOPIC_DELETION_DISABLED, v4 flexible, v5 error messages, v6 topics by id.
Differs from Kafka: nothing known.
Touches: the controller; brokers delete the logs when the metadata record is committed.
"""

from ottla.broker.api import Api
from ottla.broker.api.forwarding import forward
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from ottla.protocol.refusals import refuse


async def handle(
    request: DeleteTopicsRequest, context: RequestContext, broker: BrokerServices
) -> DeleteTopicsResponse:
    """The controller's response, adapted to the version."""
    response = await forward(request, context, broker)
    assert isinstance(response, DeleteTopicsResponse), response
    return in_version(response, context.version)


def in_version(response: DeleteTopicsResponse, version: int) -> DeleteTopicsResponse:
    """Replace, in the response, errors that this version does not have."""
    if version < 3:
        for row in response.responses:
            if row.error_code == ErrorCode.topic_deletion_disabled:
                row.error_code = ErrorCode.invalid_request
    return response


API = Api(
    key=ApiKey.DELETE_TOPICS, versions=range(1, 7), handle=handle, refuse=refuse, is_encoded_in_turns=True
)
