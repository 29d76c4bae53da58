"""The modules of bench on the executors: a zip from the repository, because their Pythons have wheels only."""

import zipfile
from pathlib import Path
from typing import Final
from weakref import WeakSet

from pyspark import SparkContext

_PACKAGE: Final = Path(__file__).parents[1]
_shipped: WeakSet[SparkContext] = WeakSet()


def ship_bench(context: SparkContext) -> None:
    """Once for each context."""
    if context in _shipped:
        return
    # Executors on this machine read it from there when their first task starts; the session removes it.
    path = Path(str(context.getConf().get("spark.local.dir")), "ottla-bench.zip")
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(_PACKAGE.rglob("*.py")):
            archive.write(file, file.relative_to(_PACKAGE.parent))
    context.addPyFile(str(path))
    _shipped.add(context)
