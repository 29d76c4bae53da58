"""Topics of a consumer's subscription: the part of the embedded consumer protocol that a broker reads.

Version 0 of the subscription is a prefix of all later versions, so that it is enough to read v0.
Source: ConsumerProtocolSubscription v0.
"""

from struct import Struct

_VERSION_AND_COUNT = Struct(">hi")
_LENGTH = Struct(">h")

#: The protocol type of consumers; only their subscriptions can be read.
CONSUMER_PROTOCOL_TYPE = "consumer"


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics a member subscribes to; None if these bytes are not a subscription.

    >>> subscribed_topics(bytes.fromhex("0001 00000001 0003") + b"fox" + bytes(4)) == {"fox"}
    True
    """
    if len(subscription) < _VERSION_AND_COUNT.size:
        return None
    version, count = _VERSION_AND_COUNT.unpack_from(subscription)
    position = _VERSION_AND_COUNT.size
    # Each name takes at least two bytes: a false count is detected before anything is allocated.
    if version < 0 or count < 0 or count * _LENGTH.size > len(subscription) - position:
        return None
    topics = []
    for _ in range(count):
        if position + _LENGTH.size > len(subscription):
            return None
        (length,) = _LENGTH.unpack_from(subscription, position)
        position += _LENGTH.size
        name = subscription[position : position + length] if length >= 0 else b""
        if length < 0 or len(name) < length:
            return None
        topics.append(name.decode("utf-8", "replace"))
        position += length
    return frozenset(topics)
