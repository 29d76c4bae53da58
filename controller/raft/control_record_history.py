"""Voter set history: voter sets and kraft.version levels by the offsets of their control records.

The latest entry is in effect, committed or not (KIP-853); an uncommitted one is removed if a new leader truncates it.
Invariant: the history reflects the log up to its end. `read` follows every append, `truncate` every truncation.
Source: KRaftControlRecordStateMachine, VoterSetHistory and LogHistory of Kafka 4.3.1.
"""

from bisect import bisect_left, bisect_right
from typing import Generic, TypeVar

from ottla.controller.raft.log import RaftLog
from ottla.controller.raft.voters import VoterSet
from ottla.protocol.messages.k_raft_version_record import KRaftVersionRecord
from ottla.protocol.messages.voters_record import VotersRecord

_T = TypeVar("_T")


class _LogHistory(Generic[_T]):
    """The values of one kind of control record, by ascending offset."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.values: list[_T] = []

    def add(self, offset: int, value: _T) -> None:
        if self.offsets and self.offsets[-1] == offset:  # all records of a snapshot have one offset
            self.values[-1] = value
        else:
            assert not self.offsets or self.offsets[-1] < offset, (self.offsets, offset)
            self.offsets.append(offset)
            self.values.append(value)

    def at(self, offset: int) -> _T | None:
        index = bisect_right(self.offsets, offset)
        return self.values[index - 1] if index else None

    def truncate(self, end_offset: int) -> None:
        index = bisect_left(self.offsets, end_offset)
        del self.offsets[index:], self.values[index:]


class ControlRecordHistory:
    """The control records of the log that describe the quorum, as values by offset."""

    def __init__(self, log: RaftLog, static_voters: VoterSet) -> None:
        self._log = log
        self._static_voters = static_voters
        self.reload()

    def reload(self) -> None:
        """Rebuild the history from the latest snapshot and the log."""
        self._voters = _LogHistory[VoterSet]()
        self._kraft_versions = _LogHistory[int]()
        self._read(None)

    def read(self, start_offset: int) -> None:
        """Add the control records appended from `start_offset` on."""
        self._read(start_offset)

    def truncate(self, end_offset: int) -> None:
        """Remove entries at `end_offset` and after it."""
        self._voters.truncate(end_offset)
        self._kraft_versions.truncate(end_offset)

    @property
    def voters(self) -> VoterSet:
        """The voter set in effect: the log's latest, else the configured one."""
        return self._voters.values[-1] if self._voters.values else self._static_voters

    @property
    def voters_offset(self) -> int | None:
        """The offset of the latest voter set: -1 if only the snapshot (0, 0) has one; None if voters are configured."""
        return self._voters.offsets[-1] if self._voters.offsets else None

    @property
    def kraft_version(self) -> int:
        """The kraft.version in effect, as of the end of the log."""
        return self._kraft_versions.values[-1] if self._kraft_versions.values else 0

    def voters_at(self, offset: int) -> VoterSet | None:
        """The voter set as of the record at `offset`; None if the log had none. For a snapshot up to that record."""
        return self._voters.at(offset)

    def kraft_version_at(self, offset: int) -> int:
        """The kraft.version as of the record at `offset`. For a snapshot up to that record."""
        return self._kraft_versions.at(offset) or 0

    def _read(self, start_offset: int | None) -> None:
        for offset, message in self._log.quorum_messages(start_offset):
            if isinstance(message, VotersRecord):
                self._voters.add(offset, VoterSet.of_record(message))
            elif isinstance(message, KRaftVersionRecord):
                self._kraft_versions.add(offset, message.k_raft_version)
