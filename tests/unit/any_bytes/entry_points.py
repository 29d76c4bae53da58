"""Every place that turns bytes of a client, a peer, a bucket or a disk into objects, as a function of these bytes.

An entry point returns nothing. It ends, or raises one of the errors that its callers handle (`refusals`): any other
exception is a fault of ours, and so is one that takes long or much memory. What was decoded is also used as the callers
use it: written again, or served.

`tests/unit/any_bytes/test_any_bytes.py` gives them examples and what was found before (`corpus/`); `tests/fuzz.py` looks
for more, by hand (`make fuzz`).
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from struct import Struct
from uuid import UUID

from broker.config.load import read_properties
from broker.groups.config import GroupConfig
from broker.groups.group_metadata import group_from_value, group_value
from broker.groups.offsets import offset_from_value
from broker.groups.subscription import subscribed_topics
from broker.tools.decoders import DECODERS, NotKnown
from controller.metadata import quorum_state, snapshots
from controller.metadata.image_records import records_of
from controller.raft.voters import VoterSet
from protocol import framing
from protocol.api_keys import KAFKA_VERSIONS, ApiKey
from protocol.checksum import crc32c
from protocol.codec import decode_request, decode_response, encode_request, encode_response, encode_struct
from protocol.coordinator import newer_groups, share_state_records
from protocol.coordinator import record_codec as group_codec
from protocol.coordinator.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from protocol.errors import InconsistentTopicId, InvalidConfig, KafkaError, MalformedMessage
from protocol.hot import fetch, produce
from protocol.messages import request_class, response_class
from protocol.messages.k_raft_version_record import KRaftVersionRecord
from protocol.messages.leader_change_message import LeaderChangeMessage
from protocol.messages.produce import ProduceRequest
from protocol.messages.voters_record import VotersRecord
from protocol.metadata import frame as metadata_frame
from protocol.metadata.image import InvalidMetadata, MetadataImage
from protocol.metadata.records import RECORD_CLASSES as METADATA_CLASSES
from protocol.records.batch import HEADER_SIZE_BYTES, batches, patched, read_header
from protocol.records.builder import build_batch, simple_records
from protocol.records.compression import Compression
from protocol.records.control import (
    EndTransactionMarker,
    build_end_transaction_marker,
    end_transaction_marker,
)
from protocol.records.quorum import build_quorum_batch, decode_quorum_record
from protocol.records.record import Bounds, keys_of, records, values_of
from protocol.remote import record_codec as remote_codec
from protocol.remote.records import RECORD_CLASSES as REMOTE_CLASSES
from protocol.remote.records import RemoteLogSegmentState
from protocol.schema import Message
from protocol.transactions import record_codec as transaction_codec
from protocol.transactions.records import TransactionLogKey, TransactionLogValue
from protocol.types import TopicPartition
from remote.metadata_cache import RemoteLogMetadataCache
from remote.reading.chunk import CorruptCopy, parse
from remote.topic_metadata import committed_offsets
from remote.topic_metadata import records as topic_records
from storage import checkpoints, leader_epoch_cache, partition_metadata, producer_snapshot, validation
from storage.files import Files
from storage.log import Log
from storage.log_config import LogConfig
from storage.manager import meta_properties
from storage.producer_append import ProducerState
from tests.unit.any_bytes.filled import filled
from tests.unit.remote.remote_support import PARTITION, cache_of, copy_of, to

NOW_MS = 1_700_000_000_000
FILES = Files()
#: What a batch may be here: no entry point may use more memory than a few times this.
BOUNDS = Bounds(max_bytes=1 << 20, max_records=20_000)


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One of them; `seeds` are valid inputs to begin with."""

    read: Callable[[bytes], None]
    refusals: tuple[type[Exception], ...]
    seeds: Callable[[], Sequence[bytes]]

    def check(self, data: bytes) -> None:
        """Any exception but a refusal goes on."""
        with suppress(*self.refusals):
            self.read(data)


ENTRY_POINTS: dict[str, EntryPoint] = {}


