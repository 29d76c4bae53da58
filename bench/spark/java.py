"""The Java that Spark would start: found and asked for its version before Spark is."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from ottla.bench.spark.errors import SparkCannotStart

#: The version for which Spark 4 is compiled.
LEAST_JAVA: Final = 17
_REMEDY: Final = (
    f"install Java {LEAST_JAVA} or newer (Debian: openjdk-17-jre-headless), or set JAVA_HOME to one"
)
#: The output of `java -version`: `openjdk version "17.0.15" 2025-04-15`, `java version "1.8.0_402"`
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_TIMEOUT_S: Final = 60


def java_program() -> str | None:
    """Find Java as Spark's own start script does: JAVA_HOME first, then the search path. None: there is none."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def check_java() -> None:
    """Raise SparkCannotStart if there is no Java for Spark, or too old a one."""
    home, program = os.environ.get("JAVA_HOME"), java_program()
    if program is None:
        raise SparkCannotStart(f"Spark needs Java, and there is none in the search path: {_REMEDY}")
    try:
        done = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except OSError as error:
        where = f"JAVA_HOME is {home}, but " if home else ""
        raise SparkCannotStart(f"{where}{program} cannot be run ({error.strerror}): {_REMEDY}") from error
    except subprocess.TimeoutExpired:
        raise SparkCannotStart(f"{program} -version has not ended within {_TIMEOUT_S} s: {_REMEDY}") from None
    found = _VERSION.search(done.stderr)
    if found is None:
        raise SparkCannotStart(f"{program} -version names no version: {_REMEDY}")
    if int(found[1]) < LEAST_JAVA:
        raise SparkCannotStart(f"{program} is Java {found[1]}, which is too old for Spark: {_REMEDY}")
