"""The messages between a broker and its transfer process; `ottla.runtime.workers` carries them."""

import builtins
from collections.abc import Mapping
from dataclasses import dataclass

from ottla.remote import errors
from ottla.remote.errors import RemoteStorageError
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.storage_manager import LogSegmentData
from ottla.storage.segment_times import FileTimes, SegmentFile


@dataclass(slots=True, frozen=True, kw_only=True)
class Setup:
    """The class and settings of a worker's storage manager (`ottla.remote.plugins.load_storage_manager`)."""

    class_name: str | None
    class_path: str | None
    configs: Mapping[str, object]
    #: Whether the batches of a segment are checked before it is copied (`ottla.remote.checked_copies`).
    checks_batches: bool = True


@dataclass(slots=True, frozen=True, kw_only=True)
class CopyRequest:
    """The request to copy a segment. The worker asks with the size of each piece before it sends it.

    The answer has no value.
    """

    metadata: RemoteLogSegmentMetadata
    #: The files of the segment, without `on_bytes`.
    data: LogSegmentData


@dataclass(slots=True, frozen=True, kw_only=True)
class DeleteRequest:
    """The request to delete a copy from the store."""

    metadata: RemoteLogSegmentMetadata


@dataclass(slots=True, frozen=True, kw_only=True)
class TimesRequest:
    """The request to read the timestamps of a segment. The worker asks as for a copy, before each read."""

    segment: SegmentFile


@dataclass(slots=True, frozen=True, kw_only=True)
class Succeeded:
    """The result of a call: the custom metadata of a copy, times, or None."""

    value: bytes | FileTimes | None


@dataclass(slots=True, frozen=True, kw_only=True)
class Raised:
    """The exception that a call has raised, as names.

    Classes of a plugin's library need not be importable here.
    """

    module: str
    name: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> "Raised":
        """Return an exception as a message."""
        kind = type(error)
        for base in kind.__mro__:
            if base.__module__ == errors.__name__:
                kind = base  # a plugin's own subclass: it matters only whether it is retriable
                break
        return cls(module=kind.__module__, name=kind.__qualname__, text=str(error))

    def exception(self) -> Exception:
        """Return the exception of the same class, if that is Python's or `ottla.remote.errors`'s; else a
        RemoteStorageError.
        """
        module = {errors.__name__: errors, builtins.__name__: builtins}.get(self.module)
        kind = getattr(module, self.name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                return kind(self.text)
            except TypeError:
                pass  # as UnicodeDecodeError, which takes more than a text
        return RemoteStorageError(f"{self.module}.{self.name}: {self.text}")
