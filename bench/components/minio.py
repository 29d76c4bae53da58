"""A MinIO server of a test."""

import urllib.request
from pathlib import Path
from typing import Self
from urllib.error import URLError

from minio import Minio
from urllib3 import PoolManager
from urllib3.exceptions import HTTPError

from ottla.bench.components.fetch import minio
from ottla.bench.components.processes import Child, free_port, wait_until

ACCESS_KEY = "ottla-tests"
SECRET_KEY = "a secret of the tests"
_ANSWER_S = 2.0


class MinioServer:
    """Started by `with`, with its data in `folder`; stopped at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.endpoint = f"http://127.0.0.1:{free_port()}"

    def __enter__(self) -> Self:
        address = self.endpoint.removeprefix("http://")
        self._child = Child(
            [str(minio()), "server", str(self._folder / "minio"), "--quiet", "--address", address,
             "--console-address", f"127.0.0.1:{free_port()}"],
            log=self._folder / "minio.log",
            env={"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY, "MINIO_UPDATE": "off"},
        )  # fmt: skip
        self._child.wait_until(self._is_ready)
        return self

    def __exit__(self, *error: object) -> None:
        self._child.stop()

    def make_bucket(self, name: str) -> None:
        """Create a bucket. A server that has just started may leave the first requests unanswered for a minute."""
        address = self.endpoint.removeprefix("http://")
        http = PoolManager(timeout=_ANSWER_S, retries=False)
        client = Minio(address, ACCESS_KEY, SECRET_KEY, secure=False, http_client=http)

        def is_made() -> bool:
            try:
                if not client.bucket_exists(name):
                    client.make_bucket(name)
            except HTTPError:
                return False
            return True

        wait_until(is_made, detail=f"MinIO does not create the bucket {name}")

    def settings(self, bucket: str) -> dict[str, object]:
        """Return the `rsm.config.*` settings for this server."""
        return {
            "bucket": bucket,
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "path.style": "true",
            "access.key": ACCESS_KEY,
            "secret.key": SECRET_KEY,
        }

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        return self._child.pid

    def cpu_seconds(self) -> float:
        """Return the processor time that the server has used so far."""
        return self._child.cpu_seconds()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/minio/health/cluster", timeout=5) as response:
                return bool(response.status == 200)
        except (URLError, OSError):
            return False
