"""Requests that only the controller can carry out: a broker passes them on as they are (KIP-590)."""

from typing import Any

from broker.api import RequestContext
from broker.broker import Broker


async def forward(request: Any, context: RequestContext, broker: Broker) -> Any:  # noqa: ANN401 any message
    """The controller's answer to a client's request."""
    return await broker.controller.request(context.api_key, request, context)
