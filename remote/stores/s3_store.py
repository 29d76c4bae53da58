"""S3Store: the requests of S3Storage, by boto3.

A segment larger than a part is uploaded in parts, one after the other: one connection for each copy, and no
part in memory, since boto3 reads the file as it sends. The store checks a CRC of each part. An upload that
fails is aborted. If its process was killed, the next attempt of that copy aborts it, or its deletion, which
its metadata demands: a copy has a key of its own, so this cannot disturb the upload of another broker, as a
rule by age could.

Errors: 404 of an object is RemoteResourceNotFound; 5xx, "slow down", time-outs, broken connections and bodies
that end early are RetriableRemoteStorageError; all others, as a refused key or a missing bucket, are
RemoteStorageError.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from threading import local
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    IncompleteReadError,
)
from urllib3.exceptions import HTTPError

from ottla.remote.errors import RemoteResourceNotFound, RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.storage_manager import RemoteStream
from ottla.remote.stores.interrupted_uploads import REFUSED, InterruptedUploads, RequestRefused
from ottla.remote.stores.metered_body import MeteredBody
from ottla.remote.stores.object_storage import ListedObject, Source
from ottla.remote.stores.response_body import PooledResponse, ResponseBody, unmeasured
from ottla.remote.stores.s3_settings import S3Settings
from ottla.storage.file_names import LOG

#: The most keys of one DeleteObjects request.
_KEYS_A_REQUEST: Final = 1000
_PIECE_BYTES: Final = 64 * 1024
#: Three more requests for each upload in parts cost as much time as 5 to 10 MB.
_PART_BYTES: Final = 64 * 1024 * 1024
_NOT_FOUND: Final = frozenset({"404", "NoSuchKey", "NotFound"})
_TRANSIENT: Final = frozenset(
    {"RequestTimeout", "RequestTimeTooSkewed", "SlowDown", "Throttling", "TooManyRequests", "InternalError",
     "ServiceUnavailable", "XMinioServerNotInitialized", "BadDigest", "XAmzContentChecksumMismatch"}
)  # fmt: skip


class S3Store:
    """An object store on the objects of a bucket below a prefix, by boto3."""

    def __init__(self, client: Any, settings: S3Settings) -> None:  # noqa: ANN401 (boto3 has no types)
        self._client = client
        self._bucket = settings.bucket
        self._prefix = settings.prefix
        self._part_size_bytes = settings.part_size_bytes or _PART_BYTES
        #: The body of this thread's request. boto3 reads it for checksums, and reports when it begins to send it.
        self._upload = local()
        self._uploads = InterruptedUploads(self._abort_uploads)
        client.meta.events.register("before-send.s3", self._begin_sending)

    @classmethod
    def connect(cls, settings: S3Settings) -> "S3Store":
        """Return a store with a client of its own. Raises RemoteStorageError for settings that boto3 refuses.

        Requests nothing.
        """
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
            raise RemoteStorageError(f"rsm.config.* of S3: {error}") from error
        return cls(client, settings)

    def put(self, key: str, source: Source) -> None:
        """Upload an object at once, or in parts if the file is large; a failed upload leaves nothing."""
        if source.has_parts and source.size_bytes > self._part_size_bytes:
            self._put_in_parts(key, source)
        else:
            self._send(key, source, self._client.put_object, start=0, end=source.size_bytes)

    def _put_in_parts(self, key: str, source: Source) -> None:
        place = {"Bucket": self._bucket, "Key": self._prefix + key}
        with _storage_errors(key):
            upload_id = self._client.create_multipart_upload(**place, ChecksumAlgorithm="CRC32")["UploadId"]
        try:
            parts: list[Mapping[str, object]] = []
            for start in range(0, source.size_bytes, self._part_size_bytes):
                number = len(parts) + 1
                sent = self._send(
                    key, source, self._client.upload_part,
                    start=start, end=min(start + self._part_size_bytes, source.size_bytes),
                    UploadId=upload_id, PartNumber=number,
                )  # fmt: skip
                parts.append(
                    {"PartNumber": number, "ETag": sent["ETag"], "ChecksumCRC32": sent["ChecksumCRC32"]}
                )
            with _storage_errors(key):
                self._client.complete_multipart_upload(
                    **place, UploadId=upload_id, MultipartUpload={"Parts": parts}
                )
            # A copy is repeated under the same key: the parts of an attempt whose process was killed are still there.
            # If this fails, the deletion of the copy repeats it.
            with suppress(RemoteStorageError):
                self._uploads.abort(key)
        except BaseException:
            # If this fails, too, the deletion of the copy repeats it.
            with suppress(RemoteStorageError), _storage_errors(key):
                self._client.abort_multipart_upload(**place, UploadId=upload_id)
            raise

    def _send(
        self,
        key: str,
        source: Source,
        operation: Callable[..., Any],
        *,
        start: int,
        end: int,
        **more: object,
    ) -> Any:  # noqa: ANN401 (boto3 has no types)
        body = MeteredBody(source.file, start=start, size_bytes=end - start, on_bytes=source.on_bytes)
        self._upload.body = body
        try:
            with _storage_errors(key):
                return operation(
                    Bucket=self._bucket,
                    Key=self._prefix + key,
                    Body=body,
                    ContentLength=end - start,
                    ChecksumAlgorithm="CRC32",
                    **more,
                )
        except RemoteStorageError:
            if body.failure is not None:
                raise body.failure from None
            raise
        finally:
            self._upload.body = None

    def _begin_sending(self, **event: object) -> None:
        body: MeteredBody | None = getattr(self._upload, "body", None)
        if body is not None:
            body.begin_sending()

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> RemoteStream:
        """Return a stream of the response's body."""
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
        # boto3 verifies the checksum of a whole object as it is read. Of a part the store sends none: its
        # batches have theirs.
        body = PooledResponse(response["Body"]._raw_stream) if range_ else _Whole(response["Body"])
        if (size := response.get("ContentLength")) is None:
            body.close()
            raise unmeasured(key)
        return ResponseBody(key, body, size, _storage_errors)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, in requests of up to 1,000 keys, and abort their interrupted uploads in parts."""
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
            for key in some:
                if key.endswith(LOG):
                    self._uploads.abort(key)

    def list(self, prefix: str = "") -> Iterator[ListedObject]:
        """Yield the objects whose keys begin with `prefix`, page by page (ListObjectsV2)."""
        with _storage_errors(f"{self._bucket}/{self._prefix}{prefix}"):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix):
                for each in page.get("Contents", ()):
                    yield ListedObject(
                        each["Key"].removeprefix(self._prefix),
                        each["Size"],
                        round(each["LastModified"].timestamp() * 1000),
                    )

    def _abort_uploads(self, key: str) -> None:
        """Abort the uploads in parts to this key. MinIO lists uploads only for a whole key, not for a prefix of it."""
        with _storage_errors(key):
            pages = self._client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + key):
                for each in page.get("Uploads", ()):
                    self._client.abort_multipart_upload(
                        Bucket=self._bucket, Key=each["Key"], UploadId=each["UploadId"]
                    )

    def close(self) -> None:
        """Close the connections of the client."""
        self._client.close()


class _Whole:
    """The response of a whole object, verified by boto3."""

    def __init__(self, body: Any) -> None:  # noqa: ANN401 (boto3 has no types)
        self._body = body

    def read(self, size: int, /) -> bytes:
        """Return `size` bytes, or the rest; empty at the end."""
        return bytes(self._body.read(size))

    def read1(self, size: int, /) -> bytes:
        """Return up to `size` bytes, a piece at most, as boto3 waits for the whole size; empty at the end."""
        return bytes(self._body.read(min(size, _PIECE_BYTES)))

    def close(self) -> None:
        """Close the response of boto3."""
        self._body.close()


@contextmanager
def _storage_errors(key: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        raise _translated(key, error) from error
    except (ConnectionError, HTTPClientError, IncompleteReadError, HTTPError) as error:
        raise RetriableRemoteStorageError(f"{key}: {error}") from error
    except BotoCoreError as error:
        raise RemoteStorageError(f"{key}: {error}") from error


def _translated(key: str, error: ClientError) -> RemoteStorageError:
    code = str(error.response.get("Error", {}).get("Code"))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _NOT_FOUND:
        return RemoteResourceNotFound(f"{key}: {error}")
    if code in REFUSED:
        return RequestRefused(f"{key}: {error}")
    is_transient = status >= 500 or status == 429 or code in _TRANSIENT
    return (RetriableRemoteStorageError if is_transient else RemoteStorageError)(f"{key}: {error}")
