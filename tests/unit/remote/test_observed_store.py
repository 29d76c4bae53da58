"""Whether the remote store can be used, as the outcome of its last call shows it."""

import pytest

from ottla.protocol.errors import InvalidConfig
from ottla.remote.errors import RemoteResourceNotFound, RemoteStorageError, TransferCancelled
from ottla.remote.observed_store import ObservedStore
from ottla.remote.storage_manager import LogSegmentData
from ottla.remote.stores.local_directory import LocalDirectory
from ottla.remote.stores.s3_settings import S3Settings


class Unopened(LocalDirectory):
    """A store that cannot be opened, as that of a plug-in whose service does not run."""

    def open(self):
        raise OSError("connection refused")


def test_a_store_that_cannot_be_opened_is_down():
    """There was no metric of it before its first call, and it was not checked again."""
    store = ObservedStore(Unopened(), monotonic=lambda: 0.0)
    assert store.is_up is None
    with pytest.raises(OSError, match="connection refused"):
        store.open()
    assert store.is_up is False


class Failing(LocalDirectory):
    """A store whose deletions fail with this error."""

    def __init__(self, error):
        super().__init__()
        self._error = error

    def delete_log_segment_data(self, metadata):
        raise self._error


@pytest.mark.parametrize(
    ("error", "is_up"),
    [
        (RemoteStorageError("refused"), False),
        (RemoteResourceNotFound("no such object"), None),
        (TransferCancelled("another broker leads the partition"), None),
    ],
)
def test_what_says_nothing_against_the_store(error, is_up):
    store = ObservedStore(Failing(error), monotonic=lambda: 0.0)
    with pytest.raises(type(error)):
        store.delete_log_segment_data(None)
    assert store.is_up is is_up


class Hanging(LocalDirectory):
    """A store whose calls run what the test does meanwhile."""

    def __init__(self, meanwhile):
        super().__init__()
        self._meanwhile = meanwhile

    def delete_log_segment_data(self, metadata):
        self._meanwhile()

    def copy_log_segment_data(self, metadata, data):
        self._meanwhile()
        data.on_bytes(1)
        self._meanwhile()


def test_a_call_that_hangs_is_down_until_it_ends():
    """The gauge stayed at 1: the call neither succeeded nor failed."""
    now, seen = [0.0], []

    def meanwhile():
        for _ in range(2):
            seen.append(store.is_up)
            now[0] += 91

    store = ObservedStore(Hanging(meanwhile), monotonic=lambda: now[0])
    store.delete_log_segment_data(None)
    seen.append(store.is_up)
    assert seen == [None, False, True]


def test_a_copy_that_sends_or_waits_for_its_quota_is_not_silent(tmp_path):
    now, seen = [0.0], []

    def on_bytes(_):
        now[0] += 1_000
        seen.append(store.is_silent)

    def meanwhile():
        now[0] += 60
        seen.append(store.is_silent)

    data = LogSegmentData(
        **dict.fromkeys(("log_segment", "offset_index", "time_index", "producer_snapshot"), tmp_path),
        transaction_index=None,
        leader_epoch_index=b"",
        on_bytes=on_bytes,
    )
    store = ObservedStore(Hanging(meanwhile), monotonic=lambda: now[0])
    store.copy_log_segment_data(None, data)
    assert (seen, store.is_up) == ([False, False, False], True)


def test_an_endpoint_has_no_user():
    with pytest.raises(InvalidConfig, match=r"rsm\.config\.access\.key") as caught:
        S3Settings.parse({"bucket": "b", "endpoint": "http://user:secret@127.0.0.1:9000"})
    assert "secret@" not in str(caught.value)
