"""Sets up what the compat tests need beside Python: Java, Maven, Apache Kafka's jars, Go and MinIO.

    python -m tests.harness.fetch

Everything is stored in a cache outside the project (`$XDG_CACHE_HOME/ottla`, by default ~/.cache/ottla) and
is fetched once. A missing requirement is an error that names it; nothing is skipped.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

KAFKA_VERSION = "4.3.1"
#: A version of Go's module proxy: MinIO's release tags are not versions of its module. The proxy's checksum database
#: (sum.golang.org) verifies the source; it is built here, which takes about three minutes once.
MINIO_VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
_HERE = Path(__file__).parent
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ottla"
JARS = _CACHE / f"kafka-{KAFKA_VERSION}"
_CHECKSUMS = _HERE / "kafka-jars.sha256"


class MissingRequirement(Exception):
    """Something that the tests need and that could not be set up."""


def java() -> str:
    """The `java` command, 17 or newer."""
    return _command("java", debian_package="openjdk-17-jre-headless")


def kafka_jars() -> Path:
    """The folder of Kafka's jars, complete and as pinned."""
    marker = JARS / ".complete"
    wanted = _CHECKSUMS.read_text()
    if not marker.exists() or marker.read_text() != wanted:
        _download()
        _verify()
        for archive in JARS.parent.glob("*.jsa"):
            archive.unlink()  # of classes from other jars
        marker.write_text(wanted)
    return JARS


def minio() -> Path:
    """The MinIO server, built from source."""
    folder = _CACHE / f"minio-{MINIO_VERSION}"
    program = folder / "minio"
    if not program.exists():
        go = _command("go", debian_package="golang-go")
        subprocess.run(
            [go, "install", "-trimpath", "-ldflags", "-s -w", f"github.com/minio/minio@{MINIO_VERSION}"],
            check=True,
            env={**os.environ, "GOBIN": str(folder), "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false"},
        )
    return program


def _download() -> None:
    maven = _command("mvn", debian_package="maven")
    java()
    JARS.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            maven,
            "--batch-mode",
            "--quiet",
            "--file",
            str(_HERE / "kafka-pom.xml"),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={JARS}",
        ],
        check=True,
    )


def _verify() -> None:
    rows = [line.split() for line in _CHECKSUMS.read_text().splitlines()]
    expected = {name: checksum for checksum, name in rows}
    found = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in JARS.glob("*.jar")}
    if found != expected:
        odd = sorted({name for name, _ in found.items() ^ expected.items()})
        raise MissingRequirement(f"jars in {JARS} are not the ones of {_CHECKSUMS.name}: {', '.join(odd)}")


def _command(name: str, *, debian_package: str) -> str:
    found = shutil.which(name)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "-qq", "update"], check=True)
        subprocess.run(
            ["apt-get", "-qq", "install", "-y", "--no-install-recommends", debian_package], check=True
        )
        found = shutil.which(name)
    if found is None:
        raise MissingRequirement(
            f"{name} is not installed: the compat tests need it (Debian: {debian_package})"
        )
    return found


if __name__ == "__main__":
    sys.stdout.write(f"java: {java()}\nkafka {KAFKA_VERSION}: {kafka_jars()}\nminio: {minio()}\n")
