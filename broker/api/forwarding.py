"""Forwarding of requests that only the controller can carry out (KIP-590).

Source: ForwardingManager of Kafka 4.3.1.
"""

from typing import Any

from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices


async def forward(request: Any, context: RequestContext, broker: BrokerServices) -> Any:  # noqa: ANN401 any message
    """The controller's response to a client's request."""
    return await broker.controller.request(context.api_key, request, context)
