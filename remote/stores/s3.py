"""S3Storage: Amazon S3 and compatible stores as remote tier, by boto3.

The settings are in `s3_settings.py`, the keys in `object_storage.py`, the requests in `s3_store.py`, which is imported when
the store is opened: boto3 takes half a second and 30 MB.
"""

from collections.abc import Mapping

from ottla.remote.stores.object_storage import ObjectStorage, ObjectStore
from ottla.remote.stores.s3_settings import S3Settings


class S3Storage(ObjectStorage):
    """See the module."""

    def configure(self, configs: Mapping[str, object]) -> None:
        """See `s3_settings`. Nothing is requested of the store: it may be down when a broker starts."""
        self._settings = S3Settings.parse(configs)

    @property
    def request_timeout_s(self) -> float:
        """See RemoteStorageManager."""
        return self._settings.request_timeout_s

    def open_store(self) -> ObjectStore:
        """See ObjectStorage."""
        from ottla.remote.stores.s3_store import S3Store

        return S3Store.connect(self._settings)
