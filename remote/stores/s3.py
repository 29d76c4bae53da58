"""S3Storage: Amazon S3 and compatible stores as remote tier, by boto3.

The settings are in `s3_settings.py`, the keys in `object_storage.py`, the requests in `s3_store.py`, which is
imported when the store is opened: boto3 takes half a second and 30 MB. Whether it is installed is known before.
"""

from collections.abc import Mapping
from importlib.util import find_spec

from ottla.remote.errors import RemoteStorageError
from ottla.remote.stores.object_storage import Action, ObjectStorage, ObjectStore
from ottla.remote.stores.s3_problems import explained
from ottla.remote.stores.s3_settings import S3Settings


class S3Storage(ObjectStorage):
    """A storage manager on a bucket of Amazon S3 or a compatible store, by boto3."""

    def configure(self, configs: Mapping[str, object]) -> None:
        """Parse the `rsm.config.*` settings. Raises InvalidConfig, and ModuleNotFoundError if boto3 is not installed.

        Nothing is requested of the store: it may be down when a broker starts.
        """
        if find_spec("boto3") is None:
            raise ModuleNotFoundError("boto3 is not installed", name="boto3")
        self._settings = S3Settings.parse(configs)

    @property
    def request_timeout_s(self) -> float:
        """The longest time, in seconds, that one request waits for an answer."""
        return self._settings.request_timeout_s

    def open_store(self) -> ObjectStore:
        """Return a store with a boto3 client of the settings. Requests nothing."""
        from ottla.remote.stores.s3_store import S3Store

        return S3Store.connect(self._settings)

    def explain(self, error: RemoteStorageError, action: Action) -> str:
        """The sentence about a check that has failed: the setting, its value, the reason and the remedy."""
        return explained(self._settings, error, action)
