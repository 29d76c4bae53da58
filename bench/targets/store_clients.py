"""The speed of a store without a broker: the same objects through its usual client, one after the other."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import boto3
from botocore.config import Config

_PIECE_BYTES: Final = 1 << 20


class StoreClient(Protocol):
    """Reads and writes the objects of a store without a broker."""

    def has_any_of(self, topic: str) -> bool:
        """Whether an object of the topic has arrived."""

    def get_s(self, topic: str) -> tuple[float, int]:
        """Read all segments of a topic: (seconds, bytes)."""

    def put_s(self, paths: Sequence[Path]) -> float:
        """Store these files durably, and remove them again; seconds for storing."""

    def cpu_s(self) -> float:
        """Return the CPU seconds that processes of the store's own have used so far."""


class DirectoryClient:
    """A directory in the layout of LocalTieredStorage, by `read(2)`, `copy_file_range(2)` and `fsync(2)`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _files(self, topic: str) -> Iterator[Path]:
        return self._folder.glob(f"*/{topic}-0-*/*.log")

    def has_any_of(self, topic: str) -> bool:
        """Whether a file of the topic has arrived."""
        return any(True for _ in self._folder.glob(f"*/{topic}-0-*/*"))

    def get_s(self, topic: str) -> tuple[float, int]:
        """Read all segments of a topic: (seconds, bytes)."""
        buffer = bytearray(_PIECE_BYTES)
        size_bytes, began = 0, time.perf_counter()
        for path in sorted(self._files(topic)):
            with path.open("rb", buffering=0) as file:
                while found := file.readinto(buffer):
                    size_bytes += found
        return time.perf_counter() - began, size_bytes

    def put_s(self, paths: Sequence[Path]) -> float:
        """Store these files durably, and remove them again; seconds for storing."""
        copies = [self._folder / f"plain-{path.name}" for path in paths]
        began = time.perf_counter()
        for path, copy in zip(paths, copies, strict=True):
            with path.open("rb", buffering=0) as source, copy.open("wb", buffering=0) as target:
                while os.copy_file_range(source.fileno(), target.fileno(), _PIECE_BYTES):
                    pass
                os.fsync(target.fileno())
        took_s = time.perf_counter() - began
        for copy in copies:
            copy.unlink()
        return took_s

    def cpu_s(self) -> float:
        """Return 0 CPU seconds: a directory has no processes of its own."""
        return 0.0


class BucketClient:
    """A bucket of an object store, by boto3 with its defaults."""

    def __init__(self, settings: dict[str, object], *, cpu_s: Callable[[], float]) -> None:
        """Connect by the settings of remote/stores/s3_settings.py; `cpu_s` returns the CPU seconds of the server."""
        self._cpu_s = cpu_s
        self._bucket = str(settings["bucket"])
        self._client: Any = boto3.session.Session().client(
            "s3",
            endpoint_url=str(settings["endpoint"]),
            region_name=str(settings["region"]),
            aws_access_key_id=str(settings["access.key"]),
            aws_secret_access_key=str(settings["secret.key"]),
            config=Config(s3={"addressing_style": "path"}),
        )

    def _list(self, topic: str) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2")
        return [
            each["Key"]
            for page in pages.paginate(Bucket=self._bucket, Prefix=f"{topic}-0-")
            for each in page.get("Contents", ())
        ]

    def has_any_of(self, topic: str) -> bool:
        """Whether an object of the topic has arrived."""
        return bool(self._list(topic))

    def get_s(self, topic: str) -> tuple[float, int]:
        """Read all segments of a topic: (seconds, bytes)."""
        keys = [key for key in self._list(topic) if key.endswith(".log")]
        size_bytes, began = 0, time.perf_counter()
        for key in keys:
            body = self._client.get_object(Bucket=self._bucket, Key=key)["Body"]
            while found := body.read(_PIECE_BYTES):
                size_bytes += len(found)
        return time.perf_counter() - began, size_bytes

    def put_s(self, paths: Sequence[Path]) -> float:
        """Store these files durably, and remove them again; seconds for storing."""
        began = time.perf_counter()
        for path in paths:
            with path.open("rb") as file:
                self._client.put_object(Bucket=self._bucket, Key=f"plain-{path.name}", Body=file)
        took_s = time.perf_counter() - began
        for path in paths:
            self._client.delete_object(Bucket=self._bucket, Key=f"plain-{path.name}")
        return took_s

    def cpu_s(self) -> float:
        """Return the CPU seconds that the server has used so far."""
        return self._cpu_s()
