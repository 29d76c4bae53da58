"""Sets up programs for tests and benchmarks: Java, Maven, jars of Kafka and of Spark's connector, Go, MinIO,
Chromium, axe-core.

    python -m ottla.bench.components.fetch [java|kafka|minio|spark|chromium|axe]...

Without names: what the compat tests need, which is all but Spark's connector, Chromium and axe-core. The release of
Kafka is the one of `KAFKA` in the environment, by default `DEFAULT_KAFKA_VERSION`.
Everything is stored in a cache outside the project (`$XDG_CACHE_HOME/ottla`, by default ~/.cache/ottla) and
is fetched once. A missing requirement is an error that names it; nothing is skipped.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

#: The releases of Kafka that stand as oracle, oldest first: kafka-RELEASE-pom.xml has their jars.
KAFKA_VERSIONS = ("4.3.1", "4.4.0")
#: The release that tests and benchmarks run, unless `KAFKA` in the environment names another one.
DEFAULT_KAFKA_VERSION = "4.3.1"
KAFKA_VERSION = os.environ.get("KAFKA") or DEFAULT_KAFKA_VERSION
#: A version of Go's module proxy: MinIO's release tags are not versions of its module. The proxy's checksum database
#: (sum.golang.org) verifies the source; it is built here, which takes about three minutes once.
MINIO_VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
_HERE = Path(__file__).parent
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ottla"
#: Spark's Kafka connector for the PySpark of requirements/bench.in.
SPARK_JARS = _CACHE / "spark-4.2.0-kafka"
#: The jar that axe-core's script is in.
AXE = _CACHE / "axe-4.10.1"


class MissingRequirement(Exception):
    """Something that the tests need and that could not be set up."""


def java() -> str:
    """Return the `java` command, 17 or newer."""
    return _command("java", debian_package="openjdk-17-jre-headless")


def kafka_jars(version: str = KAFKA_VERSION) -> Path:
    """Return the folder of the jars of this release of Kafka, complete and as pinned."""
    if version not in KAFKA_VERSIONS:
        raise MissingRequirement(
            f"KAFKA={version} is no release that this project pins: set KAFKA to {' or '.join(KAFKA_VERSIONS)}"
        )
    jars = _CACHE / f"kafka-{version}"
    if _download(f"kafka-{version}", jars):
        for archive in jars.glob("*.jsa"):
            archive.unlink()  # of classes from other jars
    return jars


def spark_jars() -> Path:
    """Return the folder of the jars of Spark's Kafka connector, complete and as pinned."""
    _download("spark", SPARK_JARS)
    return SPARK_JARS


def minio() -> Path:
    """Return the MinIO server, built from source."""
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


def chromium() -> str:
    """Return the browser in which tests open reports."""
    return _command("chromium", debian_package="chromium")


def axe() -> Path:
    """Return the script of axe-core, which judges in a browser how accessible a page is."""
    _download("axe", AXE)
    script = AXE / "axe.min.js"
    if not script.exists():
        [jar] = AXE.glob("*.jar")
        with zipfile.ZipFile(jar) as archive:
            script.write_bytes(archive.read(script.name))
    return script


def _download(name: str, folder: Path) -> bool:
    """Make `folder` hold the jars of NAME-pom.xml; return whether it did not before.

    Their checksums are in NAME-jars.sha256.
    """
    checksums = _HERE / f"{name}-jars.sha256"
    marker = folder / ".complete"
    if marker.exists() and marker.read_text() == checksums.read_text():
        return False
    maven = _command("mvn", debian_package="maven")
    java()
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            maven,
            "--batch-mode",
            "--quiet",
            "--file",
            str(_HERE / f"{name}-pom.xml"),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={folder}",
        ],
        check=True,
    )
    _verify(folder, checksums)
    marker.write_text(checksums.read_text())
    return True


def _verify(folder: Path, checksums: Path) -> None:
    rows = [line.split() for line in checksums.read_text().splitlines()]
    expected = {name: checksum for checksum, name in rows}
    found = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in folder.glob("*.jar")}
    if found != expected:
        odd = sorted({name for name, _ in found.items() ^ expected.items()})
        raise MissingRequirement(f"jars in {folder} are not the ones of {checksums.name}: {', '.join(odd)}")


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
            f"{name} is not installed: tests and benchmarks need it (Debian: {debian_package})"
        )
    return found


_WAYS: dict[str, Callable[[], str | Path]] = {
    "java": java,
    "kafka": kafka_jars,
    "minio": minio,
    "spark": spark_jars,
    "chromium": chromium,
    "axe": axe,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or ("java", "kafka", "minio"):
        sys.stdout.write(f"{name}: {_WAYS[name]()}\n")
