"""Request context: the header and the client of a request, as a handler needs them beside the message."""

from dataclasses import dataclass
from typing import Final, Protocol

#: Name and version of the software of a client that has not stated them (KIP-511).
UNKNOWN_SOFTWARE: Final = ("unknown", "unknown")


#: The characters that are kept of a client's id, and of the name and version of its software. On the wire each may
#: have 32,767 bytes.
MAX_CLIENT_TEXT: Final = 250


class ClientConnection(Protocol):
    """The connection of a client, `ottla.broker.network.connection`, as handlers need it."""

    client_port: int
    #: Name and version of the client's software, of its last ApiVersions request.
    software: tuple[str, str]

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is sent to the client."""


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
    #: None for a request that another broker has forwarded.
    connection: ClientConnection | None = None
