"""The storage managers of object stores keep the contract against a real MinIO server (KIP-405)."""

from contextlib import closing

import pytest

from protocol.errors import InvalidConfig
from remote.errors import RemoteResourceNotFound, RemoteStorageError, RetriableRemoteStorageError
from remote.storage_manager import IndexType
from remote.stores.minio import MinioStorage
from remote.stores.s3 import S3Storage
from remote.testing import RemoteStorageManagerContract, read
from tests.harness.minio import MinioServer

BUCKET = "tier"
PART_BYTES = 5 * 1024 * 1024
KINDS = pytest.mark.parametrize("kind", [S3Storage, MinioStorage])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with MinioServer(tmp_path_factory.mktemp("minio")) as server:
        server.make_bucket(BUCKET)
        yield server


def configured(kind, store, **changes):
    manager = kind()
    settings = {**store.settings(BUCKET), "prefix": "a/b", "part.size.bytes": str(PART_BYTES), "broker.id": 1}
    manager.configure({**settings, **changes})
    return manager


class _Contract(RemoteStorageManagerContract):
    kind: type

    @pytest.fixture
    def manager(self, store):
        with closing(configured(self.kind, store)) as manager:
            yield manager

    def test_objects_are_listed(self, manager, segment):
        copied = segment(size=100).copy_to(manager)
        found = list(manager.list_objects(copied.metadata.partition))
        assert {each.index_type for each in found} == {None, *IndexType}
        assert {each.segment_id for each in found} == {copied.metadata.segment_id}
        assert [each.size_bytes for each in found if each.index_type is None] == [100]
        manager.delete_log_segment_data(copied.metadata)
        assert list(manager.list_objects(copied.metadata.partition)) == []

    def test_a_refused_key_is_not_retried(self, store, segment):
        with closing(configured(self.kind, store, **{"secret.key": "wrong"})) as manager:
            with pytest.raises(RemoteStorageError) as refused:
                segment(size=100).copy_to(manager)
            assert not isinstance(refused.value, RetriableRemoteStorageError)

    def test_a_missing_bucket_is_not_a_missing_segment(self, store, segment):
        with closing(configured(self.kind, store, bucket="nowhere")) as manager:
            with pytest.raises(RemoteStorageError) as missing:
                read(manager.fetch_index(segment().metadata, IndexType.OFFSET))
            assert not isinstance(missing.value, RemoteResourceNotFound)

    def test_a_store_that_is_down_is_retried(self, store, segment):
        with closing(configured(self.kind, store, endpoint="http://127.0.0.1:1")) as manager:
            with pytest.raises(RetriableRemoteStorageError):
                segment(size=100).copy_to(manager)
            with pytest.raises(RetriableRemoteStorageError):
                manager.delete_log_segment_data(segment().metadata)


class TestS3(_Contract):
    kind = S3Storage


class TestMinio(_Contract):
    kind = MinioStorage


@KINDS
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bucket": None}, "bucket is not set"),
        ({"secret.key": None}, "set both, or neither"),
        ({"part.size.bytes": "5"}, "part.size.bytes"),
        ({"endpoint": "nonsense"}, "nonsense"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(kind, store, changes, words):
    with pytest.raises(InvalidConfig, match=words):
        configured(kind, store, **changes)
