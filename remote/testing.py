"""The contract of RemoteStorageManager as tests: a subclass runs them against its implementation, with pytest.

    class TestMyStore(RemoteStorageManagerContract):
        @pytest.fixture
        def manager(self):
            manager = MyStore()
            manager.configure({"broker.id": 1, ...})
            yield manager
            manager.close()

The store may hold other partitions' segments, also those of an earlier run: each test uses a topic id of its own.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import UUID, uuid1

import pytest

from ottla.protocol.types import TopicPartition
from ottla.remote.errors import RemoteResourceNotFound, RemoteStorageError
from ottla.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from ottla.remote.storage_manager import (
    IndexType,
    LogSegmentData,
    RemoteStorageManager,
    RemoteStream,
    filling,
)
from ottla.storage.leader_epoch_cache import EpochEntry

#: The size of a segment that is larger than the smallest part of a multipart upload, 5 MiB.
_LARGE_BYTES = 20 * 1024 * 1024
#: The most bytes that are reported at once.
_PIECE_BYTES = 1024 * 1024


class _Cancelled(Exception):
    """The caller's own error, raised by `on_bytes` to cancel a copy."""


class RemoteStorageManagerContract:
    """The tests that every RemoteStorageManager must pass; the fixture `manager` is a configured implementation."""

    @pytest.fixture
    def manager(self) -> Iterator[RemoteStorageManager]:
        """The implementation under test, configured; a subclass overrides this fixture."""
        pytest.fail("a subclass overrides the fixture `manager`")

    @pytest.fixture
    def segment(self, tmp_path: Path) -> Callable[..., "Segment"]:
        """A function that makes segments with files of random bytes; all of one partition, unless `topic` is given."""
        topic_id = uuid1()
        random = Random(topic_id.int)

        def make(
            start_offset: int = 4711,
            *,
            topic: str = "orders",
            size: int = 100_000,
            is_transactional: bool = True,
        ) -> Segment:
            return Segment.make(
                tmp_path,
                TopicIdPartition(topic_id, TopicPartition(topic, 3)),
                start_offset=start_offset,
                size=size,
                is_transactional=is_transactional,
                random=random,
            )

        return make

    def test_a_copied_segment_is_read_back(
        self, manager: RemoteStorageManager, segment: Callable[..., "Segment"]
    ) -> None:
        """The segment and each index have the bytes of the files."""
        copied = segment().copy_to(manager)
        assert read(manager.fetch_log_segment(copied.metadata, start_position=0)) == copied.log
        for index_type, content in copied.indexes.items():
            assert read(manager.fetch_index(copied.metadata, index_type)) == content, index_type

    @pytest.mark.parametrize(
        ("start", "end"),
        [(0, None), (0, 1), (1, 61), (0, 100_000), (99_999, 100_000), (99_999, None), (0, 200_000), (500, 500),
         (100_000, None), (100_000, 100_000), (100_000, 300_000)],
    )  # fmt: skip
    def test_a_range_of_a_segment(
        self, manager: RemoteStorageManager, segment: Callable[..., "Segment"], start: int, end: int | None
    ) -> None:
        """The start is inclusive, the end exclusive; a range beyond the segment's end is empty."""
        copied = segment().copy_to(manager)
        found = read(manager.fetch_log_segment(copied.metadata, start_position=start, end_position=end))
        assert found == copied.log[start:end]

    def test_a_stream_is_read_in_pieces_and_closed_early(
        self, manager: RemoteStorageManager, segment: Callable[..., "Segment"]
    ) -> None:
        """`read` returns at most as many bytes as it was called for; closing before the end releases the connection."""
        copied = segment().copy_to(manager)
        for _ in range(20):
            with closing(manager.fetch_log_segment(copied.metadata, start_position=10)) as stream:
                pieces = b""
                while len(pieces) < 1000:
                    piece = stream.read(100)
                    assert 0 < len(piece) <= 100
                    pieces += piece
            assert pieces == copied.log[10 : 10 + len(pieces)]

    def test_a_stream_is_read_into_memory(
        self, manager: RemoteStorageManager, segment: Callable[..., "Segment"]
    ) -> None:
        """A stream is read by its `readinto1`, where it has one: some bytes each time, and 0 at the end only."""
        copied = segment(size=700_000).copy_to(manager)
        with closing(
            manager.fetch_log_segment(copied.metadata, start_position=10, end_position=600_000)
        ) as stream:
            fill, left = filling(stream, piece_bytes=65_536), memoryview(bytearray(650_000))
            body = left
            while size := fill(left):
                left = left[size:]
        assert body[: -len(left)] == copied.log[10:600_000]

    def test_a_segment_without_aborted_transactions_has_no_transaction_index(
        self, manager: RemoteStorageManager, segment: Callable[..., "Segment"]
    ) -> None:
        """The transaction index is not found; all other indexes are."""
        copied = segment(is_transactional=False).copy_to(manager)
        with pytest.raises(RemoteResourceNotFound):
            read(manager.fetch_index(copied.metadata, IndexType.TRANSACTION))
        assert (
            read(manager.fetch_index(copied.metadata, IndexType.OFFSET)) == copied.indexes[IndexType.OFFSET]
        )

    def test_an_unknown_segment_is_not_found(
        self, manager: RemoteStorageManager, segment: Callable[..., "Segment"]
    ) -> None:
        """The batches and the indexes of an unknown segment are not found."""
        unknown = segment()
        with pytest.raises(RemoteResourceNotFound):
            read(manager.fetch_log_segment(unknown.metadata, start_position=0))
        for index_type in IndexType:
            with pytest.raises(RemoteResourceNotFound):
                read(manager.fetch_index(unknown.metadata, index_type))

    def test_a_repeated_copy_replaces_the_first_one(
        self, manager: RemoteStorageManager, segment: Callable[..., "Segment"]
    ) -> None:
        """A copy with the same id is a retry: the objects of the first attempt are overwritten."""
        first, second = segment(size=5000), segment(size=5000)
        first.copy_to(manager)
        second.metadata = first.metadata
        second.copy_to(manager)
        assert read(manager.fetch_log_segment(second.metadata, start_position=0)) == second.log
        assert (
            read(manager.fetch_index(second.metadata, IndexType.OFFSET)) == second.indexes[IndexType.OFFSET]
        )

    def test_copies_of_the_same_offsets_are_independent(
        self, manager: RemoteStorageManager, segment: Callable[..., "Segment"]
    ) -> None:
        """Two leaders have copied the same segment, each with an id of its own; one of them is deleted."""
        one, other = segment().copy_to(manager), segment().copy_to(manager)
        manager.delete_log_segment_data(one.metadata)
        with pytest.raises(RemoteResourceNotFound):
            read(manager.fetch_log_segment(one.metadata, start_position=0))
        assert read(manager.fetch_log_segment(other.metadata, start_position=0)) == other.log

    def test_a_deletion_is_idempotent(
        self, manager: RemoteStorageManager, segment: Callable[..., "Segment"]
    ) -> None:
        """A copy that is deleted, or was never made, is deleted without an error."""
        copied = segment().copy_to(manager)
        for _ in range(2):
            manager.delete_log_segment_data(copied.metadata)
        manager.delete_log_segment_data(segment().metadata)
        with pytest.raises(RemoteResourceNotFound):
            read(manager.fetch_index(copied.metadata, IndexType.LEADER_EPOCH))
        copied.copy_to(manager)
        assert read(manager.fetch_log_segment(copied.metadata, start_position=0)) == copied.log

    @pytest.mark.parametrize("topic", ["a", "A.b_c-d", "..a", "-7", "t" * 200, "x-1-AAAAAAAAAAAAAAAAAAAAAA"])
    @pytest.mark.parametrize("start_offset", [0, 2**62])
    def test_names_and_offsets_of_every_kind(
        self, manager: RemoteStorageManager, segment: Callable[..., "Segment"], topic: str, start_offset: int
    ) -> None:
        """Every legal topic name, and offsets of 19 digits, can be copied and read."""
        copied = segment(start_offset, topic=topic, size=100).copy_to(manager)
        assert read(manager.fetch_log_segment(copied.metadata, start_position=0)) == copied.log
        manager.delete_log_segment_data(copied.metadata)

    def test_a_large_segment(self, manager: RemoteStorageManager, segment: Callable[..., "Segment"]) -> None:
        """A segment that is larger than one part of a multipart upload is read back, as a whole and in part."""
        copied = segment(size=_LARGE_BYTES).copy_to(manager)
        assert read(manager.fetch_log_segment(copied.metadata, start_position=0)) == copied.log
        tail = manager.fetch_log_segment(copied.metadata, start_position=_LARGE_BYTES - 7)
        assert read(tail) == copied.log[-7:]

    def test_each_piece_is_reported_before_it_is_sent(
        self, manager: RemoteStorageManager, segment: Callable[..., "Segment"]
    ) -> None:
        """Each byte is reported once, in pieces of up to 1 MiB, also within a large segment: a quota waits there."""
        large = segment(size=_LARGE_BYTES)
        pieces: list[int] = []
        large.data = replace(large.data, on_bytes=pieces.append)
        large.copy_to(manager)
        sent = len(large.log) + sum(map(len, large.indexes.values()))
        assert max(pieces) <= _PIECE_BYTES
        assert sum(pieces) == sent
        assert read(manager.fetch_log_segment(large.metadata, start_position=0)) == large.log

    @pytest.mark.parametrize("after_bytes", [0, 1000, 100_000, 7 * 1024 * 1024])
    def test_a_copy_is_cancelled_by_its_caller(
        self, manager: RemoteStorageManager, segment: Callable[..., "Segment"], after_bytes: int
    ) -> None:
        """An exception of `on_bytes` reaches the caller; the copy can be repeated, and be deleted."""
        cancelled = segment(size=_LARGE_BYTES)
        data = cancelled.data
        left = after_bytes

        def on_bytes(count: int) -> None:
            nonlocal left
            left -= count
            if left < 0:
                raise _Cancelled("the partition is gone")

        cancelled.data = replace(data, on_bytes=on_bytes)
        with pytest.raises(_Cancelled, match="the partition is gone"):
            cancelled.copy_to(manager)
        cancelled.data = data
        cancelled.copy_to(manager)
        assert read(manager.fetch_log_segment(cancelled.metadata, start_position=0)) == cancelled.log
        manager.delete_log_segment_data(cancelled.metadata)
        with pytest.raises(RemoteResourceNotFound):
            read(manager.fetch_log_segment(cancelled.metadata, start_position=0))

    def test_a_file_that_is_too_short_is_not_copied(
        self, manager: RemoteStorageManager, segment: Callable[..., "Segment"]
    ) -> None:
        """A segment that changes during its copy is an error, not a shorter object."""
        short = segment(size=50_000)
        short.data.log_segment.write_bytes(short.log[:-1])
        with pytest.raises(RemoteStorageError):
            short.copy_to(manager)

    def test_several_threads_at_a_time(
        self, manager: RemoteStorageManager, segment: Callable[..., "Segment"]
    ) -> None:
        """Copies, reads and deletions of different segments do not disturb one another."""
        segments = [segment(offset, size=50_000) for offset in range(12)]
        together = threading.Barrier(4)

        def work(mine: list[Segment]) -> None:
            together.wait(30)
            for each in mine:
                each.copy_to(manager)
            for each in mine:
                assert read(manager.fetch_log_segment(each.metadata, start_position=0)) == each.log
                manager.delete_log_segment_data(each.metadata)

        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(work, segments[at::4]) for at in range(4)]:
                done.result(60)