def entry_point(
    *refusals: type[Exception], seeds: Callable[[], Sequence[bytes]]
) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    def add(read: Callable[[bytes], None]) -> Callable[[bytes], None]:
        ENTRY_POINTS[read.__name__] = EntryPoint(read, refusals, seeds)
        return read

    return add


# -- requests and responses ------------------------------------------------------------------------------------


#: API and version of a message: two bytes before its body.
_KEYS = tuple(ApiKey)


def _api(data: bytes) -> tuple[ApiKey, int, bytes]:
    if len(data) < 2:
        raise MalformedMessage("no API")
    key = _KEYS[data[0] % len(_KEYS)]
    versions = KAFKA_VERSIONS[key]
    return key, versions[data[1] % len(versions)], data[2:]


def _each_api() -> Iterator[tuple[ApiKey, int, bytes]]:
    for number, key in enumerate(_KEYS):
        for index, version in enumerate(KAFKA_VERSIONS[key]):
            yield key, version, bytes((number, index))


def _requests() -> Sequence[bytes]:
    return [
        head + encode_request(key, version, filled(request_class(key), version))
        for key, version, head in _each_api()
    ]


def _responses() -> Sequence[bytes]:
    return [
        head + encode_response(key, version, filled(response_class(key), version))
        for key, version, head in _each_api()
    ]


@entry_point(MalformedMessage, seeds=_requests)
def request_bodies(data: bytes) -> None:
    """The bounded reader, for every API and version."""
    key, version, body = _api(data)
    for view in (body, memoryview(body)):
        encode_request(key, version, decode_request(key, version, view))


@entry_point(MalformedMessage, seeds=_responses)
def response_bodies(data: bytes) -> None:
    """What another node answers."""
    key, version, body = _api(data)
    encode_response(key, version, decode_response(key, version, memoryview(body)))


def _frames() -> Sequence[bytes]:
    return [
        framing.request_header(key, version, 7, "client")
        + encode_request(key, version, filled(request_class(key), version))
        for key, version, _ in _each_api()
    ]


@entry_point(MalformedMessage, seeds=_frames)
def request_frames(data: bytes) -> None:
    """Header and body of a frame."""
    frame = memoryview(data)
    header, at = framing.parse_request_header(frame)
    if header.api_key in KAFKA_VERSIONS and header.api_version in KAFKA_VERSIONS[ApiKey(header.api_key)]:
        decode_request(header.api_key, header.api_version, frame[at:])
        framing.parse_response_header(header.api_key, header.api_version, frame)


def _of(key: ApiKey) -> Callable[[], Sequence[bytes]]:
    def seeds() -> Sequence[bytes]:
        return [
            bytes((index,))
            + encode_request(key, version, filled(request_class(key), version, batch=_batch(2)))
            for index, version in enumerate(KAFKA_VERSIONS[key])
        ]

    return seeds


@entry_point(MalformedMessage, seeds=_of(ApiKey.PRODUCE))
def hot_produce(data: bytes) -> None:
    """The codec of Produce: what the usual one reads is what the general one reads."""
    version, body = _hot(ApiKey.PRODUCE, data)
    with suppress(MalformedMessage):
        produce.decode(version, body)
    # No transactional id, acks, timeout: what the usual codec has recognised before.
    empty = encode_request(ApiKey.PRODUCE, version, ProduceRequest())
    before = 7 if version >= 9 else 8
    body = memoryview(empty[:before] + bytes(body[before:]))
    reader = produce.TopicsReader(version, before)
    for _ in range(2):
        found = reader.read(body)
        if found is not None:
            usual = [(key, [(index, bytes(rows)) for index, rows in topic]) for key, topic in found]
            assert usual == _topics_of(version, body)


