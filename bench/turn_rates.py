"""Long turns of the event loops of Ottla and of the floor, for each gigabyte produced.

Turns that both have are the machine's.

    python -m ottla.bench.turn_rates [--places NAME,...] [--runs N] ...

Prints tables and writes them, with every sample, to bench/results/. Both are watched while 2 GB are produced,
in turn, run after run: `ottla.bench.compare` counts the turns of one round of each load, too few to compare
two loops by. bench/PROGRAMS.md says more.
"""

import sys
from dataclasses import replace
from typing import Final

from ottla.bench.figures import GIGABYTE, MEGABYTES_A_SECOND, MILLISECONDS, OTTLA, Figure, Sample, Unit
from ottla.bench.harness import Measure, Program
from ottla.bench.loads import librdkafka_produce, warm_up_round
from ottla.bench.program import main
from ottla.bench.targets.floor import FloorServer
from ottla.bench.targets.servers import SERVERS, Server
from ottla.bench.targets.settings import PLACES
from ottla.bench.targets.turn_logs import READER, watched
from ottla.bench.turns import BOUND_MS

_MEGABYTES: Final = 2000
_FOR_EACH_GB: Final = Unit(name="for each GB", decimals=1)
_FIGURES: Final = (
    Figure(metric="turns_per_gb", title=f"turns above {BOUND_MS} ms", unit=_FOR_EACH_GB),
    Figure(metric="longest_turn_s", title="the longest turn", unit=MILLISECONDS),
    Figure(metric="bytes_per_s", title="throughput", unit=MEGABYTES_A_SECOND),
)


def _watched(load: Measure[Server]) -> Measure[Server]:
    """Return a measure of the turns under the load instead of its own figures; the nodes must have a watch."""

    def run(server: Server, scale: float) -> Sample:
        READER.new()
        throughput = load.run(server, scale)["bytes_per_s"]
        turns = READER.new(log=server.log_file())
        return {
            "turns_per_gb": len(turns) / (_MEGABYTES * 1e6 * scale / GIGABYTE),
            "longest_turn_s": max((turn.own_s for turn in turns), default=0.0),
            "bytes_per_s": throughput,
        }

    return replace(load, figures=_FIGURES, run=run, is_profiled=False)


PROGRAM: Final[Program[Server]] = Program(
    name="turn_rates",
    description=(__doc__ or "").split("\n")[0],
    subjects={OTTLA: SERVERS[OTTLA]},
    measures=[
        _watched(
            librdkafka_produce(record_bytes=1024, partitions=partitions, acks="all", megabytes=_MEGABYTES)
        )
        for partitions in (1, 6)
    ],
    warm_up_round=warm_up_round,
    seconds=1.0,
    settings=("default",),
    places=PLACES,
    properties={},
    headlines=(),
    floor=FloorServer,
)


if __name__ == "__main__":
    # Nodes that watch their event loops, in all runs.
    with watched():
        main(["--no-observe", *sys.argv[1:]], PROGRAM)
