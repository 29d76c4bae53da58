"""What the broker and its transfer process say to each other; `ottla.runtime.workers` carries it."""

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
    """The storage manager of the worker: what `ottla.remote.plugins.load_storage_manager` gets."""

    class_name: str | None
    class_path: str | None
    configs: Mapping[str, object]
    #: Whether the batches of a segment are checked before it is copied (`ottla.remote.checked_copies`).
    checks_batches: bool = True


@dataclass(slots=True, frozen=True, kw_only=True)
class CopyRequest:
    """Copy a segment. The worker asks with the size of each piece before it sends it; the answer has no value."""

    metadata: RemoteLogSegmentMetadata
    #: Without `on_bytes`.
    data: LogSegmentData


@dataclass(slots=True, frozen=True, kw_only=True)
class DeleteRequest:
    """Delete a copy."""

    metadata: RemoteLogSegmentMetadata


@dataclass(slots=True, frozen=True, kw_only=True)
class TimesRequest:
    """Read the timestamps of a segment. The worker asks as for a copy, before each read."""

    segment: SegmentFile


@dataclass(slots=True, frozen=True, kw_only=True)
class Succeeded:
    """The call has returned this: the custom metadata of a copy, or times."""

    value: bytes | FileTimes | None


@dataclass(slots=True, frozen=True, kw_only=True)
class Raised:
    """The call has raised an exception. It crosses as names: classes of a plugin's library need not be importable here."""

    module: str
    name: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> "Raised":
        """The exception as a message."""
        kind = type(error)
        for base in kind.__mro__:
            if base.__module__ == errors.__name__:
                kind = base  # a plugin's own subclass: what matters is whether it is retriable
                break
        return cls(module=kind.__module__, name=kind.__qualname__, text=str(error))

    def exception(self) -> Exception:
        """The exception of the same class, if that is Python's or `ottla.remote.errors`'s; else a RemoteStorageError."""
        module = {errors.__name__: errors, builtins.__name__: builtins}.get(self.module)
        kind = getattr(module, self.name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                return kind(self.text)
            except TypeError:
                pass  # as UnicodeDecodeError, which takes more than a text
        return RemoteStorageError(f"{self.module}.{self.name}: {self.text}")
