"""`rsm.config.*` of object stores that speak S3: one definition of the settings for both clients."""

from collections.abc import Mapping
from logging import getLogger
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from ottla.config.config_def import ConfigDef, ConfigKey, ConfigType
from ottla.config.config_values import Between, Password
from ottla.protocol.errors import InvalidConfig

_LOG: Final = getLogger(__name__)

_MIB: Final = 1024 * 1024

SETTINGS: Final = ConfigDef(
    (
        ConfigKey("bucket", ConfigType.STRING, None, "The bucket, which must exist.", is_required=True),
        ConfigKey("prefix", ConfigType.STRING, "", "What all keys begin with, as kafka/production."),
        ConfigKey("endpoint", ConfigType.STRING, None, "The store's URL, as http://127.0.0.1:9000; AWS without one."),
        ConfigKey("region", ConfigType.STRING, None, "The region of the bucket."),
        ConfigKey("path.style", ConfigType.BOOLEAN, False, "Whether the bucket is in the path, not in the host name."),
        ConfigKey("access.key", ConfigType.STRING, None, "The key's id; with secret.key, or neither of them."),
        ConfigKey("secret.key", ConfigType.PASSWORD, None, "The key's secret."),
        ConfigKey(
            "part.size.bytes", ConfigType.INT, None,
            "Larger files are uploaded in parts of this size: by default 64 MiB, with the minio client 16 MiB.",
            check=Between(5 * _MIB, 1024 * _MIB),
        ),
        ConfigKey(
            "request.timeout.ms", ConfigType.INT, 30_000, "The time without an answer after which a request fails.",
            check=Between(1),
        ),
        ConfigKey("max.connections", ConfigType.INT, 64, "Connections of this broker to the store.", check=Between(1)),
    )
)  # fmt: skip


class S3Settings(NamedTuple):
    """The parsed `rsm.config.*` settings of a store that speaks S3."""

    bucket: str
    #: The prefix of all keys: empty, or with a slash at its end.
    prefix: str
    endpoint: str | None
    region: str | None
    is_path_style: bool
    #: Id and secret of the key; None: the client's own chain of credentials.
    credentials: tuple[str, Password] | None
    #: The size of a part of an upload; None: the client's own default.
    part_size_bytes: int | None
    request_timeout_s: float
    max_connections: int

    @classmethod
    def parse(cls, configs: Mapping[str, object]) -> "S3Settings":
        """Parse `rsm.config.*` without the prefix, and `broker.id`. Raises InvalidConfig."""
        if unknown := sorted(configs.keys() - SETTINGS.keys() - {"broker.id"}):
            _LOG.warning(
                "these settings of rsm.config are not known and have no effect: %s; known are %s",
                ", ".join(unknown),
                ", ".join(SETTINGS),
            )
        values = {
            name: key.default if (text := configs.get(name)) is None else key.parse(str(text))
            for name, key in SETTINGS.items()
        }
        bucket, access_key, secret_key = values["bucket"], values["access.key"], values["secret.key"]
        if not isinstance(bucket, str) or not bucket:
            raise InvalidConfig("rsm.config.bucket is not set: name the bucket for the remote tier")
        if (access_key is None) != (secret_key is None):
            raise InvalidConfig(
                "rsm.config.access.key and rsm.config.secret.key: set both, or neither of them"
            )
        prefix, endpoint, region = values["prefix"], values["endpoint"], values["region"]
        part_size, timeout_ms, connections = (
            values["part.size.bytes"], values["request.timeout.ms"], values["max.connections"],
        )  # fmt: skip
        if endpoint is not None and "@" in str(endpoint):
            raise InvalidConfig(
                "rsm.config.endpoint has a user or a password, which no store reads: remove them from the URL, and set "
                "rsm.config.access.key and rsm.config.secret.key"
            )
        if endpoint is not None and not _is_url(str(endpoint)):
            raise InvalidConfig(f"rsm.config.endpoint is {endpoint!r}: set it to the store's http(s):// URL")
        assert isinstance(prefix, str)
        assert part_size is None or isinstance(part_size, int)
        assert isinstance(timeout_ms, int)
        assert isinstance(connections, int)
        return cls(
            bucket=bucket,
            prefix=f"{prefix.strip('/')}/" if prefix.strip("/") else "",
            endpoint=None if endpoint is None else str(endpoint),
            region=None if region is None else str(region),
            is_path_style=bool(values["path.style"]),
            credentials=(str(access_key), secret_key) if isinstance(secret_key, Password) else None,
            part_size_bytes=part_size,
            request_timeout_s=timeout_ms / 1000,
            max_connections=connections,
        )


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
    except ValueError:
        return False
    return url.scheme in ("http", "https") and bool(url.hostname)