class Segment:
    """A segment with its files, and their contents."""

    def __init__(
        self,
        metadata: RemoteLogSegmentMetadata,
        data: LogSegmentData,
        log: bytes,
        indexes: Mapping[IndexType, bytes],
    ) -> None:
        self.metadata = metadata
        self.data = data
        self.log = log
        self.indexes = indexes

    @classmethod
    def make(
        cls,
        folder: Path,
        partition: TopicIdPartition,
        *,
        start_offset: int,
        size: int,
        is_transactional: bool,
        random: Random,
    ) -> "Segment":
        """Write files of random bytes; the offset index of a small segment is empty, as in a real log."""
        segment_id = UUID(int=random.getrandbits(128))
        log = random.randbytes(size)
        indexes = {
            each: random.randbytes(0 if each is IndexType.OFFSET and size < 4096 else 500)
            for each in IndexType
            if is_transactional or each is not IndexType.TRANSACTION
        }
        own = folder / str(segment_id)
        own.mkdir()
        (own / "log").write_bytes(log)
        for index_type, content in indexes.items():
            (own / index_type.value).write_bytes(content)
        metadata = RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(partition, segment_id),
            start_offset=start_offset,
            end_offset=start_offset + 100,
            max_timestamp_ms=1_700_000_000_000,
            broker_id=1,
            event_timestamp_ms=1_700_000_000_001,
            segment_size_bytes=size,
            leader_epochs=(EpochEntry(5, start_offset),),
            is_transaction_index_empty=not is_transactional,
        )
        data = LogSegmentData(
            log_segment=own / "log",
            offset_index=own / IndexType.OFFSET.value,
            time_index=own / IndexType.TIMESTAMP.value,
            transaction_index=own / IndexType.TRANSACTION.value if is_transactional else None,
            producer_snapshot=own / IndexType.PRODUCER_SNAPSHOT.value,
            leader_epoch_index=indexes[IndexType.LEADER_EPOCH],
        )
        return cls(metadata, data, log, indexes)

    def copy_to(self, manager: RemoteStorageManager) -> "Segment":
        """Copy the segment to the store; later calls get the custom metadata."""
        custom_metadata = manager.copy_log_segment_data(self.metadata, self.data)
        self.metadata = replace(self.metadata, custom_metadata=custom_metadata)
        return self


def read(stream: RemoteStream) -> bytes:
    """Read a stream to its end, and close it."""
    with closing(stream):
        pieces = []
        while piece := stream.read(65536):
            pieces.append(piece)
    return b"".join(pieces)
