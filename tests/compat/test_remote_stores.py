"""The storage managers of object stores keep the contract against a real MinIO server (KIP-405)."""

import os
import socket
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from json import dumps
from threading import Thread

import boto3
import pytest

from ottla.bench.components.minio import ACCESS_KEY, SECRET_KEY, MinioServer
from ottla.protocol.errors import InvalidConfig
from ottla.remote.errors import RemoteResourceNotFound, RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.storage_manager import IndexType
from ottla.remote.stores.minio import MinioStorage
from ottla.remote.stores.object_storage import key_of
from ottla.remote.stores.s3 import S3Storage
from ottla.remote.testing import RemoteStorageManagerContract, read
from tests.harness.http_proxy import FaultyProxy, RangeIgnored, Rule, Truncated, Unmeasured, WrongRange

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


def boto_client(store):
    return boto3.client(
        "s3",
        endpoint_url=store.endpoint,
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )


def without_credentials(monkeypatch):
    """Nothing of this machine's environment says any."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "MINIO_")):
            monkeypatch.delenv(name)


@contextmanager
def answering(answer):
    """A server whose answer to a GET of a path is (status, body)."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def uploads_of(store, metadata):
    """Ids of the uploads in parts under way to a segment's object. MinIO lists them by the whole key only."""
    found = boto_client(store).list_multipart_uploads(Bucket=BUCKET, Prefix=f"a/b/{key_of(metadata)}")
    return [each["UploadId"] for each in found.get("Uploads", ())]


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
        assert key_of(copied.metadata, IndexType.OFFSET) in {each.key for each in found}
        now_ms = time.time_ns() // 1_000_000
        assert all(now_ms - 600_000 < each.modified_ms < now_ms + 60_000 for each in found)
        manager.delete_log_segment_data(copied.metadata)
        assert list(manager.list_objects(copied.metadata.partition)) == []

    def test_a_cancelled_copy_leaves_no_parts(self, manager, store, segment):
        cancelled = segment(size=4 * PART_BYTES)
        sent = []

        def on_bytes(count):
            sent.append(count)
            if sum(sent) > 2 * PART_BYTES:
                raise InterruptedError("enough")

        cancelled.data = replace(cancelled.data, on_bytes=on_bytes)
        with pytest.raises(InterruptedError, match="enough"):
            cancelled.copy_to(manager)
        assert uploads_of(store, cancelled.metadata) == []
        assert sum(sent) > 2 * PART_BYTES

    def test_the_parts_of_a_broker_that_was_killed_are_deleted_with_its_copy_and_no_others(
        self, manager, store, segment
    ):
        killed, under_way = segment(size=100), segment(size=100)
        client = boto_client(store)
        for each in (killed, under_way):
            place = {"Bucket": BUCKET, "Key": f"a/b/{key_of(each.metadata)}"}
            started = client.create_multipart_upload(**place)["UploadId"]
            client.upload_part(**place, UploadId=started, PartNumber=1, Body=bytes(PART_BYTES))
        manager.delete_log_segment_data(killed.metadata)
        assert uploads_of(store, killed.metadata) == []
        assert len(uploads_of(store, under_way.metadata)) == 1
        manager.delete_log_segment_data(under_way.metadata)
        assert uploads_of(store, under_way.metadata) == []

    def test_a_copy_that_is_repeated_aborts_what_a_killed_process_has_left_of_it(
        self, manager, store, segment
    ):
        repeated = segment(size=PART_BYTES + 1)
        client = boto_client(store)
        place = {"Bucket": BUCKET, "Key": f"a/b/{key_of(repeated.metadata)}"}
        killed = client.create_multipart_upload(**place)["UploadId"]
        client.upload_part(**place, UploadId=killed, PartNumber=1, Body=bytes(PART_BYTES))
        repeated.copy_to(manager)
        assert uploads_of(store, repeated.metadata) == []
        assert [
            each.size_bytes for each in manager.list_objects() if each.key == key_of(repeated.metadata)
        ] == [PART_BYTES + 1]

    def test_a_refused_key_is_not_retried(self, store, segment):
        with closing(configured(self.kind, store, **{"secret.key": "wrong"})) as manager:
            with pytest.raises(RemoteStorageError) as refused:
                segment(size=100).copy_to(manager)
            assert not isinstance(refused.value, RetriableRemoteStorageError)

    def test_a_missing_bucket_is_an_error_of_every_operation(self, store, segment):
        """The error differs from that of a missing object, which counts as deleted: with its bucket the
        copies may be back."""
        one = segment(size=100)
        with closing(configured(self.kind, store, bucket="nowhere")) as manager:
            for operation in (
                lambda: one.copy_to(manager),
                lambda: read(manager.fetch_log_segment(one.metadata, start_position=0)),
                lambda: read(manager.fetch_log_segment(one.metadata, start_position=7, end_position=9)),
                lambda: read(manager.fetch_index(one.metadata, IndexType.OFFSET)),
                lambda: manager.delete_log_segment_data(one.metadata),
                lambda: list(manager.list_objects()),
            ):
                with pytest.raises(RemoteStorageError) as missing:
                    operation()
                assert not isinstance(missing.value, RemoteResourceNotFound)

    def test_a_store_that_is_down_is_retried(self, store, segment):
        with closing(configured(self.kind, store, endpoint="http://127.0.0.1:1")) as manager:
            with pytest.raises(RetriableRemoteStorageError):
                segment(size=100).copy_to(manager)
            with pytest.raises(RetriableRemoteStorageError):
                manager.delete_log_segment_data(segment().metadata)

    @pytest.mark.parametrize("fault", [WrongRange(), RangeIgnored(), Truncated(50), Unmeasured()])
    def test_an_answer_that_is_refused_does_no_harm_to_the_next_read(self, store, segment, fault):
        with (
            FaultyProxy(store.endpoint) as proxy,
            closing(configured(self.kind, store, endpoint=proxy.endpoint)) as manager,
        ):
            copied = segment(size=1_000).copy_to(manager)
            proxy.rules = [Rule(fault, method="GET")]
            with pytest.raises(RemoteStorageError) as refused:
                read(manager.fetch_log_segment(copied.metadata, start_position=100, end_position=900))
            proxy.rules = []
            # Its frames still have the answer, as while the event loop has not received it.
            assert refused.tb is not None
            found = read(manager.fetch_log_segment(copied.metadata, start_position=100, end_position=900))
            assert found == copied.data.log_segment.read_bytes()[100:900]

    def test_a_whole_object_of_unknown_length_is_refused(self, store, segment):
        with (
            FaultyProxy(store.endpoint) as proxy,
            closing(configured(self.kind, store, endpoint=proxy.endpoint)) as manager,
        ):
            copied = segment(size=100).copy_to(manager)
            proxy.rules = [Rule(Unmeasured(), method="GET")]
            with pytest.raises(RemoteStorageError, match="no Content-Length"):
                read(manager.fetch_index(copied.metadata, IndexType.OFFSET))

    def test_missing_credentials_are_an_error_of_the_store(self, store, segment, monkeypatch, tmp_path):
        without_credentials(monkeypatch)
        # No profile, and no answer where an instance would ask for its role.
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        if self.kind is MinioStorage:  # which refuses such an address
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://192.0.2.1/")
        manager = configured(self.kind, store, **{"access.key": None, "secret.key": None})
        with closing(manager), pytest.raises(RemoteStorageError, match="credentials"):
            list(manager.list_objects())

    @pytest.mark.parametrize(
        "body", [b"<html><body>sign in<br></body></html>", b"<ListBucketResult><Contents><Key>a"]
    )
    def test_an_answer_that_is_no_xml_is_retried(self, body):
        with answering(lambda path: (200, body)) as endpoint:
            keys = {"bucket": "tier", "access.key": "a", "secret.key": "b", "region": "us-east-1"}
            with closing(self.kind()) as manager:
                manager.configure({**keys, "endpoint": endpoint})
                with pytest.raises(RetriableRemoteStorageError):
                    list(manager.list_objects())


