"""MinioStorage: MinIO and compatible stores as remote tier, by the minio client.

The client takes a tenth of boto3's memory and start-up time. The settings are in `s3_settings.py` (`endpoint`
is required, `path.style` has no meaning), the keys in `object_storage.py`. Multipart uploads and errors are
as in `s3_store.py`; but the client has one part of each copy in memory while it sends it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from threading import local
from typing import Any, BinaryIO, Final, cast
from urllib.parse import urlsplit
from xml.etree.ElementTree import ParseError

import urllib3
from minio import Minio
from minio.credentials.providers import (
    ChainedProvider,
    EnvAWSProvider,
    EnvMinioProvider,
    IamAwsProvider,
    Provider,
    StaticProvider,
)
from minio.deleteobjects import DeleteObject
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from minio.helpers import MIN_PART_SIZE

from ottla.protocol.errors import InvalidConfig
from ottla.remote.errors import RemoteResourceNotFound, RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.storage_manager import RemoteStream
from ottla.remote.stores.interrupted_uploads import REFUSED, InterruptedUploads, RequestRefused
from ottla.remote.stores.metered_body import MeteredBody
from ottla.remote.stores.object_storage import Action, ListedObject, ObjectStorage, ObjectStore, Source
from ottla.remote.stores.response_body import PooledResponse, ResponseBody, unmeasured
from ottla.remote.stores.s3_problems import explained
from ottla.remote.stores.s3_settings import S3Settings
from ottla.storage.file_names import LOG

#: The default size of a part, which a copy has in memory.
_PART_BYTES: Final = 16 * 1024 * 1024
_NOT_FOUND: Final = frozenset({"NoSuchKey", "NoSuchObject", "NotFound"})
_TRANSIENT: Final = frozenset(
    {"RequestTimeout", "SlowDown", "SlowDownRead", "SlowDownWrite", "TooManyRequests", "InternalError", "BadDigest",
     "ServiceUnavailable", "XMinioServerNotInitialized", "XMinioStorageFull"}
)  # fmt: skip


class MinioStorage(ObjectStorage):
    """A storage manager on a bucket of MinIO or a compatible store, by the minio client."""

    def configure(self, configs: Mapping[str, object]) -> None:
        """Parse the `rsm.config.*` settings. Raises InvalidConfig.

        Nothing is requested of the store: it may be down when a broker starts.
        """
        settings = S3Settings.parse(configs)
        if settings.endpoint is None:
            raise InvalidConfig("rsm.config.endpoint is not set: set it to the store's http(s):// URL")
        self._settings = settings
        self._endpoint = urlsplit(settings.endpoint)

    @property
    def request_timeout_s(self) -> float:
        """The longest time, in seconds, that one request waits for an answer."""
        return self._settings.request_timeout_s

    def open_store(self) -> ObjectStore:
        """Return a store with a client of the settings. Requests nothing."""
        settings, url = self._settings, self._endpoint
        pool = _MeteredPool(
            timeout=urllib3.Timeout(connect=settings.request_timeout_s, read=settings.request_timeout_s),
            maxsize=settings.max_connections,
            # The RemoteLogManager retries, with its own back-off, and counts its attempts.
            retries=False,
        )
        if settings.credentials is not None:
            access_key, secret_key = settings.credentials
            provider: Provider = StaticProvider(access_key, secret_key.value)
        else:
            # By default the client waits for an instance's metadata service without a limit, and six times. A
            # service that is busy for a moment must not end a copy.
            roles = urllib3.PoolManager(
                timeout=settings.request_timeout_s,
                retries=urllib3.Retry(
                    connect=0, read=0, status=2, backoff_factor=0.2, status_forcelist=[500, 502, 503, 504]
                ),
            )
            provider = ChainedProvider(
                [EnvMinioProvider(), EnvAWSProvider(), IamAwsProvider(http_client=roles)]
            )
        client = Minio(
            url.netloc,
            secure=url.scheme == "https",
            region=settings.region or "us-east-1",
            credentials=provider,
            http_client=pool,
        )
        return MinioStore(client, settings, pool)

    def explain(self, error: RemoteStorageError, action: Action) -> str:
        """The sentence about a check that has failed: the setting, its value, the reason and the remedy."""
        return explained(self._settings, error, action)


class _MeteredPool(urllib3.PoolManager):
    """A pool of connections that reports the pieces of a body before it sends them.

    The client itself takes bodies only as bytes.
    """

    def __init__(self, *, timeout: urllib3.Timeout, maxsize: int, retries: bool) -> None:
        super().__init__(timeout=timeout, maxsize=maxsize, retries=retries)
        self._upload = local()

    def send(self, on_bytes: Callable[[int], None], request: Callable[[], object]) -> None:
        """Call `request`, and report the pieces of the body that it sends. Raises the exception of `on_bytes`."""
        self._upload.on_bytes, self._upload.failure = on_bytes, None
        try:
            request()
        except Exception:
            if self._upload.failure is not None:
                raise self._upload.failure from None
            raise
        finally:
            del self._upload.on_bytes

    def urlopen(  # type: ignore[override]
        self,
        method: str,
        url: str,
        redirect: bool = True,
        **kw: Any,  # noqa: ANN401 (those of PoolManager)
    ) -> urllib3.BaseHTTPResponse:
        """Send a request; the body of a PUT within `send` is metered."""
        on_bytes = getattr(self._upload, "on_bytes", None)
        if on_bytes is None or method != "PUT" or not kw.get("body"):
            return super().urlopen(method, url, redirect=redirect, **kw)
        body = MeteredBody(BytesIO(kw["body"]), size_bytes=len(kw["body"]), on_bytes=on_bytes)
        body.begin_sending()
        try:
            return super().urlopen(method, url, redirect=redirect, **{**kw, "body": body})
        finally:
            self._upload.failure = body.failure


class MinioStore:
    """An object store on the objects of a bucket below a prefix, by the minio client."""

    def __init__(self, client: Minio, settings: S3Settings, pool: _MeteredPool) -> None:
        self._client = client
        self._uploads = InterruptedUploads(self._abort_uploads)
        self._bucket = settings.bucket
        self._prefix = settings.prefix
        self._part_size_bytes = settings.part_size_bytes or _PART_BYTES
        self._pool = pool

    def put(self, key: str, source: Source) -> None:
        """Upload an object at once, or in parts if the file is large; a failed upload leaves nothing."""
        # Read for the parts, not to be sent: the client copies each part, and then sends the copy.
        file = MeteredBody(source.file, size_bytes=source.size_bytes, on_bytes=source.on_bytes)
        part_size = self._part_size_bytes if source.has_parts else max(source.size_bytes, MIN_PART_SIZE)
        with _storage_errors(key):
            self._pool.send(
                source.on_bytes,
                lambda: self._client.put_object(
                    self._bucket,
                    self._prefix + key,
                    cast("BinaryIO", file),
                    source.size_bytes,
                    part_size=part_size,
                    num_parallel_uploads=1,
                ),
            )
        if source.size_bytes > part_size:
            # As in s3_store.py: the parts of an attempt whose process was killed.
            with suppress(RemoteStorageError):
                self._uploads.abort(self._prefix + key)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> RemoteStream:
        """Return a stream of the response's body."""
        with _storage_errors(key):
            if start == end:  # which no HTTP range can express
                self._client.stat_object(self._bucket, self._prefix + key)
                return ResponseBody(key, None, 0, _storage_errors)
            length = 0 if end is None else end - start
            response = self._client.get_object(self._bucket, self._prefix + key, offset=start, length=length)
        body, found = PooledResponse(response), response.headers.get("Content-Range")
        if (start or length) and not (found or "").startswith(f"bytes {start}-"):
            body.close()
            raise RemoteStorageError(f"{key}: a request from {start} on was answered with {found!r}")
        if (size := response.length_remaining) is None:
            body.close()
            raise unmeasured(key)
        return ResponseBody(key, body, size, _storage_errors)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, in requests of up to 1,000 keys, and abort their interrupted uploads in parts."""
        keys = list(keys)
        with _storage_errors("a deletion"):
            for error in self._client.remove_objects(
                self._bucket, [DeleteObject(self._prefix + key) for key in keys]
            ):
                if error.code not in _NOT_FOUND:
                    kind = RetriableRemoteStorageError if error.code in _TRANSIENT else RemoteStorageError
                    raise kind(f"{error.name} was not deleted: {error.code} {error.message}")
        for key in keys:
            if key.endswith(LOG):
                self._uploads.abort(self._prefix + key)

    def _abort_uploads(self, name: str) -> None:
        """Abort the uploads in parts to this object. The client has these requests for its own use only."""
        with _storage_errors(name):
            found = self._client._list_multipart_uploads(self._bucket, prefix=name)
            for each in found.uploads:
                self._client._abort_multipart_upload(self._bucket, name, str(each.upload_id))

    def list(self, prefix: str = "") -> Iterator[ListedObject]:
        """Yield the objects whose keys begin with `prefix`, page by page (ListObjectsV2)."""
        with _storage_errors(f"{self._bucket}/{self._prefix}{prefix}"):
            for each in self._client.list_objects(self._bucket, prefix=self._prefix + prefix, recursive=True):
                assert each.last_modified is not None, each.object_name  # of an object, not of a folder
                yield ListedObject(
                    str(each.object_name).removeprefix(self._prefix),
                    int(each.size or 0),
                    round(each.last_modified.timestamp() * 1000),
                )

    def close(self) -> None:
        """Close the connections of the pool."""
        self._pool.clear()


@contextmanager
def _storage_errors(key: str) -> Iterator[None]:
    try:
        yield
    except S3Error as error:
        if error.code in REFUSED:
            raise RequestRefused(f"{key}: {error}") from error
        if error.code in _NOT_FOUND:
            raise RemoteResourceNotFound(f"{key}: {error}") from error
        is_transient = error.code in _TRANSIENT or error.response.status >= 500
        raise (RetriableRemoteStorageError if is_transient else RemoteStorageError)(
            f"{key}: {error}"
        ) from error
    except (ServerError, InvalidResponseError, urllib3.exceptions.HTTPError, ParseError) as error:
        raise RetriableRemoteStorageError(f"{key}: {error}") from error
    except ValueError as error:  # of the client's own, mostly
        raise RemoteStorageError(
            f"{key}: {error}. Without access.key and secret.key, credentials are those of the environment "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY; MINIO_ACCESS_KEY, MINIO_SECRET_KEY) or of the instance's role"
        ) from error
    except MinioException as error:
        raise RemoteStorageError(f"{key}: {error}") from error
