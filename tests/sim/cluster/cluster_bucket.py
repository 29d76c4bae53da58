"""The object store of a simulated cluster: one bucket for all its brokers, outside of their machines (KIP-405).

    Bucket            objects in memory, which outlive every crash; a `Weather` says how calls fail
    BucketStorage     the storage manager of the nodes' configuration: the real layout of objects over that bucket

A call pauses its thread for virtual time, before and after it takes effect. So a process dies with half of a
copy stored, with all of it and without the response, or waits for a call that returns long after its
deadline. What the store has received of a process that dies meanwhile may take effect later. A broker never
lists objects, so stale lists are not simulated.
"""

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, fields
from functools import partial
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Protocol

from ottla.remote.errors import RemoteResourceNotFound, RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.storage_manager import IndexType, LogSegmentData, RemoteStream
from ottla.remote.stores.object_storage import ListedObject, ObjectStorage, Source, key_of
from ottla.runtime import Runtime
from ottla.storage.files import Files

#: For `remote.log.storage.manager.class.name`.
CLASS_NAME = "cluster_bucket.BucketStorage"


#: How long a silent call lasts.
SILENCE_S = 30.0
#: What a call may raise that is no error of a store. Not KeyboardInterrupt, by which a developer ends a simulation.
_CRASHES = (
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
    SystemExit,
    GeneratorExit,
    StopIteration,
    RuntimeError,
)


class Disk(Protocol):
    """The machine of a broker."""

    runtime: Runtime | None
    files: Files


@dataclass(kw_only=True)
class Weather:
    """The probabilities of the store's failures by kind: 0 never, 1 always. All of them stop with `clear`."""

    #: The service is not there: every call fails, some after a while.
    is_out: bool = False
    #: 503.
    refused: float = 0.0
    #: 403: not to be repeated.
    forbidden: float = 0.0
    #: The call has taken effect, and fails.
    unacknowledged: float = 0.0
    #: A body ends early.
    truncated: float = 0.0
    #: A call waits for `hang_s`, and goes on then.
    hanging: float = 0.0
    hang_s: float = 8.0
    #: A call raises what is no Exception, as the client of a store may that has a loop or a pool of its own.
    crashing: float = 0.0
    #: A call waits for `SILENCE_S`: for longer than all deadlines.
    silent: float = 0.0
    #: The store has the whole request, and carries it out a little later, whether its process still lives or not.
    late: float = 0.0
    #: The longest time until then: shorter than the deadline of a call.
    late_s: float = 2.0
    #: The longest time that other calls take.
    delay_s: float = 0.0

    def clear(self) -> None:
        """A store without faults."""
        for each in fields(self):
            setattr(self, each.name, each.default)


