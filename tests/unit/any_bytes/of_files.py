"""Entry points of files: of a data folder, and of what a store has of a log."""

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from struct import Struct
from uuid import UUID

from ottla.broker.cli.files.dump import DumpOptions, dump
from ottla.broker.cli.files.verify_command import CACHES
from ottla.config.load import read_properties
from ottla.config.log_config import LogConfig
from ottla.controller.metadata_log import quorum_state, snapshots
from ottla.metadata.image import InvalidMetadata
from ottla.protocol.checksum import crc32c
from ottla.protocol.errors import InconsistentTopicId, InvalidConfig, KafkaError
from ottla.protocol.types import TopicPartition
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.reading.chunk import CorruptCopy, parse
from ottla.remote.topic_metadata import subscriptions
from ottla.storage import checkpoints, leader_epoch_cache, partition_metadata, producer_snapshot
from ottla.storage.file_names import offset_of
from ottla.storage.log import Log
from ottla.storage.manager import log_directory, meta_properties
from ottla.storage.producer_append import ProducerState
from ottla.storage.verify.data_folder import inspect
from tests.unit.any_bytes.entry_point import (
    CRC,
    FILES,
    NOW_MS,
    batch_of,
    entry_point,
    folder,
    metadata_records,
    valid_batches,
    with_checksums,
)
from tests.unit.remote.remote_support import PARTITION, cache_of, copy_of


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
        data = data[:2] + CRC.pack(crc32c(data[6:])) + data[6:]
    states = producer_snapshot.decode(data)
    producer_snapshot.encode({state.producer_id: state for state in states})


@entry_point(
    meta_properties.InconsistentMetaProperties,
    seeds=lambda: [b"#\ncluster.id=abc\nversion=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAACg\nnode.id=1\n"],
)
def meta_properties_files(data: bytes) -> None:
    """The contents of `meta.properties` files."""
    with folder(**{meta_properties.FILE_NAME: data}) as path:
        found = meta_properties.read(path, FILES)
        assert found is not None
        meta_properties.write(path, found, FILES)


