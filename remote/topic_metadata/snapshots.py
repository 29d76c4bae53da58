"""Snapshots: the snapshots of all subscribers: read before they subscribe, written when it is due.

    changed by a tenth, or for SAVE_INTERVAL_S       --> the whole file
    no change, but the topic has other records       --> its header, every SAVE_INTERVAL_S and at the stop
    otherwise                                        --> nothing

So the cost grows with the changes, and a restart reads the records of the topic since the last save. States
are encoded on the loop, one in a turn, so that each is of one moment; the files are read and written in a thread.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import starmap
from logging import getLogger
from pathlib import Path
from typing import Final
from uuid import UUID

from ottla.remote.topic_metadata import snapshot
from ottla.remote.topic_metadata.snapshot import CorruptSnapshot, Header
from ottla.remote.topic_metadata.subscriber import Subscriber
from ottla.remote.topic_metadata.topic import Position
from ottla.runtime import Pool, Runtime
from ottla.runtime.turns import in_turns
from ottla.storage.files import Files

_LOG: Final = getLogger(__name__)

#: The maximum age of an unsaved change, and of a header.
SAVE_INTERVAL_S: Final = 600.0
#: The most files that are in memory at a time.
_FILES_AT_A_TIME: Final = 50
#: A state is saved when one in so many of its parts has changed.
_DUE_SHARE: Final = 10


@dataclass(slots=True, frozen=True, kw_only=True)
class _Saved:
    """The snapshot of a subscriber that is on the disk."""

    path: Path
    header: Header
    saved_at: float


@dataclass(slots=True, frozen=True, kw_only=True)
class _Job:
    """A file to be written: whole, or its header only."""

    subscriber: Subscriber
    saved: _Saved
    data: bytes | None
    #: The subscriber's `unsaved_count` at the time of encoding.
    change_count: int


class Snapshots:
    """Reads and writes the snapshots of subscribers. Belongs to the event loop; one `save` at a time."""

    def __init__(
        self, runtime: Runtime, files: Files, directory: Callable[[Subscriber], Path | None]
    ) -> None:
        """`directory`: where a subscriber's file lies; None: nowhere, or it is not available."""
        self._runtime = runtime
        self._files = files
        self._directory = directory
        #: The last snapshots of all subscribers; None: nothing is on the disk.
        self._saved: dict[Subscriber, _Saved | None] = {}

    async def load(self, subscribers: Sequence[Subscriber], metadata_topic_id: UUID) -> None:
        """Give each subscriber the state of its snapshot and the offset behind it, if it has one of this topic."""
        self._saved |= dict.fromkeys(subscribers)
        for at in range(0, len(subscribers), _FILES_AT_A_TIME):
            some = subscribers[at : at + _FILES_AT_A_TIME]
            paths = [self._path(each) for each in some]
            contents = await self._runtime.run_blocking(self._read, paths, pool=Pool.LOGS)
            steps = zip(some, paths, contents, strict=True)
            await in_turns(self._runtime, starmap(partial(self._restore, metadata_topic_id), steps))

    def _path(self, subscriber: Subscriber) -> Path | None:
        directory = self._directory(subscriber)
        return None if directory is None else directory / subscriber.file_name

    def _read(self, paths: Sequence[Path | None]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for path in paths:
            try:
                found.append(None if path is None else snapshot.read(path, self._files))
            except OSError as error:
                _LOG.info("%s cannot be read: %s", path, error)
                found.append(None)
        return found

    def _restore(
        self, metadata_topic_id: UUID, subscriber: Subscriber, path: Path | None, content: bytes | None
    ) -> None:
        if content is None or path is None or subscriber not in self._saved:
            return
        try:
            header = snapshot.restore(subscriber, content, metadata_topic_id=metadata_topic_id)
        except CorruptSnapshot as error:
            _LOG.info("%s is not used: %s", path, error)
            return
        self._saved[subscriber] = _Saved(path=path, header=header, saved_at=self._runtime.monotonic())

    def forget(self, subscriber: Subscriber) -> None:
        """Forget a subscriber that has unsubscribed. The file stays; it is removed with the log's folder."""
        self._saved.pop(subscriber, None)

    def next_offset(self, subscriber: Subscriber) -> int | None:
        """Return the offset at which a restart continues to read for a subscriber; None: it has no snapshot."""
        saved = self._saved.get(subscriber)
        return None if saved is None else saved.header.next_offset

    async def save(
        self,
        subscribers: Sequence[Subscriber],
        *,
        position: Callable[[Subscriber], Position | None],
        metadata_topic_id: UUID,
        is_last: bool = False,
    ) -> None:
        """Write the snapshots that are due; if it `is_last`, all that are not on the disk.

        `position` returns the position before which everything is applied; None: not now. It is called in the
        turn in which the state is encoded. Failures are logged, and tried again the next time.
        """
        for at in range(0, len(subscribers), _FILES_AT_A_TIME):
            jobs: list[_Job] = []
            some = subscribers[at : at + _FILES_AT_A_TIME]
            steps = self._encode_due(some, position, metadata_topic_id, is_last=is_last, jobs=jobs)
            await in_turns(self._runtime, steps)
            if not jobs:
                await asyncio.sleep(0)
                continue
            for job in await self._runtime.run_blocking(self._write, jobs, pool=Pool.UPKEEP):
                job.subscriber.unsaved_count -= job.change_count
                if not job.subscriber.unsaved_count:
                    job.subscriber.unsaved_since = None
                if job.subscriber in self._saved:  # not forgotten meanwhile
                    self._saved[job.subscriber] = job.saved

    def _encode_due(
        self,
        subscribers: Sequence[Subscriber],
        position: Callable[[Subscriber], Position | None],
        metadata_topic_id: UUID,
        *,
        is_last: bool,
        jobs: list[_Job],
    ) -> Iterator[None]:
        for each in subscribers:
            path, reached = self._path(each), position(each)
            if path is not None and reached is not None:
                job = self._due(each, path, reached, metadata_topic_id, is_last=is_last)
                if job is not None:
                    jobs.append(job)
            yield

    def _due(
        self,
        subscriber: Subscriber,
        path: Path,
        position: Position,
        metadata_topic_id: UUID,
        *,
        is_last: bool,
    ) -> _Job | None:
        """Return the file to write for one subscriber, whole or its header only; None: nothing is due."""
        now = self._runtime.monotonic()
        saved, count = self._saved.get(subscriber), subscriber.unsaved_count
        if count and subscriber.unsaved_since is None:
            subscriber.unsaved_since = now
        if saved is None or saved.path != path or saved.header.metadata_topic_id != metadata_topic_id:
            is_whole = True
        else:
            since = now if subscriber.unsaved_since is None else subscriber.unsaved_since
            is_urgent = count * _DUE_SHARE >= len(subscriber) or now - since >= SAVE_INTERVAL_S
            is_whole = count > 0 and (is_last or is_urgent)
        if is_whole:
            header, data = snapshot.encode(subscriber, metadata_topic_id=metadata_topic_id, position=position)
            written = _Saved(path=path, header=header, saved_at=now)
            return _Job(subscriber=subscriber, saved=written, data=data, change_count=count)
        assert saved is not None, path
        is_old = is_last or now - saved.saved_at >= SAVE_INTERVAL_S
        if count or not is_old or position.offset <= saved.header.next_offset:
            return None
        header = replace(saved.header, next_offset=position.offset, last_epoch=position.last_epoch)
        written = replace(saved, header=header, saved_at=now)
        return _Job(subscriber=subscriber, saved=written, data=None, change_count=0)

    def _write(self, jobs: Sequence[_Job]) -> list[_Job]:
        """Write the files, and return the jobs that succeeded. [a thread]"""
        written = []
        for job in jobs:
            try:
                if job.data is not None:
                    snapshot.write(job.saved.path, job.data, self._files)
                else:
                    snapshot.write_header(job.saved.path, job.saved.header, self._files)
            except OSError as error:  # the folder may have been removed or renamed meanwhile
                _LOG.info("%s is not written: %s", job.saved.path, error)
            else:
                written.append(job)
        return written
