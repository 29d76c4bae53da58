"""UUIDs as text, as Kafka writes them in files and in messages: 22 characters of URL-safe base64 (Kafka's Uuid)."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID

#: 16 bytes in base64 without padding.
TEXT_LENGTH = 22


def to_text(value: UUID) -> str:
    """Return Kafka's text of an id: 22 characters of base64.

    >>> to_text(UUID(int=1))
    'AAAAAAAAAAAAAAAAAAAAAQ'
    """
    return urlsafe_b64encode(value.bytes)[:TEXT_LENGTH].decode()


def from_text(text: str) -> UUID:
    """The reverse; raises ValueError.

    >>> from_text("AAAAAAAAAAAAAAAAAAAAAQ")
    UUID('00000000-0000-0000-0000-000000000001')
    """
    if len(text) > TEXT_LENGTH + 2:
        raise ValueError(f"{text!r} is longer than a UUID")
    value = urlsafe_b64decode(text.rstrip("=") + "==")
    if len(value) != 16:
        raise ValueError(f"{text!r} is not 16 bytes of base64")
    return UUID(bytes=value)
