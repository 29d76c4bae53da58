"""Whether the remote store can be used, as the outcome of its last call shows it."""

import pytest

from ottla.protocol.errors import InvalidConfig
from ottla.remote.errors import RemoteResourceNotFound, RemoteStorageError, TransferCancelled
from ottla.remote.observed_store import ObservedStore
from ottla.remote.stores.local_directory import LocalDirectory
from ottla.remote.stores.s3_settings import S3Settings


class Unopened(LocalDirectory):
    """A store that cannot be opened, as that of a plug-in whose service does not run."""

    def open(self):
        raise OSError("connection refused")


def test_a_store_that_cannot_be_opened_is_down():
    """There was no metric of it before its first call, and it was not checked again."""
    store = ObservedStore(Unopened())
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
    store = ObservedStore(Failing(error))
    with pytest.raises(type(error)):
        store.delete_log_segment_data(None)
    assert store.is_up is is_up


def test_an_endpoint_has_no_user():
    with pytest.raises(InvalidConfig, match=r"rsm\.config\.access\.key") as caught:
        S3Settings.parse({"bucket": "b", "endpoint": "http://user:secret@127.0.0.1:9000"})
    assert "secret@" not in str(caught.value)
