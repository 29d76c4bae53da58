"""A store that fails as a test says: it delays, refuses, loses the end of a body, or answers with another range.

    store = FaultyStore(LocalDirectory...)
    store.faults.append(Fault("segment", refuse(503)))          # the next read of a segment
    store.faults.append(Fault("segment", truncated(100), times=3))

Each call is noted in `calls`. In a simulation a delay is a pause of the reading thread's virtual time
(`slow_pool`); with a production runtime it blocks the thread.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import NamedTuple

from ottla.remote.errors import RemoteResourceNotFound, RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.storage_manager import IndexType, LogSegmentData, RemoteStorageManager, RemoteStream

#: What a fault applies to: "segment", "copy", "delete", or an index by its extension.
Operation = str
#: Gets the body of a read, and returns what is sent instead, or raises.
Effect = Callable[[bytes], bytes]


class Call(NamedTuple):
    """One call of the store."""

    operation: Operation
    metadata: RemoteLogSegmentMetadata
    start: int = 0
    end: int | None = None


@dataclass
class Fault:
    """The next `times` calls of an operation have an effect."""

    operation: Operation
    effect: Effect
    times: int = 1


def refuse(status: int) -> Effect:
    """An HTTP status as the stores report it."""
    errors = {
        403: RemoteStorageError("403 Forbidden"),
        404: RemoteResourceNotFound("404 Not Found"),
        503: RetriableRemoteStorageError("503 Slow Down"),
        504: RetriableRemoteStorageError("the read timed out"),
    }

    def effect(body: bytes) -> bytes:
        raise errors[status]

    return effect


def truncated(size: int) -> Effect:
    """The body ends after `size` bytes."""
    return lambda body: body[:size]


def flipped(at: int) -> Effect:
    """One bit of the body is another one."""
    return lambda body: body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


def from_elsewhere(body: bytes) -> Effect:
    """Another body: a wrong range, another object, an error page."""
    return lambda _: body


@dataclass
class FaultyStore(RemoteStorageManager):
    """A storage manager whose calls fail, wait or return damaged bodies as a test requests."""

    inner: RemoteStorageManager
    faults: list[Fault] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    #: Called in each call, in the calling thread.
    on_call: Callable[[Call], None] = lambda call: None

    def count(self, operation: Operation) -> int:
        """The number of calls of an operation."""
        return sum(call.operation == operation for call in self.calls)

    def configure(self, configs: Mapping[str, object]) -> None:
        self.inner.configure(configs)

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        effect = self._begin(Call("copy", metadata))
        custom = self.inner.copy_log_segment_data(metadata, data)
        effect(b"")  # a lost acknowledgement: the store has it nevertheless
        return custom

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, *, start_position: int, end_position: int | None = None
    ) -> RemoteStream:
        effect = self._begin(Call("segment", metadata, start_position, end_position))
        return _changed(
            self.inner.fetch_log_segment(metadata, start_position=start_position, end_position=end_position),
            effect,
        )

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> RemoteStream:
        effect = self._begin(Call(index_type.value, metadata))
        return _changed(self.inner.fetch_index(metadata, index_type), effect)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._begin(Call("delete", metadata))(b"")
        self.inner.delete_log_segment_data(metadata)

    def close(self) -> None:
        self.inner.close()

    def _begin(self, call: Call) -> Effect:
        self.calls.append(call)
        self.on_call(call)
        for fault in self.faults:
            if fault.operation == call.operation and fault.times:
                fault.times -= 1
                return fault.effect
        return lambda body: body


def _changed(stream: RemoteStream, effect: Effect) -> RemoteStream:
    body = bytearray()
    while data := stream.read():
        body += data
    stream.close()
    return BytesIO(effect(bytes(body)))
