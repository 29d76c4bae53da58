"""A broker of the plain wheel whose configuration needs an extra: one sentence that names it, and no start."""

import subprocess
import sys

import pytest

from ottla.bench.components.processes import PATIENCE_S

#: Starts `ottla` without the libraries of all extras: `None` makes their imports fail, as in a plain install.
_PLAIN = """
import sys
sys.modules |= dict.fromkeys(["boto3", "botocore", "minio", "urllib3", "prometheus_client", "psutil", "pyspark",
                             "confluent_kafka"])
from ottla.command_line import main
main()
"""


def ottla(*arguments):
    return subprocess.run(
        [sys.executable, "-c", _PLAIN, *arguments],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


_MINIO = "minio://bucket?endpoint=http://127.0.0.1:1"
_CLASS = "remote.log.storage.manager.class.name"


@pytest.mark.parametrize(("option", "value", "feature", "package", "extra"), [
    ("--tier", "s3://bucket?region=eu-west-1", f"{_CLASS} is s3", "boto3", "tier"),
    ("--tier", _MINIO, f"{_CLASS} is ottla.remote.stores.minio.MinioStorage", "urllib3", "tier"),
])  # fmt: skip
def test_a_broker_without_the_extra_that_it_needs_does_not_start(
    tmp_path, option, value, feature, package, extra
):
    done = ottla("broker", "--port", "0", "--data-dir", str(tmp_path / "data"), option, value)
    assert done.returncode == 1, done.stdout + done.stderr
    found = f"{feature}, which needs {package}, which is not installed: `pip install 'ottla[{extra}]'` installs it."
    assert found in done.stderr
    assert "READY" not in done.stdout
    assert "Traceback" not in done.stderr


def test_a_benchmark_without_its_extra_is_not_run():
    done = ottla("bench", "run", "smoke")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "`ottla bench run` needs " in done.stderr
    assert "`pip install 'ottla[bench]'` installs it, in a checkout `make setup-bench`" in done.stderr


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_a_client_without_its_extra_is_not_run(command):
    done = ottla(command, "orders")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr == (
        "Error: This command needs confluent_kafka, which is not installed: "
        "`pip install 'ottla[client]'` installs it.\n"
    )
