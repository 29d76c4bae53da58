"""RemoteRestart: a log continues behind the remote part of its leader's log, without copying that part (KIP-405).

    before   [ local, or empty, perhaps of another branch )
    after    [ == remote == )[ empty           epochs and producer state at `offset`: those of the last copy
             ^ log start     ^ offset = local log start = log end

It is a truncation of everything that takes over the leader epochs and the producer state, so that this replica
can lead: it knows the lineage of the remote part, recognises a batch that a producer sends again, and refuses a gap.

Both come from the store, and are files of the log afterwards. They are written in a job (`next_job`), and only
renamed on the event loop's thread. The order of the changes makes each state in between one that the next start
handles:

    1. the checkpoints are moved back                the old log, of which more is checked
    2. both files are written under temporary names  the old log: the files are removed
    3. old segments go, the newest first             the old log, truncated
    4. both files are put in place                   an empty log at the checkpointed start: the follower begins again
    5. the segment at `offset` is created            done

A journal keeps renames and creations in their order; the contents of 2 are flushed.

Source: TierStateMachine.buildRemoteLogAuxState of Kafka 4.3.1, which truncates first, and after a crash continues with
the epochs and producers of neither log.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ottla.storage import leader_epoch_cache, producer_snapshot
from ottla.storage.background import BackgroundJob
from ottla.storage.leader_epoch_cache import EpochEntry, LeaderEpochCache
from ottla.storage.log_availability import LogAvailability
from ottla.storage.log_files import LogFiles
from ottla.storage.producer_append import ProducerState
from ottla.storage.producer_snapshot import CorruptSnapshot
from ottla.storage.producer_state import ProducerStateManager
from ottla.storage.truncation import LogTruncation

_SUFFIX: Final = ".remote.tmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteState:
    """The leader epochs and producer state that a log takes over from the remote copy that ends at `offset`."""

    offset: int
    #: The log start offset of the leader.
    log_start_offset: int
    #: The leader epochs of the offsets [log_start_offset, offset).
    leader_epochs: tuple[EpochEntry, ...]
    producer_snapshot: bytes
    #: The producers of the snapshot; the log that takes over the state changes them.
    producers: tuple[ProducerState, ...] = field(compare=False, repr=False)

    @classmethod
    def of(
        cls,
        *,
        offset: int,
        log_start_offset: int,
        leader_epochs: Iterable[EpochEntry],
        producer_snapshot: bytes,
    ) -> "RemoteState":
        """The state, with the epochs of the range only. [any thread]

        Raises CorruptSnapshot, also if the snapshot is one of a later offset: a store may return anything.
        """
        assert 0 <= log_start_offset <= offset, (log_start_offset, offset)
        cache = LeaderEpochCache(leader_epochs)
        kept = cache.entries_in_range(start_offset=log_start_offset, end_offset=offset)
        return cls(
            offset=offset,
            log_start_offset=log_start_offset,
            leader_epochs=tuple(kept),
            producer_snapshot=producer_snapshot,
            producers=_producers_at(offset, producer_snapshot),
        )


def _producers_at(offset: int, snapshot: bytes) -> tuple[ProducerState, ...]:
    """Decode a producer snapshot that was taken at `offset`. Raises CorruptSnapshot, also for one of a later offset."""
    states = tuple(producer_snapshot.decode(snapshot))
    for state in states:
        first, last = (
            state.transaction_first_offset,
            state.batches[-1].last_offset if state.batches else None,
        )
        if any(each is not None and each >= offset for each in (first, last)):
            raise CorruptSnapshot(f"{state} is not a producer's state at offset {offset}")
    return states


class RemoteRestart:
    """Restarts a log behind the remote part of its leader's log, without copying that part (KIP-405).

    The checkpoints, and what a truncation has prepared, belong to `truncation`.
    """

    def __init__(
        self,
        *,
        files: LogFiles,
        epochs: LeaderEpochCache,
        producers: ProducerStateManager,
        truncation: LogTruncation,
        availability: LogAvailability,
    ) -> None:
        self._files = files
        self._epochs = epochs
        self._producers = producers
        self._truncation = truncation
        self._availability = availability
        #: The state whose files are written, and the log's generation then.
        self._written: tuple[RemoteState, int] | None = None

    def next_job(self, state: RemoteState) -> BackgroundJob | None:
        """The next job that `restart` would otherwise wait for; None if there is none left.

        Complete it and call this again, as long as the restart is wanted; then, or if it is abandoned, call `discard`.
        The job's `run` raises KafkaStorageError. Raises KafkaStorageError.
        """
        job = self._truncation.restart_job(state.offset, log_start_offset=state.log_start_offset)
        if job is not None or self._is_written(state):
            return job
        generation, system = self._files.generation, self._files.file_system
        contents = self._contents(state)

        def run() -> None:
            for path, data in contents.items():
                fd = system.open(path, write=True, create=True)
                try:
                    system.truncate(fd, 0)
                    system.pwrite(fd, data, 0)
                    system.fsync(fd)
                finally:
                    system.close(fd)

        def finish() -> None:
            if all(system.exists(path) for path in contents):
                self._written = state, generation

        name = f"leader epochs and producers of {self._files.directory.name} at {state.offset}"
        return BackgroundJob(name=name, run=self._availability.guard_reading(run), finish=finish)

    def _is_written(self, state: RemoteState) -> bool:
        return self._written is not None and self._written == (state, self._files.generation)

    def _contents(self, state: RemoteState) -> dict[Path, bytes]:
        """The temporary files of a restart, and their contents: the producer snapshot and the leader epochs."""
        snapshot, epochs = self._paths(state)
        return {
            snapshot: state.producer_snapshot,
            epochs: leader_epoch_cache.encode(state.leader_epochs),
        }

    def _paths(self, state: RemoteState) -> tuple[Path, Path]:
        snapshot = self._files.snapshots.path_of(state.offset)
        epochs = self._files.directory / leader_epoch_cache.FILE_NAME
        return snapshot.with_name(snapshot.name + _SUFFIX), epochs.with_name(epochs.name + _SUFFIX)

    def discard(self) -> None:
        """Remove the prepared files when the restart is abandoned or done."""
        self._truncation.discard()
        if self._written is not None:
            state, _ = self._written
            self._written = None
            with self._availability:
                for path in self._paths(state):
                    self._files.file_system.unlink(path)

    def restart(self, state: RemoteState, *, now_ms: int) -> None:
        """Remove everything; the empty log continues behind its remote part.

        Waits for the disk only for steps that jobs have not done. Raises KafkaStorageError, and CorruptSnapshot.
        """
        while (job := self.next_job(state)) is not None:
            job.complete()
        snapshot, epochs = self._paths(state)

        def take_over() -> None:
            self._files.snapshots.adopt(snapshot, offset=state.offset)
            self._epochs.adopt(epochs, state.leader_epochs)
            self._producers.load(state.producers, offset=state.offset, now_ms=now_ms)

        self._truncation.restart(
            state.offset,
            log_start_offset=state.log_start_offset,
            remote_end_offset=state.offset,
            take_over=take_over,
            now_ms=now_ms,
        )
        self._written = None
        self.discard()
