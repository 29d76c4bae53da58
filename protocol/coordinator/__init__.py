"""CoordinatorRecord: records of the coordinators' own topics.

| topic | modules |
|---|---|
| `__consumer_offsets` | `group_records`, with the codec `record_codec`; `newer_groups`, for tools that only read them |
| `__transaction_state` | `transaction_records` |
| `__share_group_state` | `share_state_records` |

A record's key starts with the number of its kind (int16; Kafka's CoordinatorRecordType), its value with the version of
its schema (int16); a null value is a tombstone. Keys have no schema version, so that compaction sees one key for one
entity; the value's version grows with Kafka.
"""

from struct import Struct
from typing import Final

from ottla.protocol.errors import MalformedMessage

#: What each key and each value starts with.
PREFIX: Final = Struct(">h")


def split_prefix(data: bytes | memoryview, topic: str) -> tuple[int, memoryview]:
    """The number that a key or value of `topic` starts with, and what follows it. Raises MalformedMessage."""
    if len(data) < PREFIX.size:
        raise MalformedMessage(f"a record of {topic} is shorter than its prefix")
    view = memoryview(data)
    return PREFIX.unpack_from(view)[0], view[PREFIX.size :]
