"""Sentences about a store that speaks S3: one that answers that it is busy is no store that does not answer."""

import pytest
from botocore.exceptions import ClientError
from minio.error import S3Error, ServerError

from ottla.remote.errors import RetriableRemoteStorageError
from ottla.remote.stores.object_storage import Action
from ottla.remote.stores.s3_problems import explained
from ottla.remote.stores.s3_settings import S3Settings


def of_boto3(code, status):
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")


def of_minio(code):
    return S3Error(
        response=None,
        code=code,
        message="",
        resource="",
        request_id="",
        host_id="",
        bucket_name="",
        object_name="",
    )


def sentence(cause):
    error = RetriableRemoteStorageError("k: refused")
    error.__cause__ = cause
    settings = S3Settings.parse({"bucket": "b", "endpoint": "http://127.0.0.1:9000"})
    return explained(settings, error, Action.WRITE)


@pytest.mark.parametrize(("cause", "code"), [
    (of_boto3("SlowDown", 503),           "SlowDown"),
    (of_boto3("503", 503),                "503"),  # an answer without a body
    (of_minio("SlowDownWrite"),           "SlowDownWrite"),
    (ServerError("no body", 503),         "503"),
])  # fmt: skip
def test_throttling_is_named(cause, code):
    """It was said that no store answers."""
    said = sentence(cause)
    assert said.startswith(
        f"the store at http://127.0.0.1:9000 throttles requests for the bucket 'b' ({code}): "
    )
    assert "remote.log.manager.copy.max.bytes.per.second" in said


def test_another_failure_of_the_server_is_an_answer():
    assert sentence(ServerError("server failed", 502)).startswith("objects of the bucket 'b' at")


def test_no_answer():
    assert "no store answers there (Connection refused)" in sentence(
        ConnectionRefusedError(111, "Connection refused")
    )
