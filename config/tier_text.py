"""The remote tier in one text: `--tier DIR`, `--tier s3://bucket/prefix?endpoint=URL&region=...` (KIP-405).

    data-tier, /mnt/tier                a directory that all brokers share, in the layout of Kafka's LocalTieredStorage
    s3://bucket/prefix?region=...       Amazon S3, or a compatible store with endpoint=http://host:port
    minio://bucket/prefix?endpoint=...  the same with MinIO's client: a tenth of boto3's memory and start-up time

The parameters are the settings of `remote/stores/s3_settings.py`. Credentials are better left to the client's own chain
(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, profiles, instance roles): other users of a machine can read a command line.
"""

from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from ottla.protocol.errors import InvalidConfig

#: The settings of object stores, without bucket and prefix, which are the URL's; held equal to them by a test.
PARAMETERS: Final = (
    "endpoint", "region", "path.style", "access.key", "secret.key", "part.size.bytes", "request.timeout.ms",
    "max.connections",
)  # fmt: skip

_STORAGE_CLASS: Final = "remote.log.storage.manager.class.name"
_SETTING: Final = "rsm.config."
_METADATA_TOPIC: Final = "rlmm.config.remote.log.metadata.topic."


def tier_properties(tier: str) -> dict[str, str]:
    """The properties of a broker, or controller, of a cluster with this remote tier. Raises InvalidConfig.

    A relative directory is made absolute: it is the same for a broker that starts elsewhere.
    """
    if "://" not in tier:
        if not tier.strip():
            raise InvalidConfig("--tier is empty: name a directory, or s3://bucket/prefix.")
        return _enabled("directory", {"dir": str(Path(tier).absolute())})
    url = urlsplit(tier)
    shown = tier.partition("?")[0]  # the parameters may have secrets
    match url.scheme:
        case "file" if not url.netloc and url.path:
            return _enabled("directory", {"dir": unquote(url.path)})
        case "s3" | "minio":
            if not url.netloc:
                raise InvalidConfig(
                    f"--tier {shown} names no bucket: it must be {url.scheme}://BUCKET/PREFIX."
                )
            settings = {"bucket": url.netloc, **_parameters(shown, url.query)}
            if prefix := unquote(url.path).strip("/"):
                settings["prefix"] = prefix
            if url.scheme == "minio" and "endpoint" not in settings:
                raise InvalidConfig(
                    f"--tier {shown} lacks the store's address: add ?endpoint=http://HOST:PORT."
                )
            return _enabled(url.scheme, settings)
        case _:
            raise InvalidConfig(
                f"--tier {shown} is no remote tier: "
                "it must be a directory, s3://BUCKET/PREFIX or minio://BUCKET/PREFIX."
            )


def _parameters(shown: str, query: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    settings = dict(pairs)
    if unknown := sorted(settings.keys() - set(PARAMETERS)):
        raise InvalidConfig(
            f"--tier {shown} has unknown parameters, {', '.join(unknown)}: known are {', '.join(PARAMETERS)}."
        )
    if len(settings) < len(pairs):
        raise InvalidConfig(f"--tier {shown} has the same parameter twice.")
    if "endpoint" in settings:
        # Of other stores than Amazon's, few have a host name for each bucket.
        settings.setdefault("path.style", "true")
    return settings


def metadata_topic_properties(broker_count: int) -> dict[str, str]:
    """Return the replica counts of `__remote_log_metadata`: Kafka's 3, of which 2 must be in sync, or all brokers."""
    return {
        f"{_METADATA_TOPIC}replication.factor": str(min(3, broker_count)),
        f"{_METADATA_TOPIC}min.isr": str(min(2, broker_count)),
    }


def _enabled(class_name: str, settings: dict[str, str]) -> dict[str, str]:
    return {
        "remote.log.storage.system.enable": "true",
        _STORAGE_CLASS: class_name,
        **{f"{_SETTING}{name}": text for name, text in settings.items()},
    }
