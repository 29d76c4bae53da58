"""Voter sets and kraft.version levels by the offsets at which the log sets them.

The latest entry holds, committed or not; an uncommitted one goes when a new leader has it truncated. It always tells
what is in the log up to its end: whoever appends or truncates calls `read` or `truncate`.
Source: KRaftControlRecordStateMachine and VoterSetHistory of Kafka 4.3.1.
"""

from bisect import bisect_left, bisect_right
from typing import Generic, TypeVar

from controller.raft.log import RaftLog
from controller.raft.voters import VoterSet
from protocol.messages.k_raft_version_record import KRaftVersionRecord
from protocol.messages.voters_record import VotersRecord

_T = TypeVar("_T")


class _Values(Generic[_T]):
    """Values by ascending offset."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.values: list[_T] = []

    def add(self, offset: int, value: _T) -> None:
        if self.offsets and self.offsets[-1] == offset:  # a snapshot has all of its records at one offset
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


class QuorumHistory:
    """What the log says about the quorum itself."""

    def __init__(self, log: RaftLog, static_voters: VoterSet) -> None:
        self._log = log
        self._static_voters = static_voters
        self.reload()

    def reload(self) -> None:
        """Forget all; read the latest snapshot and the log."""
        self._voters = _Values[VoterSet]()
        self._kraft_versions = _Values[int]()
        self._read(None)

    def read(self, start_offset: int) -> None:
        """Take in what was appended from `start_offset` on."""
        self._read(start_offset)

    def truncate(self, end_offset: int) -> None:
        """Forget what stood at `end_offset` and behind."""
        self._voters.truncate(end_offset)
        self._kraft_versions.truncate(end_offset)

    @property
    def voters(self) -> VoterSet:
        """Who votes now."""
        return self._voters.values[-1] if self._voters.values else self._static_voters

    @property
    def voters_offset(self) -> int | None:
        """Where the log says so: -1 in the snapshot (0, 0) only; None: nowhere, voters are configured."""
        return self._voters.offsets[-1] if self._voters.offsets else None

    @property
    def kraft_version(self) -> int:
        """The level that holds now."""
        return self._kraft_versions.values[-1] if self._kraft_versions.values else 0

    def voters_at(self, offset: int) -> VoterSet | None:
        """Who voted when the record at `offset` was the last one; None if the log did not say. For snapshots."""
        return self._voters.at(offset)

    def kraft_version_at(self, offset: int) -> int:
        """The level when the record at `offset` was the last one. For snapshots."""
        return self._kraft_versions.at(offset) or 0

    def _read(self, start_offset: int | None) -> None:
        for offset, message in self._log.quorum_messages(start_offset):
            if isinstance(message, VotersRecord):
                self._voters.add(offset, VoterSet.of_record(message))
            elif isinstance(message, KRaftVersionRecord):
                self._kraft_versions.add(offset, message.k_raft_version)
