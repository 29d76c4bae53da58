"""Leader epoch cache: where each leader epoch begins in a log (KIP-101), and its `leader-epoch-checkpoint` file.

    epoch         0     1        3
    offset        0     3        7          9
                  |-----|--------|----------|  log end

An entry means: the leader of `epoch` wrote the batches from `start_offset` up to the next entry's start.
The leader of epoch 2 wrote nothing. A follower asks where its own last epoch ends in the leader's log and
truncates what it has beyond that offset, so that two logs never differ below the high watermark.

Invariant: epochs and start offsets both grow strictly from entry to entry.

The file `leader-epoch-checkpoint` is replaced at every change, so that it is correct after the process
crashes; `flush` puts it on the disk, which the log does before it moves its recovery point. If the operating
system crashes, entries that are lost from the file are recovered from the batches after that point.

Source: KIP-101, KIP-279, KIP-320; LeaderEpochFileCache of Kafka.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from logging import getLogger
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from ottla.protocol.types import MAX_EPOCH, MAX_OFFSET
from ottla.storage import checkpoints
from ottla.storage.files import Files
from ottla.storage.flush_counter import FlushCounter

FILE_NAME = "leader-epoch-checkpoint"

_LOG = getLogger(__name__)
_epoch = attrgetter("epoch")
_start_offset = attrgetter("start_offset")


class EpochEntry(NamedTuple):
    """The leader of `epoch` wrote from `start_offset` on."""

    epoch: int
    start_offset: int


def encode(entries: Sequence[EpochEntry]) -> bytes:
    """The checkpoint file of these entries (also what tiering stores with a segment, KIP-405)."""
    return checkpoints.encode((f"{epoch} {start}" for epoch, start in entries), len(entries))


def decode(data: bytes) -> list[EpochEntry]:
    """The entries of a checkpoint file, in its order. Raises CorruptCheckpoint."""
    return checkpoints.decode(data, _parse)


def _parse(words: Sequence[str]) -> EpochEntry:
    epoch, start_offset = words
    return EpochEntry(
        checkpoints.number(epoch, MAX_EPOCH),
        checkpoints.number(start_offset, MAX_OFFSET),
    )


class LeaderEpochCache:
    """The epochs of one log; `path` None keeps them in memory only."""

    #: The newest epoch, even if its leader wrote nothing; each append asks for it. Invariant: that of the last entry.
    latest_epoch: int | None

    def __init__(
        self, entries: Iterable[EpochEntry] = (), *, path: Path | None = None, files: Files | None = None
    ) -> None:
        self._set([])
        self.path = path
        self._files = files
        self._changes = FlushCounter()
        for entry in entries:
            self._assign(EpochEntry(*entry))

    @classmethod
    def open(cls, path: Path, files: Files) -> "LeaderEpochCache":
        """Read the file. A missing or corrupt file gives an empty cache: recovery reads the log instead."""
        cache = cls(path=path, files=files)
        # A process that was killed may have written the file without flushing it.
        cache._changes.on_change()
        try:
            for entry in decode(files.read(path)):
                cache._assign(entry)
        except FileNotFoundError:
            pass
        except checkpoints.CorruptCheckpoint as error:
            _LOG.warning("%s is corrupt (%s): the epochs are read from the log again", path, error)
            cache._set([])
        return cache

    # -- updates -----------------------------------------------------------------------------------

    def assign(self, epoch: int, *, start_offset: int) -> bool:
        """Record that the leader of `epoch` writes from `start_offset` on. True if the cache has changed.

        Entries that contradict it (of this or a later epoch, or from this offset on) are removed: they
        describe records that are not in the log. With (1, 3) and (2, 6), for example, (3, 5) removes (2, 6):
        a log in which epoch 3 begins at 5 ended there, so it has no record of epoch 2.
        """
        if (
            self._entries
            and self._entries[-1].epoch == epoch
            and start_offset >= self._entries[-1].start_offset
        ):
            return False
        if not self._assign(EpochEntry(epoch, start_offset)):
            return False
        self._write()
        return True

    def _assign(self, entry: EpochEntry) -> bool:
        assert min(entry.epoch, entry.start_offset) >= 0, entry
        entries = self._entries
        if entries and entries[-1].epoch == entry.epoch and entry.start_offset >= entries[-1].start_offset:
            return False
        removed = []
        while entries and (
            entries[-1].epoch >= entry.epoch or entries[-1].start_offset >= entry.start_offset
        ):
            removed.append(entries.pop())
        if len(removed) > 1 or (removed and removed[0].start_offset != entry.start_offset):
            # A single entry with the same start is a leader that wrote nothing: no contradiction.
            _LOG.warning(
                "%s: the new entry %s contradicts these, which are removed: %s", self.path, entry, removed
            )
        assert not entries or entries[-1] < entry, (self.path, entries, entry)
        entries.append(entry)
        self.latest_epoch = entry.epoch
        return True

    def _set(self, entries: list[EpochEntry]) -> None:
        self._entries = entries
        self.latest_epoch = entries[-1].epoch if entries else None

    def truncate_from_end(self, end_offset: int) -> None:
        """The log now ends at `end_offset`: remove the entries that start there or later."""
        assert end_offset >= 0, (self.path, end_offset)
        if self._entries and self._entries[-1].start_offset >= end_offset:
            self._set(self._entries[: bisect_left(self._entries, end_offset, key=_start_offset)])
            self._write()

    def truncate_from_start(self, start_offset: int) -> None:
        """The log now begins at `start_offset`: the epoch of that offset starts there, earlier ones are removed."""
        assert start_offset >= 0, (self.path, start_offset)
        kept = _from(self._entries, start_offset)
        if kept != self._entries:
            self._set(kept)
            self._write()

    def replace(self, entries: Iterable[EpochEntry]) -> None:
        """Replace all entries and write the file once: after a crash a partly rebuilt file would be believed."""
        self._set([])
        for entry in entries:
            self._assign(entry)
        self._write()

    def restore_older(self, entries: Iterable[EpochEntry]) -> None:
        """Add the entries before the oldest one, of the same lineage, which had been lost.

        If the oldest one's epoch is among them, it began there.
        >>> cache = LeaderEpochCache([EpochEntry(1, 30), EpochEntry(3, 40)])  # read from batches that begin at 30
        >>> cache.restore_older([EpochEntry(0, 0), EpochEntry(1, 20), EpochEntry(2, 35)])
        >>> cache.entries == ((0, 0), (1, 20), (3, 40))
        True
        """
        first = self._entries[0] if self._entries else None
        older = [
            entry
            for entry in entries
            if first is None or (entry.epoch <= first.epoch and entry.start_offset < first.start_offset)
        ]
        if older:
            kept = self._entries[older[-1].epoch == self._entries[0].epoch :] if self._entries else []
            self.replace([*older, *kept])

    def adopt(self, path: Path, entries: Sequence[EpochEntry]) -> None:
        """Replace all entries, and the checkpoint by the file `path`, which is renamed."""
        assert self.path is not None, path
        assert self._files is not None, path
        self._set(list(entries))
        self._check_order()
        self._files.rename(path, self.path)
        self._changes.on_change()

    def clear(self) -> None:
        """Remove all entries, also from the checkpoint."""
        self._set([])
        self._write()

    # -- queries -----------------------------------------------------------------------------------

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """All entries, oldest first."""
        return tuple(self._entries)

    @property
    def latest(self) -> EpochEntry | None:
        """The entry of the newest leader epoch; None if the cache is empty."""
        return self._entries[-1] if self._entries else None

    @property
    def earliest(self) -> EpochEntry | None:
        """The entry of the oldest leader epoch; None if the cache is empty."""
        return self._entries[0] if self._entries else None

    def previous_entry(self, epoch: int) -> EpochEntry | None:
        """The newest entry of an epoch before this one."""
        at = bisect_left(self._entries, epoch, key=_epoch)
        return self._entries[at - 1] if at else None

    def previous_epoch(self, epoch: int) -> int | None:
        """The newest known epoch before this one (lineage queries of tiering, KIP-405)."""
        entry = self.previous_entry(epoch)
        return entry.epoch if entry else None

    def next_epoch(self, epoch: int) -> int | None:
        """The oldest known epoch after `epoch`; None if there is none."""
        at = bisect_right(self._entries, epoch, key=_epoch)
        return self._entries[at].epoch if at < len(self._entries) else None

    def end_offset_for(self, epoch: int, *, log_end_offset: int) -> tuple[int, int] | None:
        """Return where `epoch` ends in this log, as (largest known epoch <= `epoch`, end offset).

        The end is exclusive: the start of the next larger epoch, or `log_end_offset` for
        the epoch that is still being written. None if `epoch` is newer than every known epoch.
        The epoch is returned since the offset alone is not enough (KIP-279). Let a follower of the log below have
        the epochs 0, 1 and, from offset 5 on, 2. It asks for 2, and the answer is (1, 7). Truncated to 7, it would
        keep records of epoch 2 at offsets 5 and 6, where the leader has others. As its own epoch 1 ends at 5, it
        truncates to the lower end, 5.
        Cost: O(log n) in the number of epochs; no I/O.
        Source: KIP-101 step 4.3; the returned epoch: KIP-279.

        >>> cache = LeaderEpochCache([EpochEntry(0, 0), EpochEntry(1, 3), EpochEntry(3, 7)])
        >>> cache.end_offset_for(2, log_end_offset=9)  # epoch 2 wrote nothing
        (1, 7)
        >>> cache.end_offset_for(3, log_end_offset=9)
        (3, 9)
        """
        if epoch == self.latest_epoch:
            return epoch, log_end_offset
        after = bisect_right(self._entries, epoch, key=_epoch)
        if after == len(self._entries):
            return None
        # Older than the first entry: retention has deleted what that leader wrote. If the epoch ends where
        # this log begins, the follower truncates to that offset and copies this log from there. As Kafka does.
        known = self._entries[after - 1].epoch if after else epoch
        assert known <= epoch < self._entries[after].epoch, (self.path, epoch, known)
        return known, self._entries[after].start_offset

    def epoch_for_offset(self, offset: int) -> int | None:
        """The leader epoch in which `offset` was written; None before the first entry."""
        after = bisect_right(self._entries, offset, key=_start_offset)
        return self._entries[after - 1].epoch if after else None

    def entries_in_range(self, *, start_offset: int, end_offset: int) -> list[EpochEntry]:
        """The entries of a log that holds only [start_offset, end_offset).

        >>> cache = LeaderEpochCache([EpochEntry(0, 0), EpochEntry(1, 3), EpochEntry(3, 7)])
        >>> cache.entries_in_range(start_offset=4, end_offset=7)
        [EpochEntry(epoch=1, start_offset=4)]
        """
        assert 0 <= start_offset <= end_offset, (self.path, start_offset, end_offset)
        kept = _from(self._entries, start_offset)
        return kept[: bisect_left(kept, end_offset, key=_start_offset)]

    # -- the file ----------------------------------------------------------------------------------

    def _write(self) -> None:
        """Replace the file without waiting for the disk: about 60 us, once per leader epoch."""
        self._check_order()
        if self.path is None or self._files is None:
            return
        self._files.write_atomically(self.path, encode(self._entries), durable=False)
        self._changes.on_change()

    def _check_order(self) -> None:
        """Assert that epochs and start offsets both grow strictly: else one epoch would end before it begins."""
        for one, two in pairwise(self._entries):
            assert one.epoch < two.epoch, (self.path, one, two)
            assert one.start_offset < two.start_offset, (self.path, one, two)

    def flush(self) -> None:
        """Wait until the file is on the disk. [any thread]"""
        seen = self._changes.change_count
        if not self._changes.all_flushed and self.path is not None and self._files is not None:
            self._files.fsync_path(self.path)
            self._files.fsync_dir(self.path.parent)
            self._changes.on_flushed(seen)

    def move_to(self, directory: Path) -> None:
        """Adopt the path in `directory`: the log's directory has been renamed."""
        if self.path is not None:
            self.path = directory / FILE_NAME
            self._changes.on_change()  # a flush that is running may not have found the file


def _from(entries: list[EpochEntry], start_offset: int) -> list[EpochEntry]:
    """The entries of a log that begins at `start_offset`: earlier epochs are left out."""
    after = bisect_right(entries, start_offset, key=_start_offset)
    if not after:
        return list(entries)
    return [EpochEntry(entries[after - 1].epoch, start_offset), *entries[after:]]