def _topics_of(version: int, body: memoryview) -> object:
    try:
        request = produce.decode(version, body)
    except MalformedMessage as error:
        return error
    return [
        (
            topic.topic_id if version >= 13 else topic.name,
            [
                (row.index, None if row.records is None else bytes(row.records))
                for row in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]


@entry_point(MalformedMessage, seeds=_of(ApiKey.FETCH))
def hot_fetch(data: bytes) -> None:
    """The codec of Fetch."""
    version, body = _hot(ApiKey.FETCH, data)
    for is_of_kind, reads in (
        (fetch.is_incremental, fetch.IncrementalRequests),
        (fetch.is_full, fetch.FullRequests),
    ):
        if is_of_kind(version, body):
            reader = reads(version)
            if any([reader.read(body), reader.read(body)]):
                # What the usual codec reads is no refusal of the general one.
                assert _can_be_decoded(version, body)
    fetch.decode(version, body)


def _can_be_decoded(version: int, body: memoryview) -> bool:
    try:
        fetch.decode(version, body)
    except MalformedMessage:
        return False
    return True


def _fetched() -> Sequence[bytes]:
    return [
        bytes((index,))
        + encode_response(
            ApiKey.FETCH, version, filled(response_class(ApiKey.FETCH), version, batch=_batch(2))
        )
        for index, version in enumerate(KAFKA_VERSIONS[ApiKey.FETCH])
    ]


@entry_point(MalformedMessage, seeds=_fetched)
def hot_fetch_responses(data: bytes) -> None:
    """A follower's Fetch is answered."""
    version, body = _hot(ApiKey.FETCH, data)
    fetch.read_usual_response(version, body)
    fetch.decode_response(version, body)


def _hot(key: ApiKey, data: bytes) -> tuple[int, memoryview]:
    if not data:
        raise MalformedMessage("no version")
    versions = KAFKA_VERSIONS[key]
    return versions[data[0] % len(versions)], memoryview(data)[1:]


# -- record batches --------------------------------------------------------------------------------------------


def _batch(count: int, **fields: object) -> bytes:
    pairs = [(b"key", b"value %d" % number) for number in range(count)]
    return bytes(build_batch(simple_records(pairs, timestamp=NOW_MS), **fields))  # type: ignore[arg-type]


@cache
def _batches() -> Sequence[bytes]:
    marker = EndTransactionMarker(is_commit=True, coordinator_epoch=1, timestamp=NOW_MS)
    return [
        *(_batch(count, compression=codec) for codec in Compression for count in (1, 3)),
        _batch(2, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True),
        bytes(build_end_transaction_marker(marker, producer_id=7, producer_epoch=0)),
        _batch(1) + b"".join(patched(memoryview(_batch(2)), base_offset=1, leader_epoch=2)),
        _batch(1)[:16] + b"\1" + _batch(1)[17:],
        _batch(1)[:16] + b"\0" + _batch(1)[17:],
    ]


_CRC = Struct(">I")


def with_checksums(data: bytes) -> bytes:
    """The same batches with the right checksums, as any client can write them."""
    found = bytearray(data)
    at = 0
    with suppress(KafkaError):
        while len(found) - at >= HEADER_SIZE_BYTES:
            end = at + read_header(found, at).size_bytes
            if end > len(found):
                break
            _CRC.pack_into(found, at + 17, crc32c(memoryview(found)[at + 21 : end]))
            at = end
    return bytes(found)


@entry_point(KafkaError, seeds=_batches)
def opened_batches(data: bytes) -> None:
    """Batches of all versions and codecs, opened in each way."""
    for _, batch in batches(memoryview(with_checksums(data))):
        for opened in (records, keys_of, values_of):
            with suppress(KafkaError):
                list(opened(batch, BOUNDS))
        with suppress(KafkaError):
            end_transaction_marker(batch)
        with suppress(KafkaError):
            for record in records(batch, BOUNDS):
                with suppress(KafkaError):
                    decode_quorum_record(record)


_CONFIGS = (
    LogConfig(),
    LogConfig(cleanup_policy=("compact",)),
    LogConfig(compression_type="zstd"),
    LogConfig(message_timestamp_type="LogAppendTime"),
)


@entry_point(KafkaError, validation.NeedsThread, seeds=_batches)
def produced_batches(data: bytes) -> None:
    """What a Produce appends."""
    data = with_checksums(data)
    for config in _CONFIGS:
        for is_quick in (True, False):
            with suppress(KafkaError, validation.NeedsThread):
                validation.validate(
                    bytearray(data),
                    first_offset=10,
                    now_ms=NOW_MS,
                    config=config,
                    leader_epoch=3,
                    is_quick=is_quick,
                )


# -- records of internal topics ----------------------------------------------------------------------------------


_SIZE = Struct(">H")


def key_and_value(data: bytes) -> tuple[bytes | None, bytes | None]:
    """A key behind its size (65535: there is none), and a value (a size of 65534: there is none)."""
    if len(data) < 2:
        return None, None
    (size,) = _SIZE.unpack_from(data)
    rest = data[2:]
    if size == 0xFFFF:
        return None, rest
    if size == 0xFFFE:
        return rest, None
    return rest[:size], rest[size:]


def _pairs(pairs: Sequence[tuple[bytes | None, bytes | None]]) -> Sequence[bytes]:
    return [
        _SIZE.pack(0xFFFF) + (value or b"")
        if key is None
        else _SIZE.pack(0xFFFE) + key
        if value is None
        else _SIZE.pack(len(key)) + key + value
        for key, value in pairs
    ]


def _versions(cls: type[Message]) -> range:
    last = cls.__versions__.last
    assert last is not None, cls
    return range(cls.__versions__.first, last + 1)


_KIND = Struct(">h")


def _keyed(kind: int, key: type[Message], value: type[Message]) -> Iterator[tuple[bytes, bytes]]:
    for version in _versions(value):
        yield (
            _KIND.pack(kind) + encode_struct(key, 0, filled(key, 0)),
            _KIND.pack(version) + encode_struct(value, version, filled(value, version)),
        )


def _group_records() -> Sequence[bytes]:
    pairs: list[tuple[bytes | None, bytes | None]] = []
    for kind, key, value in (
        (1, OffsetCommitKey, OffsetCommitValue),
        (2, GroupMetadataKey, GroupMetadataValue),
        *((kind, newer_groups.KEYS[cls], cls) for kind, cls in newer_groups.VALUES.items()),
    ):
        pairs += _keyed(kind, key, value)
    return _pairs(pairs)


@entry_point(KafkaError, group_codec.UnknownRecordKind, NotKnown, seeds=_group_records)
def consumer_offsets(data: bytes) -> None:
    """`__consumer_offsets`: a coordinator loads it, a tool shows it."""
    key, value = key_and_value(data)
    with suppress(KafkaError, NotKnown):
        DECODERS["consumer-offsets"](key, value)
    record = group_codec.decode(key, value)
    group_codec.encode(record)
    if isinstance(record.value, GroupMetadataValue):
        group = group_from_value("g", record.value, GroupConfig())
        assignments = {member.member_id: member.assignment for member in group.members.values()}
        group_value(group, assignments)
    elif isinstance(record.value, OffsetCommitValue):
        offset_from_value(record.value, record_offset=1)


@entry_point(seeds=lambda: [bytes.fromhex("0001 00000001 0003") + b"fox" + bytes(4)])
def subscriptions(data: bytes) -> None:
    """A member's subscription, which its client wrote."""
    subscribed_topics(data)


def _transactions() -> Sequence[bytes]:
    return _pairs([*_keyed(0, TransactionLogKey, TransactionLogValue)])


@entry_point(KafkaError, transaction_codec.UnknownTransactionRecord, seeds=_transactions)
def transaction_state(data: bytes) -> None:
    """`__transaction_state`."""
    key, value = key_and_value(data)
    with suppress(KafkaError, NotKnown):
        DECODERS["transaction-state"](key, value)
    record = transaction_codec.decode(key, value)
    transaction_codec.encode(record, version=1)


def _share_states() -> Sequence[bytes]:
    return _pairs([*_keyed(0, share_state_records.SharePartitionKey, share_state_records.ShareSnapshotValue)])


@entry_point(KafkaError, NotKnown, seeds=_share_states)
def share_group_state(data: bytes) -> None:
    """`__share_group_state`, which tools show."""
    DECODERS["share-group-state"](*key_and_value(data))


@entry_point(
    KafkaError,
    remote_codec.UnknownRemoteLogMetadata,
    seeds=lambda: [
        remote_codec.encode(filled(cls, version), version=version)
        for cls in REMOTE_CLASSES.values()
        for version in _versions(cls)
    ],
)
def remote_log_metadata(data: bytes) -> None:
    """`__remote_log_metadata`, as a tool shows it and a broker reads it."""
    with suppress(KafkaError, NotKnown):
        DECODERS["remote-log-metadata"](None, data)
    remote_codec.encode(remote_codec.decode(data))


def _metadata_records() -> list[bytes]:
    return [
        metadata_frame.encode_record(filled(cls, version), version)
        for cls in METADATA_CLASSES.values()
        for version in _versions(cls)
    ]


@entry_point(InvalidMetadata, seeds=_metadata_records)
def cluster_metadata(data: bytes) -> None:
    """`__cluster_metadata`: one record."""
    record = metadata_frame.decode_record(data)
    with suppress(ValueError):  # a version that lacks a field of the record
        metadata_frame.encode_record(record, record.__versions__.last or 0)
    MetadataImage().replay_all([record])


def _replayed() -> Sequence[bytes]:
    framed = [_SIZE.pack(len(record)) + record for record in _metadata_records()]
    return [b"".join(framed), b"".join(framed[::-1]), *framed]


@entry_point(InvalidMetadata, seeds=_replayed)
def metadata_image(data: bytes) -> None:
    """`__cluster_metadata`: many records, replayed."""
    image, at = MetadataImage(), 0
    while at + 2 <= len(data):
        (size,) = _SIZE.unpack_from(data, at)
        record = data[at + 2 : at + 2 + size]
        at += 2 + size
        with suppress(InvalidMetadata):
            image.replay_all([metadata_frame.decode_record(record)])
    with suppress(InvalidMetadata):
        list(records_of(image, metadata_version=image.metadata_version or 20))


def _changes() -> Sequence[bytes]:
    copy = copy_of(1, 0, 10, (0, 0), (2, 5))
    return [
        topic_records.to_value(change)
        for change in (copy, to(1, RemoteLogSegmentState.COPY_SEGMENT_FINISHED))
    ]


@entry_point(KafkaError, remote_codec.UnknownRemoteLogMetadata, seeds=_changes)
def remote_log_changes(data: bytes) -> None:
    """`__remote_log_metadata`, as a broker understands it: what it means is written again as it was."""
    change = topic_records.from_value(data)
    topic_records.to_value(change)
    topic_records.user_partition_of(change)


def _voters() -> Sequence[bytes]:
    # They begin with their version.
    messages = [
        replace(filled(cls, 0), version=0) for cls in (KRaftVersionRecord, VotersRecord, LeaderChangeMessage)
    ]
    return [bytes(build_quorum_batch(messages, base_offset=0, leader_epoch=1, timestamp=NOW_MS))]


@entry_point(KafkaError, seeds=_voters)
def quorum_records(data: bytes) -> None:
    """`__cluster_metadata`: control records, from which the voters follow."""
    for _, batch in batches(memoryview(with_checksums(data))):
        for record in records(batch, BOUNDS):
            message = decode_quorum_record(record)
            if isinstance(message, VotersRecord):
                VoterSet.of_record(message).to_record()


# -- files -------------------------------------------------------------------------------------------------------


@contextmanager
def folder(**contents: bytes) -> Iterator[Path]:
    """A folder in memory, where there is one, with these files (`_` stands for `.` and `-`)."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        for name, data in contents.items():
            (Path(path) / name).write_bytes(data)
        yield Path(path)


@entry_point(
    checkpoints.CorruptCheckpoint,
    seeds=lambda: [b"0\n2\norders 0 17\norders 1 4\n", b"0\n0\n"],
)
def checkpoint_files(data: bytes) -> None:
    """`recovery-point-offset-checkpoint` and those like it."""
    with folder(checkpoint=data) as path:
        found = checkpoints.OffsetCheckpoint(path / "checkpoint", FILES)
        found.write(found.read())


@entry_point(checkpoints.CorruptCheckpoint, seeds=lambda: [b"0\n2\n0 0\n3 17\n", b"0\n0\n"])
def leader_epoch_checkpoints(data: bytes) -> None:
    """`leader-epoch-checkpoint`, of a log or of a copy."""
    for entry in leader_epoch_cache.decode(data):
        # As they are sent to others.
        _EPOCH_AND_OFFSET.pack(*entry)
    leader_epoch_cache.LeaderEpochCache(leader_epoch_cache.decode(data)).end_offset_for(2, log_end_offset=9)


_EPOCH_AND_OFFSET = Struct(">iq")


def _snapshots() -> Sequence[bytes]:
    state = ProducerState(
        producer_id=7, epoch=1, coordinator_epoch=None, last_timestamp=NOW_MS, transaction_first_offset=3
    )
    return [producer_snapshot.encode({}), producer_snapshot.encode({7: state})]


@entry_point(producer_snapshot.CorruptSnapshot, seeds=_snapshots)
def producer_snapshots(data: bytes) -> None:
    """`.snapshot`, with the right checksum."""
    if len(data) > 6:
        data = data[:2] + _CRC.pack(crc32c(data[6:])) + data[6:]
    states = producer_snapshot.decode(data)
    producer_snapshot.encode({state.producer_id: state for state in states})


@entry_point(
    meta_properties.InconsistentMetaProperties,
    seeds=lambda: [b"#\ncluster.id=abc\nversion=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAACg\nnode.id=1\n"],
)
def meta_properties_files(data: bytes) -> None:
    """`meta.properties`."""
    with folder(**{meta_properties.FILE_NAME: data}) as path:
        found = meta_properties.read(path, FILES)
        assert found is not None
        meta_properties.write(path, found, FILES)


@entry_point(ValueError, seeds=lambda: [b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAACg\n"])
def partition_metadata_files(data: bytes) -> None:
    """`partition.metadata`."""
    with folder(**{partition_metadata.FILE_NAME: data}) as path:
        partition_metadata.read(path, FILES)


@entry_point(
    InvalidMetadata,
    seeds=lambda: [
        b'{"clusterId":"","leaderId":1,"leaderEpoch":2,"votedId":-1,"appliedOffset":0,"currentVoters":[{"voterId":1}],"data_version":0}',
        b'{"leaderId":1,"leaderEpoch":2,"votedId":3,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAACg","data_version":1}',
    ],
)
def quorum_states(data: bytes) -> None:
    """`quorum-state`."""
    with folder(**{quorum_state.FILE_NAME: data}) as path:
        state = quorum_state.read(path, FILES)
        assert state is not None
        for number in (state.leader_epoch, state.leader_id, state.voted_id, *state.voters):
            _EPOCH_AND_OFFSET.pack(-1 if number is None else number, 0)
        quorum_state.write(path, state, FILES)


@cache
def _checkpoints_of_metadata() -> Sequence[bytes]:
    pieces: list[bytes] = []

    class Sink:
        def append(self, data: bytes) -> None:
            pieces.append(data)

    snapshots.write_to(Sink(), _metadata_records(), (), epoch=2, last_timestamp=NOW_MS, now_ms=NOW_MS)
    return [b"".join(pieces), pieces[0] + pieces[-1]]


@entry_point(InvalidMetadata, seeds=_checkpoints_of_metadata)
def metadata_snapshots(data: bytes) -> None:
    """`.checkpoint`, the node's own or a leader's."""
    with folder(snapshot=with_checksums(data)) as path:
        with suppress(InvalidMetadata):
            for _ in snapshots.read(path / "snapshot", FILES):
                pass
        with suppress(InvalidMetadata):
            snapshots.last_contained_timestamp(path / "snapshot", FILES)


def _copies() -> Sequence[bytes]:
    cache = cache_of(copy_of(1, 0, 10, (0, 0), (2, 5)), copy_of(2, 10, 20, (2, 10)))
    return [bytes(cache.to_bytes()), bytes(RemoteLogMetadataCache(PARTITION).to_bytes())]


@entry_point(ValueError, seeds=_copies)
def remote_metadata_snapshots(data: bytes) -> None:
    """`remote_log_snapshot`, with the right checksum: its columns."""
    cache = RemoteLogMetadataCache.from_bytes(PARTITION, memoryview(data))
    list(cache.segments())
    cache.to_bytes()
    for epoch in range(3):
        list(cache.referenced(epoch))
        cache.segment(epoch=epoch, offset=7)


@entry_point(CorruptCopy, seeds=_batches)
def remote_segments(data: bytes) -> None:
    """The bytes of a copy, as a store returns them."""
    copy = copy_of(1, 0, 100)
    parse(copy, memoryview(with_checksums(data)), position=0, after_offset=0)


@entry_point(checkpoints.CorruptCheckpoint, seeds=lambda: [b"0\n2\n3 17\n49 4\n"])
def committed_metadata_offsets(data: bytes) -> None:
    """`_rlmm_committed_offsets`."""
    with folder(**{committed_offsets.FILE_NAME: data}) as path:
        committed_offsets.write(path, committed_offsets.read(path, FILES), FILES)


@entry_point(
    InvalidConfig,
    seeds=lambda: [b"node.id=1\n# x\nlisteners=PLAINTEXT://:9092,\\\n  CONTROLLER://:9093\na:b\n"],
)
def properties_files(data: bytes) -> None:
    """`server.properties`."""
    with folder(**{"server.properties": data}) as path:
        read_properties(path / "server.properties")


#: The files of a log that are replaced, by the first byte of the input.
_LOG_FILES = (
    "00000000000000000000.log",
    "00000000000000000000.index",
    "00000000000000000000.timeindex",
    "00000000000000000000.txnindex",
    "00000000000000000005.log",
    "00000000000000000005.index",
    "00000000000000000005.timeindex",
    "00000000000000000005.snapshot",
    "leader-epoch-checkpoint",
    "partition.metadata",
)


@cache
def _log_files() -> dict[str, bytes]:
    """The files of a log of two segments."""
    with folder() as path:
        log = _opened(path / "orders-0", is_clean=True)
        for number in range(7):
            batch = _batch(1, producer_id=7, producer_epoch=0, base_sequence=number)
            if number == 5:
                log.roll(NOW_MS)
            log.append_as_leader(bytearray(batch), leader_epoch=number // 3, now_ms=NOW_MS)
        log.assign_topic_id(UUID(int=10))
        log.close()
        return {each.name: each.read_bytes() for each in (path / "orders-0").iterdir()}


def _opened(path: Path, *, is_clean: bool) -> Log:
    return Log.open(
        path,
        config=LogConfig(segment_bytes=10_000, index_interval_bytes=1),
        topic_partition=TopicPartition("orders", 0),
        now_ms=NOW_MS,
        files=FILES,
        random=Random(1),
        is_clean=is_clean,
    )


def _replaced() -> Sequence[bytes]:
    files = _log_files()
    return [
        bytes((number + clean,)) + files.get(name, bytes(34))
        for number, name in enumerate(_LOG_FILES)
        for clean in (0, 128)
    ]


@entry_point(InconsistentTopicId, seeds=_replaced)
def log_folders(data: bytes) -> None:
    """One file of a log's folder is replaced; the log is opened, read, appended to and closed."""
    if not data:
        return
    name = _LOG_FILES[(data[0] & 127) % len(_LOG_FILES)]
    content = with_checksums(data[1:]) if name.endswith(".log") else data[1:]
    with folder() as path:
        (path / "orders-0").mkdir()
        for each, valid in (_log_files() | {name: content}).items():
            (path / "orders-0" / each).write_bytes(valid)
        try:
            log = _opened(path / "orders-0", is_clean=data[0] >= 128)
        except ValueError:
            # A topic id that cannot be read: the directory is taken offline.
            assert name == partition_metadata.FILE_NAME
            return
        with suppress(KafkaError):
            log.reader.read(
                log.log_start_offset, max_bytes=1 << 20, max_offset=log.log_end_offset, min_one_message=True
            )
        with suppress(KafkaError):
            log.reader.offset_for_timestamp(NOW_MS)
        with suppress(KafkaError):
            log.append_as_leader(bytearray(_batch(1)), leader_epoch=9, now_ms=NOW_MS)
        with suppress(KafkaError):
            log.roll(NOW_MS)
        log.close()
