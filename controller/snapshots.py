"""`*.checkpoint` files: the metadata as records, without the history that led to it (KIP-630).

    control batch SnapshotHeader (and KRaftVersion, KRaftVoters) | record batches | control batch SnapshotFooter

| file | what it holds |
|---|---|
| `bootstrap.checkpoint` | the feature levels that a cluster starts with; written when a log directory is formatted |
| `00000000000000000000-0000000000.checkpoint` | the first voters, where they live in the log (kraft.version 1) |
| `<end offset>-<epoch>.checkpoint` | everything before that offset: records before it may be gone from the log |

Written as Kafka 4.3.1's `kafka-storage format` does. Snapshots of a log's later state are read, not yet written.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from controller.settings import ControllerSettings
from protocol.errors import KafkaError
from protocol.messages.k_raft_version_record import KRaftVersionRecord
from protocol.messages.snapshot_footer_record import SnapshotFooterRecord
from protocol.messages.snapshot_header_record import SnapshotHeaderRecord
from protocol.messages.voters_record import Endpoint, KRaftVersionFeature, Voter, VotersRecord
from protocol.metadata.frame import decode_record, encode_record
from protocol.metadata.image import InvalidMetadata
from protocol.metadata.records import MetadataRecord
from protocol.records.batch import batches, crc_is_valid
from protocol.records.builder import build_batch, simple_records
from protocol.records.quorum import QuorumMessage, build_quorum_batch, decode_quorum_record
from protocol.records.record import records as records_of
from storage.files import Files

BOOTSTRAP_FILE: Final = "bootstrap.checkpoint"
FIRST_CHECKPOINT_FILE: Final = f"{0:020d}-{0:010d}.checkpoint"
_SUFFIX = ".checkpoint"
_MAX_KRAFT_VERSION = 1


class SnapshotId(NamedTuple):
    """What a snapshot covers: everything before `end_offset`, the last of it written in `epoch`."""

    end_offset: int
    epoch: int


def voters_record(settings: ControllerSettings) -> VotersRecord:
    """This node as the only voter."""
    assert settings.listener is not None, "kraft.version 1 needs voters that can be reached"
    name, endpoint = settings.listener
    return VotersRecord(
        voters=[
            Voter(
                voter_id=settings.node_id,
                voter_directory_id=settings.directory_id,
                endpoints=[Endpoint(name=name, host=endpoint.host, port=endpoint.port)],
                k_raft_version_feature=KRaftVersionFeature(
                    min_supported_version=0, max_supported_version=_MAX_KRAFT_VERSION
                ),
            )
        ]
    )


def write_bootstrap(log_dir: Path, records: Sequence[MetadataRecord], files: Files, *, now_ms: int) -> None:
    """Write what a new cluster starts with; all records in their version 0."""
    data = _snapshot((), records, last_timestamp=0, now_ms=now_ms)
    files.write_atomically(log_dir / BOOTSTRAP_FILE, data)


def write_first_voters(directory: Path, settings: ControllerSettings, files: Files, *, now_ms: int) -> None:
    """Write who votes before the log has its first record."""
    messages = (KRaftVersionRecord(k_raft_version=_MAX_KRAFT_VERSION), voters_record(settings))
    data = _snapshot(messages, (), last_timestamp=now_ms, now_ms=now_ms)
    files.write_atomically(directory / FIRST_CHECKPOINT_FILE, data)


def _snapshot(
    messages: Sequence[QuorumMessage],
    records: Sequence[MetadataRecord],
    *,
    last_timestamp: int,
    now_ms: int,
) -> bytes:
    header = (SnapshotHeaderRecord(last_contained_log_timestamp=last_timestamp), *messages)
    pieces = [build_quorum_batch(header, base_offset=0, leader_epoch=0, timestamp=now_ms)]
    offset = len(header)
    if records:
        pairs = [(None, encode_record(record, 0)) for record in records]
        rows = simple_records(pairs, timestamp=now_ms, base_offset=offset)
        pieces.append(build_batch(rows, base_offset=offset, leader_epoch=0))
        offset += len(records)
    footer = (SnapshotFooterRecord(),)
    pieces.append(build_quorum_batch(footer, base_offset=offset, leader_epoch=0, timestamp=now_ms))
    return b"".join(pieces)


def read(path: Path, files: Files) -> Iterator[list[MetadataRecord]]:
    """The metadata records of a snapshot, batch by batch. Raises InvalidMetadata unless it is whole."""
    is_complete = False
    try:
        for header, batch in batches(memoryview(files.read(path))):
            if is_complete or not crc_is_valid(batch):
                raise InvalidMetadata(f"{path} is damaged at offset {header.base_offset}")
            if header.is_control:
                messages = [decode_quorum_record(record) for record in records_of(batch)]
                is_complete = any(isinstance(message, SnapshotFooterRecord) for message in messages)
            else:
                yield [decode_record(record.value or b"") for record in records_of(batch)]
    except KafkaError as error:
        raise InvalidMetadata(f"{path} is damaged: {error}") from error
    if not is_complete:
        raise InvalidMetadata(f"{path} has no end: it was cut off")


def read_first_voters(directory: Path, files: Files) -> VotersRecord | None:
    """Who votes before the log has its first record; None under kraft.version 0. Raises InvalidMetadata."""
    path = directory / FIRST_CHECKPOINT_FILE
    if not files.exists(path):
        return None
    try:
        for header, batch in batches(memoryview(files.read(path))):
            for record in records_of(batch) if header.is_control and crc_is_valid(batch) else ():
                message = decode_quorum_record(record)
                if isinstance(message, VotersRecord):
                    return message
    except KafkaError as error:
        raise InvalidMetadata(f"{path} is damaged: {error}") from error
    raise InvalidMetadata(f"{path} names no voters")


def latest(directory: Path, files: Files) -> SnapshotId | None:
    """The newest snapshot with records in the directory of the metadata log; None if there is none."""
    found = [_id_of(name) for name in files.list(directory) if name.endswith(_SUFFIX)]
    return max((each for each in found if each is not None and each.end_offset > 0), default=None)


def file_name(snapshot: SnapshotId) -> str:
    """What the file of a snapshot is called.

    >>> file_name(SnapshotId(12, 3))
    '00000000000000000012-0000000003.checkpoint'
    """
    return f"{snapshot.end_offset:020d}-{snapshot.epoch:010d}{_SUFFIX}"


def _id_of(name: str) -> SnapshotId | None:
    end_offset, _, epoch = name.removesuffix(_SUFFIX).partition("-")
    return SnapshotId(int(end_offset), int(epoch)) if end_offset.isdigit() and epoch.isdigit() else None
