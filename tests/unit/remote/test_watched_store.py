"""Reads whose bytes come too slowly fail; all others are as the store's (KIP-405)."""

from io import BytesIO

import pytest

from ottla.remote.errors import RetriableRemoteStorageError
from ottla.remote.stores.local_directory import LocalDirectory
from ottla.remote.testing import RemoteStorageManagerContract, read
from ottla.remote.watched_store import MIN_BYTES, WINDOW_S, WatchedStore


class Trickle(LocalDirectory):
    """Each read of a stream brings at most `piece_bytes`, and takes `pause_s`."""

    def __init__(self, *, piece_bytes, pause_s):
        super().__init__()
        self._piece_bytes = piece_bytes
        self._pause_s = pause_s
        self.now_s = 0.0

    def _slowly(self, stream):
        body = BytesIO(read(stream))
        inner = body.read

        def step(size=-1):
            self.now_s += self._pause_s
            return inner(self._piece_bytes if size < 0 else min(size, self._piece_bytes))

        def fill(buffer):
            data = step(len(buffer))
            buffer[: len(data)] = data
            return len(data)

        body.read, body.readinto1 = step, fill
        return body

    def fetch_log_segment(self, metadata, *, start_position, end_position=None):
        return self._slowly(
            super().fetch_log_segment(metadata, start_position=start_position, end_position=end_position)
        )

    def fetch_index(self, metadata, index_type):
        return self._slowly(super().fetch_index(metadata, index_type))


def filled(stream):
    """All of a stream, read into memory of 4 MiB as chunks are."""
    body, at = memoryview(bytearray(4 * MIN_BYTES)), 0
    while size := stream.readinto1(body[at:]):
        at += size
    return bytes(body[:at])


def watched(tmp_path, **speed):
    store = Trickle(**speed)
    store.configure({"dir": str(tmp_path)})
    store.create()
    return WatchedStore(store, monotonic=lambda: store.now_s)


class TestContract(RemoteStorageManagerContract):
    @pytest.fixture
    def manager(self, tmp_path):
        return watched(tmp_path, piece_bytes=1 << 20, pause_s=0.0)

    @pytest.mark.parametrize(
        ("piece_bytes", "pause_s", "is_read"),
        [
            (1 << 20, 0.0, True),
            (64 << 10, 1.0, True),  # slow, at 64 KiB a second
            (64 << 10, WINDOW_S / 16, True),  # just
            (64 << 10, WINDOW_S / 14, False),
            (1000, 1.0, False),
            (1, 0.001, False),  # a kilobyte a second, byte by byte
        ],
    )
    @pytest.mark.parametrize("drained", [read, filled])
    def test_a_body_that_trickles_is_an_error(
        self, tmp_path, segment, piece_bytes, pause_s, is_read, drained
    ):
        store = watched(tmp_path, piece_bytes=piece_bytes, pause_s=pause_s)
        copied = segment(size=3 * MIN_BYTES).copy_to(store)
        stream = store.fetch_log_segment(copied.metadata, start_position=0)
        if is_read:
            assert len(drained(stream)) == 3 * MIN_BYTES
        else:
            with pytest.raises(RetriableRemoteStorageError, match=r"only .* bytes have come within 30 s"):
                drained(stream)
            assert store.store.now_s < 2 * WINDOW_S