class TestS3(_Contract):
    kind = S3Storage


class TestMinio(_Contract):
    kind = MinioStorage

    def test_an_instances_role_that_is_not_answered_is_waited_for_as_long_as_a_request(
        self, store, monkeypatch
    ):
        without_credentials(monkeypatch)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            uri = f"http://127.0.0.1:{silent.getsockname()[1]}/role"
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", uri)
            absent = {"access.key": None, "secret.key": None, "request.timeout.ms": "100"}
            manager = configured(self.kind, store, **absent)
            with closing(manager), pytest.raises(RetriableRemoteStorageError, match="timed out"):
                list(manager.list_objects())

    def test_an_instances_role_is_asked_for_again_while_its_service_is_busy(self, monkeypatch):
        role = {
            "AccessKeyId": "a",
            "SecretAccessKey": "b",
            "Token": "c",
            "Expiration": "2099-01-01T00:00:00Z",
        }
        answers = iter([(503, b"busy"), (200, dumps(role).encode())])

        def answer(path):
            return (
                next(answers)
                if path == "/role"
                else (200, b"<ListBucketResult><Name>b</Name></ListBucketResult>")
            )

        without_credentials(monkeypatch)
        with answering(answer) as endpoint:
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{endpoint}/role")
            with closing(MinioStorage()) as manager:
                manager.configure({"bucket": "tier", "endpoint": endpoint, "region": "us-east-1"})
                assert list(manager.list_objects()) == []


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
