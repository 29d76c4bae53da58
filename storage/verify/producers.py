"""Verification of producer snapshots and transaction indexes against the producers' batches.

The log is replayed as in recovery, and the result is compared: a `.snapshot` with the producer state at its offset,
a `.txnindex` with the abort markers of its segment. Where the log lacks offsets (compaction, or a beginning that has
been deleted) the files may have more than the batches show; then only impossible content is an error.
"""

from pathlib import Path

from ottla.protocol.errors import KafkaError
from ottla.protocol.records.batch import BatchHeader
from ottla.storage import file_names, producer_snapshot
from ottla.storage.appending import AppendOrigin
from ottla.storage.files import Files
from ottla.storage.index import CorruptIndex
from ottla.storage.producer_snapshot import CorruptSnapshot
from ottla.storage.producer_state import ProducerState, ProducerStateManager
from ottla.storage.transaction_index import AbortedTransaction, TransactionIndex
from ottla.storage.verify.findings import Findings


class ProducerCheck:
    """Is passed all segments with their batches in offset order, then `finish` is called.

    `snapshots` are the files by their offsets; `is_compacted`: offsets may be missing.
    """

    def __init__(
        self,
        snapshots: dict[int, Path],
        files: Files,
        findings: Findings,
        *,
        first_offset: int,
        is_compacted: bool,
    ) -> None:
        self._files, self._findings = files, findings
        self._first_offset, self._is_compacted = first_offset, is_compacted
        self._producers = ProducerStateManager()
        self._snapshots = sorted(snapshots.items())
        self._newest_offset = max(snapshots, default=-1)
        self._index_path = Path()
        self._indexed: dict[int, AbortedTransaction] = {}
        #: Producers with data in the log since their last marker, so that an abort must be indexed.
        self._has_data: set[int] = set()
        self._seed(snapshots.get(first_offset))

    def _seed(self, path: Path | None) -> None:
        """Load the snapshot at the log's first offset, if there is one."""
        states = None if path is None else self._read(path)
        if states is not None:
            # With time 0 no producer has expired.
            self._producers.load(states, offset=self._first_offset, now_ms=0)
        self._snapshots = [each for each in self._snapshots if each[1] != path or states is None]

    def _read(self, path: Path) -> list[ProducerState] | None:
        try:
            return producer_snapshot.decode(self._files.read(path))
        except FileNotFoundError:
            return None
        except CorruptSnapshot as error:
            self._findings.error(path, f"not a producer snapshot: {error}")
            return None

    # Transaction indexes

    def begin_segment(self, index_path: Path, base_offset: int) -> None:
        """Start the next segment."""
        self._index_path = index_path
        self._indexed = {}
        try:
            index = TransactionIndex(index_path, base_offset=base_offset, files=self._files, is_new=False)
            entries = index.entries
        except CorruptIndex as error:
            self._findings.error(index_path, str(error))
            entries = []
        for entry in entries:
            if (
                not entry.first_offset <= entry.last_offset
                or entry.last_stable_offset > entry.last_offset + 1
            ):
                self._findings.error(index_path, f"{entry} is invalid")
            self._indexed[entry.last_offset] = entry

    def end_segment(self) -> None:
        """Finish the segment: entries that no batch has confirmed are errors."""
        for entry in self._indexed.values():
            self._findings.error(
                self._index_path, f"{entry}: no aborted transaction ends there", offset=entry.last_offset
            )

    # Batches

    def on_batch(self, log: Path, header: BatchHeader, batch: memoryview, position: int) -> None:
        """Check the next batch; a batch with a wrong CRC must not be passed."""
        self._compare_snapshots(header.base_offset)
        if header.producer_id < 0:
            return
        producers = self._producers
        try:
            updates = producers.analyze(((header, batch),), origin=AppendOrigin.REPLICATION)
        except KafkaError as error:
            # In a compacted log, batches between two of a producer may be missing, so that these need not fit.
            if not self._is_compacted:
                self._findings.error(log, str(error), position=position, offset=header.base_offset)
            return
        producers.apply(updates)
        if not header.is_control:
            self._has_data.add(header.producer_id)
            return
        had_data = header.producer_id in self._has_data
        self._has_data.discard(header.producer_id)
        for completed in updates.completed:
            if completed.is_aborted:
                expected = AbortedTransaction(
                    completed.producer_id,
                    completed.first_offset,
                    completed.last_offset,
                    producers.last_stable_offset_after(completed),
                )
                self._compare_aborted(expected, is_needed=had_data)
            producers.complete(completed)
        if not updates.completed:
            self._accept_older_transaction(header)

    def _accept_older_transaction(self, header: BatchHeader) -> None:
        """Accept the index entry of a marker whose transaction has no records left in the log."""
        entry = self._indexed.get(header.last_offset)
        may_be = entry is not None and (self._is_compacted or entry.first_offset < self._first_offset)
        if entry is not None and may_be and entry.producer_id == header.producer_id:
            del self._indexed[header.last_offset]

    def _compare_aborted(self, expected: AbortedTransaction, *, is_needed: bool) -> None:
        found = self._indexed.pop(expected.last_offset, None)
        if found is None:
            if is_needed:
                self._findings.error(
                    self._index_path, "an aborted transaction is missing", offset=expected.last_offset
                )
            return
        may_know_more = self._is_compacted or self._first_offset > 0
        if found == expected or (
            may_know_more
            and found.producer_id == expected.producer_id
            and found.first_offset <= expected.first_offset
        ):
            return
        self._findings.error(
            self._index_path, f"{found}, but by the log it is {expected}", offset=expected.last_offset
        )

    # Snapshots

    def _compare_snapshots(self, offset: int) -> None:
        """Compare the snapshots up to `offset`, after all batches before it have been replayed."""
        while self._snapshots and self._snapshots[0][0] <= offset:
            at, path = self._snapshots.pop(0)
            for state in self._read(path) or ():
                if reason := self._contradiction(state, at):
                    self._findings.error(path, f"producer {state.producer_id}: {reason}")

    def _contradiction(self, state: ProducerState, at: int) -> str | None:
        last = state.batches[-1] if state.batches else None
        first = state.transaction_first_offset
        if (last is not None and last.last_offset >= at) or (first is not None and first >= at):
            return f"it knows offsets from {at} on, where it was written"
        known = self._producers.producers.get(state.producer_id)
        if at < self._first_offset or self._is_compacted:
            return None
        if known is None:
            has_offsets = last is not None and last.last_offset >= self._first_offset
            return f"offset {last.last_offset} is not its" if last and has_offsets else None
        if state.epoch != known.epoch:
            return f"epoch {state.epoch}, but by the log it is {known.epoch}"
        if state.last_timestamp != known.last_timestamp:
            return f"timestamp {state.last_timestamp}, but by the log it is {known.last_timestamp}"
        seen = known.batches[-1] if known.batches else None
        # The file has one timestamp per producer: that of its last batch or marker.
        is_same = last == seen or (last and seen and last[:3] == seen[:3])
        if not is_same and (seen is not None or (last and last.last_offset >= self._first_offset)):
            return f"{last}, but by the log it is {seen}"
        seen_first = known.transaction_first_offset
        if first != seen_first and (first is None or first >= self._first_offset):
            return f"transaction from {first} on, but by the log it is {seen_first}"
        if state.coordinator_epoch not in (None, known.coordinator_epoch) and self._first_offset == 0:
            return (
                f"coordinator epoch {state.coordinator_epoch}, but by the log it is {known.coordinator_epoch}"
            )
        return None

    def finish(self, end_offset: int, *, is_closed: bool) -> None:
        """Finish at the log's end. `is_closed`: by a clean shutdown, which writes a snapshot."""
        self._compare_snapshots(end_offset)
        for at, path in self._snapshots:
            self._findings.error(path, f"is of offset {at}, after the log end offset {end_offset}")
            self._read(path)
        if is_closed and self._newest_offset < end_offset and self._producers.producers:
            path = self._index_path.with_name(file_names.of_offset(end_offset, file_names.PRODUCER_SNAPSHOT))
            self._findings.note(
                path, "the snapshot of a clean stop is missing: producers are read from the log"
            )
