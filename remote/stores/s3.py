"""S3Storage: Amazon S3 and compatible stores as remote tier, by boto3.

The settings are in `s3_settings.py`, the keys in `object_storage.py`.

A file larger than a part is uploaded in parts, one after the other: one connection, and one part in memory, for each copy.
The store checks a CRC of each part. An upload that fails is aborted; one whose broker was killed is aborted by
`abort_interrupted_uploads`.

Errors: 404 is RemoteResourceNotFound; 5xx, "slow down", time-outs, broken connections and bodies that end early are
RetriableRemoteStorageError; all others, as a refused key, are RemoteStorageError.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from typing import Any, BinaryIO, Final

import boto3
from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    IncompleteReadError,
)

from protocol.errors import InvalidConfig
from remote.errors import RemoteResourceNotFound, RemoteStorageError, RetriableRemoteStorageError
from remote.storage_manager import RemoteStream
from remote.stores.object_storage import ObjectStorage
from remote.stores.response_body import ResponseBody
from remote.stores.s3_settings import S3Settings

#: The bound of DeleteObjects.
_KEYS_A_REQUEST: Final = 1000
_NOT_FOUND: Final = frozenset({"404", "NoSuchKey", "NotFound"})
_TRANSIENT: Final = frozenset(
    {"RequestTimeout", "RequestTimeTooSkewed", "SlowDown", "Throttling", "TooManyRequests", "InternalError",
     "ServiceUnavailable", "XMinioServerNotInitialized", "BadDigest", "XAmzContentChecksumMismatch"}
)  # fmt: skip


class S3Storage(ObjectStorage):
    """See the module."""

    def configure(self, configs: Mapping[str, object]) -> None:
        """See `s3_settings`. Nothing is requested of the store: it may be down when a broker starts."""
        settings = S3Settings.parse(configs)
        access_key, secret_key = settings.credentials or (None, None)
        try:
            client = boto3.session.Session().client(
                "s3",
                endpoint_url=settings.endpoint,
                region_name=settings.region,
                aws_access_key_id=access_key,
                aws_secret_access_key=None if secret_key is None else secret_key.value,
                config=Config(
                    s3={"addressing_style": "path" if settings.is_path_style else "auto"},
                    connect_timeout=settings.request_timeout_s,
                    read_timeout=settings.request_timeout_s,
                    max_pool_connections=settings.max_connections,
                    # The RemoteLogManager retries, with its own back-off, and counts its attempts.
                    retries={"total_max_attempts": 1},
                ),
            )
        except (BotoCoreError, ValueError) as error:
            raise InvalidConfig(f"rsm.config.* of S3: {error}") from error
        self._store = S3Store(client, settings)


class S3Store:
    """The objects of a bucket below a prefix."""

    def __init__(self, client: Any, settings: S3Settings) -> None:  # noqa: ANN401 (boto3 has no types)
        self._client = client
        self._bucket = settings.bucket
        self._prefix = settings.prefix
        self._transfer = TransferConfig(
            multipart_threshold=settings.part_size_bytes,
            multipart_chunksize=settings.part_size_bytes,
            use_threads=False,
        )

    def put(self, key: str, source: BinaryIO, size_bytes: int) -> None:
        """Upload at once, or in parts if the file is large; a failed upload leaves nothing."""
        with _storage_errors(key):
            self._client.upload_fileobj(
                source,
                self._bucket,
                self._prefix + key,
                ExtraArgs={"ChecksumAlgorithm": "CRC32"},
                Config=self._transfer,
            )

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> RemoteStream:
        """A stream of the response's body."""
        if start == end:  # which no HTTP range can express
            with _storage_errors(key):
                self._client.head_object(Bucket=self._bucket, Key=self._prefix + key)
            return ResponseBody(key, None, 0, _storage_errors)
        range_ = (
            {} if start == 0 and end is None else {"Range": f"bytes={start}-{'' if end is None else end - 1}"}
        )
        with _storage_errors(key):
            response = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key, **range_)
        if range_ and not response.get("ContentRange", "").startswith(f"bytes {start}-"):
            response["Body"].close()
            raise RemoteStorageError(
                f"{key}: {range_['Range']} was answered with {response.get('ContentRange')!r}"
            )
        return ResponseBody(key, response["Body"], response["ContentLength"], _storage_errors)

    def delete(self, keys: Iterable[str]) -> None:
        """DeleteObjects, in requests of up to 1,000 keys."""
        rest = iter(keys)
        while some := list(islice(rest, _KEYS_A_REQUEST)):
            with _storage_errors(some[0]):
                response = self._client.delete_objects(
                    Bucket=self._bucket,
                    Delete={"Objects": [{"Key": self._prefix + key} for key in some], "Quiet": True},
                )
            for error in response.get("Errors", ()):
                if error.get("Code") not in _NOT_FOUND:
                    kind = (
                        RetriableRemoteStorageError if error.get("Code") in _TRANSIENT else RemoteStorageError
                    )
                    raise kind(
                        f"{error.get('Key')} was not deleted: {error.get('Code')} {error.get('Message')}"
                    )

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """ListObjectsV2, page by page."""
        with _storage_errors(prefix):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix):
                for each in page.get("Contents", ()):
                    yield each["Key"].removeprefix(self._prefix), each["Size"]

    def abort_interrupted_uploads(self, *, before: datetime) -> int:
        """Abort multipart uploads that began before then, and whose brokers are gone; returns their number.

        The store keeps, and bills, their parts until then.
        """
        count = 0
        with _storage_errors(self._prefix):
            pages = self._client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
                for each in page.get("Uploads", ()):
                    if each["Initiated"] < before:
                        self._client.abort_multipart_upload(
                            Bucket=self._bucket, Key=each["Key"], UploadId=each["UploadId"]
                        )
                        count += 1
        return count

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


@contextmanager
def _storage_errors(key: str) -> Iterator[None]:
    try:
        yield
    except S3UploadFailedError as error:
        cause = error.__context__
        raise (
            _translated(key, cause)
            if isinstance(cause, ClientError)
            else RemoteStorageError(f"{key}: {error}")
        ) from error
    except ClientError as error:
        raise _translated(key, error) from error
    except (ConnectionError, HTTPClientError, IncompleteReadError) as error:
        raise RetriableRemoteStorageError(f"{key}: {error}") from error
    except BotoCoreError as error:
        raise RemoteStorageError(f"{key}: {error}") from error


def _translated(key: str, error: ClientError) -> RemoteStorageError:
    code = str(error.response.get("Error", {}).get("Code"))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _NOT_FOUND:
        return RemoteResourceNotFound(f"{key}: {error}")
    is_transient = status >= 500 or status == 429 or code in _TRANSIENT
    return (RetriableRemoteStorageError if is_transient else RemoteStorageError)(f"{key}: {error}")
