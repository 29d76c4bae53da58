"""The snapshots of all assigned user partitions: read when they are assigned, written when it is due.

    changed by a tenth, or for SAVE_INTERVAL_S       --> the whole file
    no change, but the topic has other records       --> its header, every SAVE_INTERVAL_S and at the stop
    otherwise                                        --> nothing

So the cost grows with what changes, and a restart reads what the topic got since the last save. Caches are encoded on the
loop, one in a turn, so that each is of one moment; the files are read and written in a thread.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import starmap
from logging import getLogger
from pathlib import Path
from typing import Final
from uuid import UUID

from remote.segment_metadata import TopicIdPartition
from remote.topic_metadata import snapshot
from remote.topic_metadata.snapshot import CorruptSnapshot, Header
from remote.topic_metadata.subscriber import UserPartition
from runtime import Pool, Runtime
from runtime.turns import in_turns
from storage.files import Files

_LOG: Final = getLogger(__name__)

#: The maximum age of an unsaved change, and of a header.
SAVE_INTERVAL_S: Final = 600.0
#: How many files are in memory at a time.
_FILES_AT_A_TIME: Final = 50
#: A cache is saved when one in so many of its copies has changed.
_DUE_SHARE: Final = 10


@dataclass(slots=True, frozen=True, kw_only=True)
class _Saved:
    """What is on the disk."""

    directory: Path
    header: Header
    saved_at: float


@dataclass(slots=True, frozen=True, kw_only=True)
class _Job:
    """A file to be written: whole, or its header only."""

    user_partition: UserPartition
    saved: _Saved
    data: bytes | None
    #: `unsaved_count` when it was encoded.
    change_count: int


class Snapshots:
    """See the module. Belongs to the event loop; one `save` at a time."""

    def __init__(
        self, runtime: Runtime, files: Files, directory: Callable[[TopicIdPartition], Path | None]
    ) -> None:
        """`directory`: the folder of a partition's log; None: it has none on this broker, or it is not available."""
        self._runtime = runtime
        self._files = files
        self._directory = directory
        #: Of all assigned user partitions; None: nothing is on the disk.
        self._saved: dict[UserPartition, _Saved | None] = {}

    async def load(self, user_partitions: Sequence[UserPartition], metadata_topic_id: UUID) -> None:
        """Give each one the cache of its snapshot and the offset behind it, if it has a snapshot of this topic."""
        self._saved |= dict.fromkeys(user_partitions)
        for at in range(0, len(user_partitions), _FILES_AT_A_TIME):
            some = user_partitions[at : at + _FILES_AT_A_TIME]
            directories = [self._directory(each.partition) for each in some]
            contents = await self._runtime.run_blocking(self._read, directories, pool=Pool.LOGS)
            steps = zip(some, directories, contents, strict=True)
            await in_turns(self._runtime, starmap(partial(self._restore, metadata_topic_id), steps))

    def _read(self, directories: Sequence[Path | None]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for directory in directories:
            try:
                found.append(None if directory is None else snapshot.read(directory, self._files))
            except OSError as error:
                _LOG.info("%s in %s cannot be read: %s", snapshot.FILE_NAME, directory, error)
                found.append(None)
        return found

    def _restore(
        self,
        metadata_topic_id: UUID,
        user_partition: UserPartition,
        directory: Path | None,
        content: bytes | None,
    ) -> None:
        if content is None or directory is None or user_partition not in self._saved:
            return
        try:
            header, cache = snapshot.decode(content, user_partition.partition)
        except CorruptSnapshot as error:
            _LOG.info("%s in %s is not used: %s", snapshot.FILE_NAME, directory, error)
            return
        if header.metadata_topic_id != metadata_topic_id:
            _LOG.info("%s in %s is of a former metadata topic", snapshot.FILE_NAME, directory)
            return
        user_partition.cache, user_partition.next_offset = cache, header.next_offset
        self._saved[user_partition] = _Saved(
            directory=directory, header=header, saved_at=self._runtime.monotonic()
        )

    def forget(self, user_partition: UserPartition) -> None:
        """It is not assigned any more. The file goes with the log's folder."""
        self._saved.pop(user_partition, None)

    def next_offset(self, user_partition: UserPartition) -> int | None:
        """Where a restart continues to read for this partition; None: it has no snapshot."""
        saved = self._saved.get(user_partition)
        return None if saved is None else saved.header.next_offset

    async def save(
        self,
        user_partitions: Sequence[UserPartition],
        *,
        position: Callable[[UserPartition], tuple[int, int] | None],
        metadata_topic_id: UUID,
        is_last: bool = False,
    ) -> None:
        """Write what is due; everything that is not on the disk if it `is_last`.

        `position`: the metadata partition, and the offset before which everything is applied; None: not now. It is
        asked for in the turn in which the cache is encoded. Failures are logged, and tried again the next time.
        """
        jobs: list[_Job] = []
        for at in range(0, len(user_partitions), _FILES_AT_A_TIME):
            some = user_partitions[at : at + _FILES_AT_A_TIME]
            jobs.clear()
            await in_turns(
                self._runtime,
                self._encode_due(some, position, metadata_topic_id, is_last=is_last, jobs=jobs),
            )
            if not jobs:
                continue
            written = await self._runtime.run_blocking(self._write, tuple(jobs), pool=Pool.UPKEEP)
            for job in written:
                job.user_partition.unsaved_count -= job.change_count
                if not job.user_partition.unsaved_count:
                    job.user_partition.unsaved_since = None
                if job.user_partition in self._saved:  # not forgotten meanwhile
                    self._saved[job.user_partition] = job.saved

    def _encode_due(
        self,
        user_partitions: Sequence[UserPartition],
        position: Callable[[UserPartition], tuple[int, int] | None],
        metadata_topic_id: UUID,
        *,
        is_last: bool,
        jobs: list[_Job],
    ) -> Iterator[None]:
        for each in user_partitions:
            directory, at = self._directory(each.partition), position(each)
            if directory is not None and at is not None:
                job = self._due(each, directory, at, metadata_topic_id, is_last=is_last)
                if job is not None:
                    jobs.append(job)
            yield

    def _due(
        self,
        user_partition: UserPartition,
        directory: Path,
        at: tuple[int, int],
        metadata_topic_id: UUID,
        *,
        is_last: bool,
    ) -> _Job | None:
        now = self._runtime.monotonic()
        number, next_offset = at
        saved, count = self._saved.get(user_partition), user_partition.unsaved_count
        since = user_partition.unsaved_since
        if count and since is None:
            since = user_partition.unsaved_since = now
        is_whole = (
            saved is None
            or saved.directory != directory
            or saved.header.metadata_topic_id != metadata_topic_id
            or (
                count > 0
                and (
                    is_last
                    or count * _DUE_SHARE >= len(user_partition.cache)
                    or (since is not None and now - since >= SAVE_INTERVAL_S)
                )
            )
        )
        if is_whole:
            header, data = snapshot.encode(
                user_partition.cache,
                metadata_topic_id=metadata_topic_id,
                topic_id=user_partition.partition.topic_id,
                metadata_partition=number,
                next_offset=next_offset,
            )
            written = _Saved(directory=directory, header=header, saved_at=now)
            return _Job(user_partition=user_partition, saved=written, data=data, change_count=count)
        assert saved is not None, user_partition.partition
        is_old = next_offset > saved.header.next_offset and (
            is_last or now - saved.saved_at >= SAVE_INTERVAL_S
        )
        if count or not is_old:
            return None
        written = replace(saved, header=replace(saved.header, next_offset=next_offset), saved_at=now)
        return _Job(user_partition=user_partition, saved=written, data=None, change_count=0)

    def _write(self, jobs: Sequence[_Job]) -> list[_Job]:
        """Those that were written. [a thread]"""
        written = []
        for job in jobs:
            try:
                if job.data is not None:
                    snapshot.write(job.saved.directory, job.data, self._files)
                else:
                    snapshot.write_header(job.saved.directory, job.saved.header, self._files)
            except OSError as error:  # the folder may have been removed or renamed meanwhile
                _LOG.info("%s of %s is not written: %s", snapshot.FILE_NAME, job.saved.directory, error)
            else:
                written.append(job)
        return written
