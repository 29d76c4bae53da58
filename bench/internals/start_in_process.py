"""Starting a node inside a process that has imported everything, as a test suite does: seconds until it serves.

python -m ottla.bench.internals.start_in_process FOLDER

Prints one number for each start, as JSON. The first start imports what is imported late, so it is not counted.
"""

import json
import sys
import time
from pathlib import Path
from typing import Final

from ottla.broker.node import Node
from ottla.config.load import load_config
from ottla.runtime.production import ProductionRuntime, run

_STARTS: Final = 4


async def _starts(runtime: ProductionRuntime, folder: Path) -> list[float]:
    took: list[float] = []
    for number in range(_STARTS):
        config = load_config(port=0, data_dir=folder / str(number))
        began = time.perf_counter()
        node = await Node.start(runtime, config)
        took.append(time.perf_counter() - began)
        await node.stop()
    return took[1:]


def main() -> None:
    """Print the seconds of starts in a folder as JSON."""
    print(json.dumps(run(lambda runtime: _starts(runtime, Path(sys.argv[1])))))


if __name__ == "__main__":
    main()
