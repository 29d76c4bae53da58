"""Request context: the header and the client of a request, as a handler needs them beside the message."""

from dataclasses import dataclass


@dataclass(slots=True)
class RequestContext:
    """The header of a request, and its client: what a handler needs besides the message; Kafka's RequestContext.

    Not modified after its creation; not frozen, because creating a frozen one takes three times as long.
    """

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    listener_name: str
    principal: str = "User:ANONYMOUS"
