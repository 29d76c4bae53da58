"""InterruptedUploads: aborts the uploads in parts that a copy has left, where the credentials allow it.

A bucket may grant putting, getting and deleting objects only. That is enough for a tier: its objects are
deleted, and the bucket itself removes the parts of an upload whose process was killed, by a rule of its life cycle
(AbortIncompleteMultipartUpload). Were the refusal a failure, no deletion would ever be complete.
"""

from collections.abc import Callable
from logging import getLogger
from typing import Final

from ottla.remote.errors import RemoteStorageError

_LOG: Final = getLogger(__name__)

#: The store refuses the request, now and later: the credentials lack a permission, or it has no such request.
REFUSED: Final = frozenset({"AccessDenied", "AllAccessDisabled", "MethodNotAllowed", "NotImplemented"})


class RequestRefused(RemoteStorageError):
    """The store refuses this kind of request, now and later, with a code of `REFUSED`."""


class InterruptedUploads:
    """Aborts interrupted uploads in parts; a store that refuses this is reported once. [any thread]"""

    def __init__(self, abort: Callable[[str], None]) -> None:
        """`abort` lists the uploads to a key and aborts them; raises RemoteStorageError."""
        self._abort = abort
        self._is_reported = False

    def abort(self, key: str) -> None:
        """Abort the uploads to `key`; a refusal is logged once. Raises RemoteStorageError for other failures."""
        try:
            self._abort(key)
        except RequestRefused as error:
            if not self._is_reported:
                self._is_reported = True
                _LOG.warning(
                    "uploads in parts that were interrupted cannot be aborted (s3:ListBucketMultipartUploads, "
                    "s3:AbortMultipartUpload): a life-cycle rule AbortIncompleteMultipartUpload of the bucket removes "
                    "them: %s",
                    error,
                )
