"""A bucket that grants putting, getting and deleting objects only is enough for a tier."""

from types import SimpleNamespace as Fake

import pytest
from botocore.exceptions import ClientError
from minio.error import S3Error

from ottla.remote.errors import RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.stores import minio, s3_store

KEYS = ["t-0-x/00000000000000000000-y.log", "t-0-x/00000000000000000000-y.index"]
SETTINGS = Fake(bucket="b", prefix="", part_size_bytes=None)


def s3(code, status):
    """A client of the store made by boto3."""

    def refuse(**_):
        raise ClientError(
            {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "List"
        )

    client = Fake(
        meta=Fake(events=Fake(register=lambda *_: None)),
        delete_objects=lambda **_: {},
        get_paginator=lambda _: Fake(paginate=refuse),
    )
    return s3_store.S3Store(client, SETTINGS)


def by_minio(code, status):
    """A client of the store made by the minio library."""

    def refuse(*_, **__):
        raise S3Error(
            response=Fake(status=status),
            code=code,
            message="no",
            resource=None,
            request_id=None,
            host_id=None,
        )

    client = Fake(remove_objects=lambda *_: [], _list_multipart_uploads=refuse)
    return minio.MinioStore(client, SETTINGS, pool=None)


@pytest.fixture(params=[s3, by_minio])
def store_that_answers(request):
    return request.param


@pytest.mark.parametrize(("code", "status"), [("AccessDenied", 403), ("NotImplemented", 501)])
def test_a_deletion_is_complete_when_uploads_cannot_be_listed(store_that_answers, caplog, code, status):
    store = store_that_answers(code, status)
    store.delete(KEYS)
    store.delete(KEYS)
    assert len([each for each in caplog.records if "AbortIncompleteMultipartUpload" in each.message]) == 1


@pytest.mark.parametrize(("code", "status", "error"), [
    ("SlowDown", 503, RetriableRemoteStorageError),
    ("InvalidAccessKeyId", 403, RemoteStorageError),
])  # fmt: skip
def test_other_failures_are_those_of_the_deletion(store_that_answers, code, status, error):
    with pytest.raises(error):
        store_that_answers(code, status).delete(KEYS)
