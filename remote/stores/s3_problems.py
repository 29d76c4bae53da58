"""Sentences about a store that speaks S3 and cannot be used: the setting, its value, the reason and the remedy.

Both clients raise errors with the store's code (NoSuchBucket) where the store has answered; without a code it has not.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from ottla.remote.errors import RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.stores.interrupted_uploads import REFUSED
from ottla.remote.stores.object_storage import Action
from ottla.remote.stores.s3_settings import S3Settings

#: What the credentials have to allow for each step of a check.
_PERMISSIONS: Final[Mapping[Action, str]] = MappingProxyType(
    {Action.WRITE: "s3:PutObject", Action.READ: "s3:GetObject", Action.DELETE: "s3:DeleteObject"}
)
_NO_BUCKET: Final = frozenset({"NoSuchBucket", "InvalidBucketName", "XMinioInvalidBucketName"})
_BAD_KEY: Final = frozenset({"InvalidAccessKeyId"})
_BAD_SECRET: Final = frozenset({"SignatureDoesNotMatch"})
_BAD_REGION: Final = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "PermanentRedirect",
        "InvalidRegion",
    }
)
#: The store, or a proxy before it, answers that it gets too many requests; without a code by the HTTP status.
_THROTTLED: Final = frozenset(
    {
        "SlowDown",
        "SlowDownRead",
        "SlowDownWrite",
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "TooManyRequests",
        "429",
        "503",
    }
)


def explained(settings: S3Settings, error: RemoteStorageError, action: Action) -> str:
    """The sentence for an error of a check that has failed at this step."""
    place = f"at {settings.endpoint}" if settings.endpoint else "in Amazon S3"
    code = _code(error)
    if code in _NO_BUCKET:
        return (
            f"rsm.config.bucket is {settings.bucket!r}, and there is no such bucket {place} ({code}): "
            "create it, or correct the name"
        )
    if code in _BAD_KEY | _BAD_SECRET:
        key = settings.credentials[0] if settings.credentials is not None else None
        whose = f"rsm.config.access.key is {key!r}" if key is not None else "rsm.config.access.key is not set"
        what = "the secret of the key" if code in _BAD_SECRET else "the key"
        return (
            f"{whose}, and the store {place} refuses {what} ({code}): correct rsm.config.access.key and "
            "rsm.config.secret.key, or the credentials of the environment"
        )
    if code in _BAD_REGION:
        return (
            f"rsm.config.region is {settings.region!r}, which is not the region of the bucket "
            f"{settings.bucket!r} {place} ({code}): set it to the bucket's region"
        )
    if code in REFUSED:
        return (
            f"objects of the bucket {settings.bucket!r} {place} cannot be {action.value} by these credentials "
            f"({code}): grant them {_PERMISSIONS[action]} on {settings.bucket}/{settings.prefix}*"
        )
    if code in _THROTTLED:
        return (
            f"the store {place} throttles requests for the bucket {settings.bucket!r} ({code}): it is overloaded, or "
            "gets more requests than it allows; copies are repeated, and "
            "remote.log.manager.copy.max.bytes.per.second slows them down if it lasts"
        )
    if code is None and isinstance(error, RetriableRemoteStorageError):
        endpoint = f"is {settings.endpoint}" if settings.endpoint else "is not set, which means Amazon S3"
        return (
            f"rsm.config.endpoint {endpoint}, and no store answers there ({_reason(error)}): "
            "start the store, or correct the endpoint"
        )
    return f"objects of the bucket {settings.bucket!r} {place} cannot be {action.value}: {error}"


def _code(error: RemoteStorageError) -> str | None:
    """The store's code for the error: boto3 has it in its response, the minio client as an attribute.

    An answer without one has its HTTP status as code; None: there is no answer.
    """
    cause = error.__cause__
    response = getattr(cause, "response", None)
    if isinstance(response, dict):
        return str(response.get("Error", {}).get("Code"))
    if (code := getattr(cause, "code", None)) is None and (status := getattr(cause, "status_code", None)):
        return str(status)
    return code if isinstance(code, str) else None


def _reason(error: BaseException) -> str:
    """The reason that the operating system gives, as "Connection refused"; without one the client's words."""
    for each in _causes(error):
        if isinstance(each, OSError) and each.strerror:
            return each.strerror
    return str(error.__cause__ or error)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
