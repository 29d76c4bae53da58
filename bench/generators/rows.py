"""Rows that the tasks of a phase yield: of one schema, a few a second for each client, none for a record.

A row is of one kind; columns of other kinds are null.

second   what a client did in one second of the phase: records, bytes, errors and a histogram of latencies
stream   what one client knows of the records that one producer sent to one partition
broker   the bytes that a client exchanged with one broker
client   a client as a whole: when it began and ended, its processor time; of a paced producer, how late it sent
error    an error with its text, once for each text
"""

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Final

#: The schema in Spark's own language. The driver adds target, run and phase.
SCHEMA: Final = (
    "kind string, client string, role string, topic string, partition int, second int, records long, "
    "payload_bytes long, errors long, latency binary, stream string, first_sequence long, next_sequence long, "
    "distinct_records long, duplicates long, out_of_order long, corrupt long, broker int, received_bytes long, "
    "sent_bytes long, begin_s double, end_s double, cpu_s double, text string"
)


class Kind(StrEnum):
    """The kind of a row: a second, a stream, a broker, a client, or an error."""

    SECOND = "second"
    STREAM = "stream"
    BROKER = "broker"
    CLIENT = "client"
    ERROR = "error"


class Role(StrEnum):
    """The kind of client that yields a row.

    A producer's latency is from when a record was due until it is acknowledged; a consumer's until it is
    delivered.
    """

    PRODUCER = "producer"
    CONSUMER = "consumer"
    CONNECTIONS = "connections"
    JOB = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a client's report; fields in the order of SCHEMA."""

    kind: Kind
    #: The client's name, unique in the phase: `producer-0-1` is the second one of the first group.
    client: str
    role: Role
    topic: str | None = None
    partition: int | None = None
    #: The second of the acknowledgement or delivery, in whole seconds since the phase began.
    second: int | None = None
    records: int | None = None
    payload_bytes: int | None = None
    errors: int | None = None
    #: An HdrHistogram of microseconds, 1 us to 1 h, three digits, in its V2 compressed encoding (not base64).
    #: Of a row of a client: from when records were due until they were handed to the library.
    latency: bytes | None = None
    #: The producer's client name, with the run and the phase in it, so that no other one has it.
    stream: str | None = None
    #: Of a producer: the first sequence, and one after the last that was acknowledged. Of a consumer: the
    #: range that it has seen.
    first_sequence: int | None = None
    next_sequence: int | None = None
    #: Of a producer: the number of acknowledged records. Of a consumer: the number of records seen at least
    #: once.
    distinct_records: int | None = None
    duplicates: int | None = None
    out_of_order: int | None = None
    corrupt: int | None = None
    broker: int | None = None
    received_bytes: int | None = None
    sent_bytes: int | None = None
    #: The time of the client's start, in seconds since the epoch.
    begin_s: float | None = None
    end_s: float | None = None
    cpu_s: float | None = None
    text: str | None = None

    def values(self) -> tuple[object, ...]:
        """Return the values for a DataFrame of SCHEMA."""
        return tuple(asdict(self).values())


assert [field.name for field in fields(Row)] == [column.split()[0] for column in SCHEMA.split(", ")]
