"""Our modules on the executors: a zip from the repository, because their Pythons have wheels only."""

import zipfile
from pathlib import Path
from typing import Final
from weakref import WeakSet

from pyspark import SparkContext

_OTTLA: Final = Path(__file__).parents[2]
#: The packages that tasks run, and that the source ottla-tier needs.
_PACKAGES: Final = ("bench", "config", "metadata", "protocol", "remote", "replication", "storage")
_shipped: WeakSet[SparkContext] = WeakSet()


def ship_bench(context: SparkContext) -> None:
    """Ship the code that tasks run to the executors, once for each context."""
    if context in _shipped:
        return
    # Executors on this machine read it from there when their first task starts; the session removes it.
    path = Path(str(context.getConf().get("spark.local.dir")), "ottla-bench.zip")
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in _PACKAGES:
            for file in sorted((_OTTLA / package).rglob("*.py")):
                archive.write(file, file.relative_to(_OTTLA.parent))
        archive.write(_OTTLA / "__init__.py", "ottla/__init__.py")
    context.addPyFile(str(path))
    _shipped.add(context)
