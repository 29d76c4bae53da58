"""What a handler knows of a request besides its message: the header and the client."""

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
