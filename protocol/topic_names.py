"""Topic names: the valid ones, and those of internal topics. Source: Topic.validate of Kafka 4.3.1."""

import re
from typing import Final

from ottla.protocol.errors import InvalidTopic

MAX_LENGTH: Final = 249
#: Topics of the brokers themselves (Kafka's internal topics).
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

#: The metadata of copies in the remote tier (KIP-405). Its readers find a partition's records by the number
#: of its partitions.
REMOTE_LOG_METADATA: Final = "__remote_log_metadata"

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raise InvalidTopic with the reason, unless `name` is a valid topic name.

    >>> check_topic_name("orders.v1")
    """
    if not name:
        raise InvalidTopic("A topic name must not be empty")
    if name in {".", ".."}:
        raise InvalidTopic(f"A topic name must not be {name!r}")
    if len(name) > MAX_LENGTH:
        raise InvalidTopic(
            f"A topic name must not be longer than {MAX_LENGTH} characters, this has {len(name)}"
        )
    if not _LEGAL.fullmatch(name):
        raise InvalidTopic(
            f"A topic name has only ASCII letters, digits, '.', '_' and '-': {name!r} has others"
        )
