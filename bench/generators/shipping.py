"""Our modules on the executors: a zip from the repository, because their Pythons have wheels only."""

import zipfile
from pathlib import Path
from typing import Final
from weakref import WeakSet

from pyspark import SparkContext

_REPOSITORY: Final = Path(__file__).parents[2]
#: What tasks run, and what the source ottla-tier needs.
_PACKAGES: Final = ("bench", "protocol", "remote", "storage")
_shipped: WeakSet[SparkContext] = WeakSet()


def ship_bench(context: SparkContext) -> None:
    """Once for each context."""
    if context in _shipped:
        return
    # Executors on this machine read it from there when their first task starts; the session removes it.
    path = Path(str(context.getConf().get("spark.local.dir")), "ottla-bench.zip")
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in _PACKAGES:
            for file in sorted((_REPOSITORY / package).rglob("*.py")):
                archive.write(file, file.relative_to(_REPOSITORY))
    context.addPyFile(str(path))
    _shipped.add(context)