class Bucket:
    """The object store that all brokers share, with virtual time and faults."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.objects: dict[str, bytes] = {}
        #: Broker id -> the machine on which it runs.
        self.disks: Mapping[int, Disk] = {}
        self.weather = Weather()
        #: The simulation's; not known to the store, so that a call is never late.
        self.call_later: Callable[..., object] = lambda delay_s, effect, context: effect()
        #: Called before an object is removed, with its key.
        self.on_delete: Callable[[str], None] = lambda key: None
        #: How often each kind of failure has happened, and each operation.
        self.counts: dict[str, int] = {}

    @contextmanager
    def is_open(self) -> Iterator[None]:
        """The storage managers that are created meanwhile use this bucket."""
        _OPEN.append(self)
        try:
            yield
        finally:
            _OPEN.remove(self)

    # -- calls, in the threads of a broker -------------------------------------------------------------

    def put(self, runtime: Runtime, key: str, body: bytes) -> None:
        """Store an object, or replace it: all of it or nothing."""
        self._before("put", runtime)
        self._carry_out(runtime, lambda: self.objects.update({key: body}))
        self._after(runtime)

    def get(self, runtime: Runtime, key: str, start: int, end: int | None) -> bytes:
        """The bytes of an object, or the first ones of them."""
        self._before("get", runtime)
        if key not in self.objects:
            raise RemoteResourceNotFound(f"404: {key}")
        body = self.objects[key][start:end]
        self._after(runtime)
        if body and self._happens("truncated", self.weather.truncated):
            return body[: self._random.randrange(len(body))]
        return body

    def delete(self, runtime: Runtime, keys: Iterable[str]) -> None:
        """Delete objects one by one; a failure leaves the others."""
        for key in keys:
            if key in self.objects:
                self._before("delete", runtime)
                self._carry_out(runtime, partial(self._remove, key))
                self._after(runtime)

    def _remove(self, key: str) -> None:
        # Perhaps another call was faster.
        if key in self.objects:
            self.on_delete(key)
            del self.objects[key]

    def _carry_out(self, runtime: Runtime, effect: Callable[[], None]) -> None:
        if not self._happens("late", self.weather.late):
            effect()
            return
        delay_s = self._random.uniform(0, self.weather.late_s)
        pending = [effect]

        def take_effect() -> None:
            if pending:
                pending.pop()()

        # In no process: a callback of the caller's ends with that.
        self.call_later(delay_s, take_effect, context=Context())
        while pending:
            began_s = runtime.monotonic()
            runtime.pause_thread(delay_s)  # a pause may end early
            if runtime.monotonic() == began_s:
                take_effect()  # this call is made in one turn of the loop

    def _before(self, operation: str, runtime: Runtime) -> None:
        weather, draw = self.weather, self._random
        self.counts[operation] = self.counts.get(operation, 0) + 1
        if weather.is_out:
            runtime.pause_thread(draw.choice((0.0, 0.0, 0.3, 1.0)))
            self._fail("out", RetriableRemoteStorageError("no connection to the store"))
        if self._happens("crashing", weather.crashing):
            raise draw.choice(_CRASHES)("the client of the store has failed")
        if self._happens("silent", weather.silent):
            runtime.pause_thread(SILENCE_S)
        if self._happens("hanging", weather.hanging):
            runtime.pause_thread(weather.hang_s * draw.uniform(0.5, 1.5))
        else:
            runtime.pause_thread(draw.choice((0.0, 0.1, 1.0)) * weather.delay_s)
        if self._happens("refused", weather.refused):
            raise RetriableRemoteStorageError("503: slow down")
        if self._happens("forbidden", weather.forbidden):
            raise RemoteStorageError("403: forbidden")

    def _after(self, runtime: Runtime) -> None:
        runtime.pause_thread(self._random.choice((0.0, 0.1, 1.0)) * self.weather.delay_s)
        if self._happens("crashing", self.weather.crashing / 2):
            raise self._random.choice(_CRASHES)("the client of the store has failed, after the request")
        if self._happens("unacknowledged", self.weather.unacknowledged):
            kind = self._random.choice((RetriableRemoteStorageError, RemoteStorageError))
            raise kind("the connection was closed before the response")

    def _happens(self, kind: str, probability: float) -> bool:
        if not probability or self._random.random() >= probability:
            return False
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return True

    def _fail(self, kind: str, error: RemoteStorageError) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        raise error


#: One at most: worlds do not overlap.
_OPEN: list[Bucket] = []


class _Client:
    """One process's connection to the bucket: a `ottla.remote.stores.object_storage.ObjectStore`."""

    def __init__(self, bucket: Bucket, runtime: Runtime) -> None:
        self._bucket = bucket
        self._runtime = runtime

    def put(self, key: str, source: Source) -> None:
        """Implement the method of ObjectStore."""
        source.on_bytes(source.size_bytes)
        self._bucket.put(self._runtime, key, source.file.read(source.size_bytes))

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> RemoteStream:
        """Implement the method of ObjectStore."""
        return BytesIO(self._bucket.get(self._runtime, key, start, end))

    def delete(self, keys: Iterable[str]) -> None:
        """Implement the method of ObjectStore."""
        self._bucket.delete(self._runtime, keys)

    def list(self, prefix: str = "") -> Iterator[ListedObject]:
        """Implement the method of ObjectStore; no broker calls it."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing, since there is no connection."""


class BucketStorage(ObjectStorage):
    """A storage manager on the bucket. Segments are on disks in memory, and their files are read from there."""

    def configure(self, configs: Mapping[str, object]) -> None:
        """Implement the method of RemoteStorageManager."""
        [self._bucket] = _OPEN
        disk = self._bucket.disks[int(str(configs["broker.id"]))]
        assert disk.runtime is not None
        # Those of this process: the machine gets others with its next start.
        self._runtime, self._files = disk.runtime, disk.files

    def open_store(self) -> _Client:
        """Implement the method of ObjectStorage."""
        return _Client(self._bucket, self._runtime)

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> None:
        """Copy as the base class does, but the segment last."""
        files: dict[IndexType | None, Path | None] = {
            IndexType.OFFSET: data.offset_index,
            IndexType.TIMESTAMP: data.time_index,
            IndexType.TRANSACTION: data.transaction_index,
            IndexType.PRODUCER_SNAPSHOT: data.producer_snapshot,
            None: data.log_segment,
        }
        self._put(metadata, IndexType.LEADER_EPOCH, data.leader_epoch_index, data)
        for index_type, path in files.items():
            if path is not None:
                # Each when it is its turn: it may have been truncated meanwhile.
                self._put(metadata, index_type, self._files.read(path), data)

    def _put(
        self,
        metadata: RemoteLogSegmentMetadata,
        index_type: IndexType | None,
        body: bytes,
        data: LogSegmentData,
    ) -> None:
        size = metadata.segment_size_bytes if index_type is None else len(body)
        self.store.put(key_of(metadata, index_type), Source(BytesIO(body), size, data.on_bytes))