@entry_point(ValueError, seeds=lambda: [b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAACg\n"])
def partition_metadata_files(data: bytes) -> None:
    """The contents of `partition.metadata` files."""
    with folder(**{partition_metadata.FILE_NAME: data}) as path:
        partition_metadata.read(path, FILES)


@entry_point(
    InvalidMetadata,
    seeds=lambda: [
        (
            b'{"clusterId":"","leaderId":1,"leaderEpoch":2,"votedId":-1,"appliedOffset":0,'
            b'"currentVoters":[{"voterId":1}],"data_version":0}'
        ),
        b'{"leaderId":1,"leaderEpoch":2,"votedId":3,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAACg","data_version":1}',
    ],
)
def quorum_states(data: bytes) -> None:
    """The contents of `quorum-state` files."""
    with folder(**{quorum_state.FILE_NAME: data}) as path:
        state = quorum_state.read(path, FILES)
        assert state is not None
        for number in (state.leader_epoch, state.leader_id, state.voted_id, *state.voters):
            _EPOCH_AND_OFFSET.pack(-1 if number is None else number, 0)
        quorum_state.write(path, state, FILES)


@entry_point(seeds=lambda: [b'{"version":1,"brokerEpoch":17}', b""])
def clean_shutdown_files(data: bytes) -> None:
    """`.kafka_cleanshutdown`: the epoch is sent to the controller."""
    with folder(**{log_directory.CLEAN_SHUTDOWN_FILE: data}) as path:
        was_clean, epoch = log_directory._take_clean_shutdown(path, FILES)
        assert was_clean
        _EPOCH_AND_OFFSET.pack(0, -1 if epoch is None else epoch)


@cache
def _checkpoints_of_metadata() -> Sequence[bytes]:
    pieces: list[bytes] = []

    class Sink:
        def append(self, data: bytes) -> None:
            pieces.append(data)

    snapshots.write_to(Sink(), metadata_records(), (), epoch=2, last_timestamp=NOW_MS, now_ms=NOW_MS)
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


def _dumped() -> Sequence[bytes]:
    epochs = b"0\n1\n0 0\n"
    files = _log_files() | {
        "recovery-point-offset-checkpoint": b"0\n1\norders 0 17\n",
        quorum_state.FILE_NAME: b'{"leaderId":1,"leaderEpoch":2,"votedId":-1,"data_version":1}',
        meta_properties.FILE_NAME: b"version=1\ncluster.id=abc\nnode.id=1\n",
        "00000000000000000007-0000000002.checkpoint": _checkpoints_of_metadata()[0],
        "00000000000000000000.txnindex": bytes(34),
        leader_epoch_cache.FILE_NAME: epochs,
    }
    return [bytes((number,)) + files.get(name, b"") for number, name in enumerate(_DUMPED)]


#: The files that a tool shows, by the first byte of the input.
_DUMPED = (
    "00000000000000000000.log",
    "00000000000000000000.index",
    "00000000000000000000.timeindex",
    "00000000000000000000.txnindex",
    "00000000000000000005.snapshot",
    "00000000000000000007-0000000002.checkpoint",
    "leader-epoch-checkpoint",
    "partition.metadata",
    "recovery-point-offset-checkpoint",
    "meta.properties",
    "quorum-state",
    ".kafka_cleanshutdown",
    "record-times-checkpoint",
    "remote_log_snapshot",
)


@entry_point(seeds=_dumped)
def dumped_files(data: bytes) -> None:
    """Every file of a data folder, as tools show and check it: what is wrong is a row, never an error."""
    if not data:
        return
    name = _DUMPED[data[0] % len(_DUMPED)]
    content = with_checksums(data[1:]) if name.endswith((".log", ".checkpoint")) else data[1:]
    with folder() as path:
        for partition in ("orders-0", "__consumer_offsets-0", "__cluster_metadata-0"):
            (path / partition).mkdir()
            (path / partition / name).write_bytes(content)
            list(dump(path / partition / name, FILES, DumpOptions(has_data=True, is_decoded=True)))
        (path / name).write_bytes(content)
        inspect(path, FILES, caches=CACHES)


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


@entry_point(CorruptCopy, seeds=valid_batches)
def remote_segments(data: bytes) -> None:
    """The bytes of a copy, as a store returns them."""
    copy = copy_of(1, 0, 100)
    parse(copy, memoryview(with_checksums(data)), position=0, after_offset=0)


@entry_point(checkpoints.CorruptCheckpoint, seeds=lambda: [b"0\n2\n3 17\n49 4\n"])
def committed_metadata_offsets(data: bytes) -> None:
    """The contents of `_rlmm_committed_offsets` files."""
    with folder(**{subscriptions.COMMITTED_OFFSETS_FILE: data}) as path:
        subscriptions.write_committed_offsets(path, subscriptions.read_committed_offsets(path, FILES), FILES)


@entry_point(
    InvalidConfig,
    seeds=lambda: [b"node.id=1\n# x\nlisteners=PLAINTEXT://:9092,\\\n  CONTROLLER://:9093\na:b\n"],
)
def properties_files(data: bytes) -> None:
    """The contents of `server.properties` files."""
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
            batch = batch_of(1, producer_id=7, producer_epoch=0, base_sequence=number)
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


def name_of(data: bytes) -> str | None:
    """A name that a file can have; None: it is none."""
    name = data.decode(errors="surrogateescape")
    is_name = name not in ("", ".", "..") and not set(name) & set("/\0") and len(data) < 256
    return name if is_name else None


@entry_point(
    seeds=lambda: [
        bytes((clean,)) + name.encode()
        for name in (*_LOG_FILES, "00000000000000000003.log.cleaned", "00000000000000000003.log.swap", "9.log",
                     "00000000000000000003.snapshot", "00000000000000000003.index.deleted",
                     "09223372036854775806.log", "09223372036854775807.log")
        for clean in (0, 128)
    ]
)  # fmt: skip
def names_in_a_log(data: bytes) -> None:
    """One more file of any name is in a log's folder, with the bytes of its first segment."""
    if (name := name_of(data[1:])) is None:
        return
    with folder() as path:
        (path / "orders-0").mkdir()
        (path / "orders-0" / name).write_bytes(_log_files()[_LOG_FILES[0]])
        for each, valid in _log_files().items():
            (path / "orders-0" / each).write_bytes(valid)
        log = _opened(path / "orders-0", is_clean=data[0] >= 128)
        if offset_of(name) is None or name in _log_files():
            assert (log.log_start_offset, log.log_end_offset) == (0, 7), name
        with suppress(KafkaError):
            log.append_as_leader(bytearray(batch_of(1)), leader_epoch=9, now_ms=NOW_MS)
        with suppress(KafkaError):
            log.roll(NOW_MS)
        log.close()


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
            log.append_as_leader(bytearray(batch_of(1)), leader_epoch=9, now_ms=NOW_MS)
        with suppress(KafkaError):
            log.roll(NOW_MS)
        log.close()
