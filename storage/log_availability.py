"""LogAvailability: whether a log can be used. A failing disk takes the log offline, and its directory with it.

    open ---- I/O error here, or of another log of the directory ----> offline: every write is refused
      |
      +------ close, or the log is deleted --------------------------> closed

Source: LogDirFailureChannel and UnifiedLog.maybeHandleIOException of Kafka 4.3.1.
"""

from collections.abc import Callable
from logging import getLogger
from pathlib import Path
from typing import Final

from ottla.protocol.errors import KafkaStorageError
from ottla.storage.files import OutOfDescriptors, is_out_of_descriptors

_LOG = getLogger(__name__)


#: When an operation is repeated for which no descriptor was free, and that nothing else would repeat, in seconds.
DESCRIPTORS_RETRY_S: Final = 1.0


class TooManyOpenFiles(KafkaStorageError):
    """No descriptor is free for a log's file. The log is online and unchanged: the operation may be repeated."""


class LogAvailability:
    """Whether a log can be used: it is open, and its directory is online.

    As a context manager it turns an OSError of its block into a disk failure of the log (`failed`).
    The block is not entered if the log is offline.
    """

    __slots__ = ("_failure", "_on_io_error", "directory", "is_closed", "is_writable")

    def __init__(self, directory: Path, *, on_io_error: Callable[[OSError], None]) -> None:
        #: The log's directory, for messages; `Log.rename_directory` changes it.
        self.directory = directory
        self.is_closed = False
        #: Whether the log is open and its directory online.
        self.is_writable = True
        self._failure: OSError | None = None
        self._on_io_error = on_io_error

    def __enter__(self) -> None:
        if self._failure is not None:
            raise self.unavailable()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise self.failed(error) from error

    def close(self) -> None:
        """Refuse all writes from now on: the log is closed."""
        self.is_closed = True
        self.is_writable = False

    def take_offline(self, error: OSError) -> None:
        """The directory has failed, perhaps with another log: refuse all writes from now on. [any thread]"""
        self._failure = error
        self.is_writable = False

    def failed(self, error: OSError) -> KafkaStorageError:
        """Handle a disk failure: the log refuses further writes, and the LogManager is notified. [any thread]

        An OutOfDescriptors is none: nothing was written.
        """
        if isinstance(error, OutOfDescriptors):
            return TooManyOpenFiles(f"{self.directory}: {error}")
        if self._failure is None:
            self.take_offline(error)
            _LOG.error("%s is offline: %s", self.directory, error)
            self._on_io_error(error)
        return KafkaStorageError(f"{self.directory}: {error}")

    def read_failed(self, error: OSError) -> KafkaStorageError:
        """The error of a failed read: a disk failure, unless the log is closed or the file was deleted. [any thread]"""
        if self.is_closed or isinstance(error, FileNotFoundError):
            return KafkaStorageError(f"{self.directory}: {error}")
        if is_out_of_descriptors(error):
            return TooManyOpenFiles(f"{self.directory}: {error}")
        return self.failed(error)

    def guard_reading(self, run: Callable[[], None]) -> Callable[[], None]:
        """Wrap `run` for a thread: an OSError is handled by `read_failed`, as the log may be deleted meanwhile."""

        def guarded() -> None:
            try:
                run()
            except OSError as error:
                raise self.read_failed(error) from error

        return guarded

    def unavailable(self) -> KafkaStorageError:
        """The error of a write to a log that is closed or offline."""
        reason = "the log is closed" if self.is_closed else f"the log is offline: {self._failure}"
        return KafkaStorageError(f"{self.directory}: {reason}")
