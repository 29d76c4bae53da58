"""KRaft's control records: LeaderChange, KRaftVersion and KRaftVoters, and a snapshot's header and footer.

Each is the value of a control record (`control`) of the type in `CONTROL_TYPES`, without a version prefix:
Kafka 4.3.1 writes version 0 of all of them.
Source: KIP-595, KIP-630, KIP-853; ControlRecordUtils and the schemas of Kafka 4.3.1.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ottla.protocol.codec import decode_struct, encode_struct
from ottla.protocol.errors import InvalidRecord, MalformedMessage
from ottla.protocol.messages.k_raft_version_record import KRaftVersionRecord
from ottla.protocol.messages.leader_change_message import LeaderChangeMessage
from ottla.protocol.messages.snapshot_footer_record import SnapshotFooterRecord
from ottla.protocol.messages.snapshot_header_record import SnapshotHeaderRecord
from ottla.protocol.messages.voters_record import VotersRecord
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.control import ControlRecordType, control_key, control_type
from ottla.protocol.records.record import Record
from ottla.protocol.schema import Message

QuorumMessage = (
    LeaderChangeMessage | SnapshotHeaderRecord | SnapshotFooterRecord | KRaftVersionRecord | VotersRecord
)

CONTROL_TYPES: Final[Mapping[type[Message], ControlRecordType]] = MappingProxyType(
    {
        LeaderChangeMessage: ControlRecordType.LEADER_CHANGE,
        SnapshotHeaderRecord: ControlRecordType.SNAPSHOT_HEADER,
        SnapshotFooterRecord: ControlRecordType.SNAPSHOT_FOOTER,
        KRaftVersionRecord: ControlRecordType.KRAFT_VERSION,
        VotersRecord: ControlRecordType.KRAFT_VOTERS,
    }
)
_CLASSES: Final = {record_type: cls for cls, record_type in CONTROL_TYPES.items()}


def encode_quorum_record(message: QuorumMessage, *, version: int = 0) -> tuple[bytes, bytes]:
    """Encode the key and value of a control record of the quorum."""
    return control_key(CONTROL_TYPES[type(message)]), encode_struct(type(message), version, message)


def decode_quorum_record(record: Record) -> QuorumMessage | None:
    """The message in a control record; None for a transaction marker or an unknown type.

    Raises InvalidRecord if `record` is not a control record, or is corrupt.
    """
    record_type = control_type(record.key)
    cls = None if record_type is None else _CLASSES.get(record_type)
    if cls is None:
        return None
    value = record.value or b""
    # The message starts with its version, the format of the rest; newer versions are read as the latest known.
    version = int.from_bytes(value[:2], "big", signed=True)
    last = cls.__versions__.last or 0
    try:
        message = decode_struct(cls, min(max(version, 0), last), value)
    except MalformedMessage as reason:
        raise InvalidRecord(f"Not a {cls.__name__}: {reason.message}") from None
    assert isinstance(message, QuorumMessage), type(message)
    return message


def build_quorum_batch(
    messages: Sequence[QuorumMessage],
    *,
    base_offset: int,
    leader_epoch: int,
    timestamp: int,
    version: int = 0,
) -> bytes:
    """A control batch of these messages, as a quorum's leader or a snapshot's writer appends it."""
    records = [
        Record(offset, timestamp, *encode_quorum_record(message, version=version))
        for offset, message in enumerate(messages, start=base_offset)
    ]
    return build_batch(records, base_offset=base_offset, leader_epoch=leader_epoch, is_control=True)
