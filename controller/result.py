"""The result of a decision: records to append, and a response. Source: ControllerResult of Kafka 4.3.1."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ottla.metadata.records import MetadataRecord
from ottla.protocol.errors import PolicyViolation

R = TypeVar("R")

#: More records than this from one request of a user are refused; Kafka's MAX_RECORDS_PER_USER_OP.
MAX_RECORDS_PER_USER_OPERATION = 10_000


def check_record_count(count: int) -> None:
    """Raises PolicyViolation if this many records are too many for one request of a user."""
    if count > MAX_RECORDS_PER_USER_OPERATION:
        raise PolicyViolation("Unable to perform excessively large batch operation.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Generic[R]):
    """Records to append and replay, and the response that is sent once they are committed."""

    response: R
    records: Sequence[MetadataRecord] = field(default=())
    #: Whether the records must take effect together (one batch), or may be split into several.
    is_atomic: bool = True
    #: Called with the offset after the last record when they have been appended: for state that is not
    #: in the log, such as the offset that all others must have applied before a broker may shut down.
    on_appended: Callable[[int], None] | None = None
