"""Forwarding of requests that only the controller can carry out (KIP-590).

Source: ForwardingManager of Kafka 4.3.1.
"""

from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.schema import Request, Response


async def forward(request: Request, context: RequestContext, broker: BrokerServices) -> Response:
    """The controller's response to a client's request."""
    response: Response = await broker.controller.request(context.api_key, request, context)
    return response
