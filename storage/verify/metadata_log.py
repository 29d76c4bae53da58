"""What only the metadata log has: snapshots (`.checkpoint`, KIP-630) and `quorum-state` (KIP-595)."""

import json
from pathlib import Path

from protocol.errors import KafkaError
from protocol.messages.snapshot_footer_record import SnapshotFooterRecord
from protocol.records.batch import crc_is_valid
from protocol.records.quorum import decode_quorum_record
from protocol.records.record import records
from storage.files import Files
from storage.verify.findings import Findings
from storage.verify.log_file import LogFile


def snapshot_end_of(path: Path) -> int | None:
    """The end offset in a snapshot's name; None for `bootstrap.checkpoint` and the first voters' at 0."""
    end, _, epoch = path.stem.partition("-")
    return int(end) if end.isdigit() and epoch.isdigit() and int(end) else None


def check_snapshot(path: Path, files: Files, findings: Findings) -> None:
    """A snapshot is whole: sound batches in order, and a footer at its end."""
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
        findings.error(path, "there is no footer: it was cut off", position=log.end_position)


def check_quorum_state(path: Path, files: Files, findings: Findings) -> None:
    """The file is JSON that names an epoch."""
    try:
        state = json.loads(files.read(path))
        if not isinstance(state, dict) or not isinstance(state.get("leaderEpoch"), int):
            findings.error(path, "does not say leaderEpoch")
    except ValueError as error:
        findings.error(path, f"not JSON: {error}")
