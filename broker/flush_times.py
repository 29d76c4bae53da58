"""TimedFiles: the file system of a node with metrics, which observes how long each flush of a file takes.

A disk whose flushes take long delays the quorum's commits, and Produce where flush.messages is set.
"""

from collections.abc import Callable
from threading import Lock

from ottla.runtime.histogram import Histogram
from ottla.storage.files import Files


class TimedFiles(Files):
    """The operating system's file system, with the times of its flushes. [any thread]"""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = Lock()
        #: The times of all flushes of files and directories, also of those of the metadata log.
        self.times = Histogram()

    def fsync(self, fd: int) -> None:
        """Wait until the file's data is on the disk, and observe for how long."""
        began_s = self._monotonic()
        super().fsync(fd)
        took_ms = (self._monotonic() - began_s) * 1000
        with self._lock:
            self.times.observe(took_ms)
