"""JSON files of one object, as Kafka writes a few of them: `quorum-state`, `.kafka_cleanshutdown`."""

import json
from typing import Any


def parse(data: bytes) -> dict[str, Any]:
    """The object. Raises ValueError for any other bytes.

    >>> parse(b'{"brokerEpoch": 7}')
    {'brokerEpoch': 7}
    """
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError(f"{len(data)} bytes with too many arrays or objects in each other") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 (the bytes are wrong, not a type of ours)
    return found
