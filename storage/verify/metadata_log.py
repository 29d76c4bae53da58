"""Verification of the metadata log's own files: snapshots (`.checkpoint`, KIP-630), `quorum-state` (KIP-595)."""

from collections.abc import Iterable
from pathlib import Path

from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.snapshot_footer_record import SnapshotFooterRecord
from ottla.protocol.records.batch import crc_is_valid
from ottla.protocol.records.quorum import decode_quorum_record
from ottla.protocol.records.record import records
from ottla.storage import json_object
from ottla.storage.files import Files
from ottla.storage.verify.findings import Findings
from ottla.storage.verify.log_file import LogFile


def snapshot_end_of(path: Path) -> int | None:
    """The end offset in a snapshot's name; None for `bootstrap.checkpoint` and the initial voters' snapshot at 0."""
    end, _, epoch = path.stem.partition("-")
    return int(end) if end.isdigit() and epoch.isdigit() and int(end) else None


def snapshot_epoch_of(path: Path) -> int:
    """The epoch in a snapshot's name; -1 if it has none."""
    _, _, epoch = path.stem.partition("-")
    return int(epoch) if epoch.isdigit() else -1


def check_snapshot(path: Path, files: Files, findings: Findings) -> None:
    """Check that a snapshot is complete: sound batches in order, and a footer at its end."""
    log = LogFile(path, files)
    next_offset, is_complete = 0, False
    for header, position, batch in log.batches():
        if is_complete:
            findings.error(path, "there are batches behind the footer", position=position)
        if not crc_is_valid(batch):
            findings.error(path, "the batch's CRC is wrong", position=position, offset=header.base_offset)
            continue
        if header.base_offset != next_offset:
            findings.error(
                path, f"offset {header.base_offset} where {next_offset} is next", position=position
            )
        next_offset = header.next_offset
        if header.is_control:
            try:
                messages = [decode_quorum_record(record) for record in records(batch)]
            except KafkaError as error:
                findings.error(path, str(error), position=position, offset=header.base_offset)
                continue
            is_complete = any(isinstance(message, SnapshotFooterRecord) for message in messages)
    if log.stopped is not None:
        findings.error(path, log.stopped, position=log.end_position)
    elif not is_complete:
        findings.error(path, "the snapshot is incomplete: it has no footer", position=log.end_position)


def check_quorum_state(path: Path, files: Files, findings: Findings, *, last_epoch: int) -> None:
    """Check that the file has a leader epoch, which is not older than those of the log and its snapshots.

    `last_epoch`: the newest of these, -1 without any. The file is flushed before the node acts in its epoch, so that
    a crash never leaves an older one: with it the node could vote, or lead, a second time in the same epoch.
    """
    try:
        state = json_object.parse(files.read(path))
    except FileNotFoundError:
        if last_epoch >= 0:
            findings.error(
                path,
                f"the file is missing, but the log has epoch {last_epoch}: the vote of that epoch is unknown",
            )
        return
    except ValueError as error:
        findings.error(path, f"not JSON: {error}")
        return
    epoch = state.get("leaderEpoch")
    if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 0:
        findings.error(path, "does not say leaderEpoch")
    elif epoch < last_epoch:
        findings.error(path, f"leaderEpoch {epoch}, but the log has epoch {last_epoch}")


def check_snapshots_cover(
    directory: Path, snapshots: Iterable[Path], findings: Findings, *, first_offset: int, end_offset: int
) -> None:
    """Check that a snapshot covers the offsets before the log's first; one that ends after the log will replace it."""
    ends = {path: snapshot_end_of(path) or 0 for path in snapshots}
    if first_offset > max(ends.values(), default=0):
        findings.error(
            directory, f"the log begins at {first_offset}, and no snapshot covers the offsets before it"
        )
    for path, end in ends.items():
        if end > end_offset:
            findings.note(path, f"ends at {end}, after the log end offset {end_offset}: it replaces the log")
