"""How this broker speaks with the active controller: in messages, as if it were on another machine."""

from typing import Any, Protocol

from broker.api import RequestContext


class ControllerChannel(Protocol):
    """One way to the active controller; the entry point binds it."""

    async def request(self, api_key: int, message: Any, context: RequestContext | None = None) -> Any:  # noqa: ANN401
        """Send a message and wait for the answer to it.

        `context` is the client's whose request is forwarded (KIP-590), None when the broker asks for
        itself. Records that the request committed are in this broker's image when the answer is there.
        """
