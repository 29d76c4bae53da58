"""Verification of `leader-epoch-checkpoint` against the leader epochs in the batches (KIP-101)."""

from bisect import bisect_right
from operator import attrgetter
from pathlib import Path

from ottla.protocol.records.batch import BatchHeader
from ottla.storage import leader_epoch_cache
from ottla.storage.checkpoints import CorruptCheckpoint
from ottla.storage.files import Files
from ottla.storage.leader_epoch_cache import EpochEntry
from ottla.storage.verify.findings import Findings

#: Most disagreements between batches and epochs that are reported one by one; the others are counted.
MAX_REPORTED = 10

_start_offset = attrgetter("start_offset")


class EpochCheck:
    """Is passed all batches of a log in offset order, then `finish` is called."""

    def __init__(self, path: Path, files: Files, findings: Findings, *, log_start_offset: int) -> None:
        self._path, self._findings, self._log_start_offset = path, findings, log_start_offset
        self._entries: list[EpochEntry] = []
        #: Whether the file is valid, so that batches are compared with it.
        self._is_known = False
        self._is_missing = False
        self._disagreements_count = 0
        #: The newest leader epoch of a batch; -1 before the first.
        self.last_epoch = -1
        try:
            self._entries = leader_epoch_cache.decode(files.read(path))
            self._is_known = True
        except FileNotFoundError:
            self._is_missing = True
        except CorruptCheckpoint as error:
            findings.error(path, f"not a checkpoint: {error}")
        for older, newer in zip(self._entries, self._entries[1:], strict=False):
            if newer.epoch <= older.epoch or newer.start_offset <= older.start_offset:
                findings.error(path, f"{newer} does not follow {older}")
                self._is_known = False

    def _epoch_of(self, offset: int) -> int | None:
        after = bisect_right(self._entries, offset, key=_start_offset)
        return self._entries[after - 1].epoch if after else None

    def on_batch(self, log: Path, header: BatchHeader, position: int) -> None:
        """Check the next batch, which is in the segment `log`."""
        epoch = header.partition_leader_epoch
        if epoch < 0:
            return
        if epoch < self.last_epoch:
            self._findings.error(
                log,
                f"leader epoch {epoch} after {self.last_epoch}",
                position=position,
                offset=header.base_offset,
            )
        self.last_epoch = max(epoch, self.last_epoch)
        first = max(header.base_offset, self._log_start_offset)
        if not self._is_known or header.last_offset < first:
            return
        for offset in (first, header.last_offset):
            if (known := self._epoch_of(offset)) != epoch:
                self._disagreements_count += 1
                if self._disagreements_count <= MAX_REPORTED:
                    self._findings.error(
                        self._path, f"epoch {known}, but the batch in {log.name} has {epoch}", offset=offset
                    )
                return

    def finish(self, end_offset: int) -> None:
        """Finish at the log's end."""
        if self._is_missing and self.last_epoch >= 0:
            self._findings.error(self._path, "the checkpoint is missing, and batches have leader epochs")
        if self._disagreements_count > MAX_REPORTED:
            self._findings.error(
                self._path, f"disagrees with {self._disagreements_count - MAX_REPORTED} more batches"
            )
        for entry in self._entries:
            if entry.start_offset > end_offset:
                self._findings.error(self._path, f"{entry} begins after the log end offset {end_offset}")
