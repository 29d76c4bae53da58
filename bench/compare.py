"""One broker of Kafka and one of Ottla side by side: the same loads and settings on the same machine, in turn.

    python -m ottla.bench.compare [--settings default,tuned] [--places disk,tmpfs] [--disk DIR] [--tmpfs DIR] ...

Prints tables and writes them, with every sample, to bench/results/. bench/PROGRAMS.md says how to read them.
"""

from typing import Final

from ottla.bench.harness import Program
from ottla.bench.loads import LOADS, warm_up_round
from ottla.bench.program import main
from ottla.bench.start_up import START, START_IMPORTS, START_IN_PROCESS
from ottla.bench.targets.floor import FloorServer
from ottla.bench.targets.profiled import ProfiledServer
from ottla.bench.targets.servers import SERVERS, Server
from ottla.bench.targets.settings import PLACES, SETTINGS

PROGRAM: Final[Program[Server]] = Program(
    name="compare",
    description=(__doc__ or "").split("\n")[0],
    subjects=SERVERS,
    measures=(START, START_IN_PROCESS, START_IMPORTS, *LOADS),
    warm_up_round=warm_up_round,
    seconds=1.0,
    settings=tuple(SETTINGS),
    places=PLACES,
    properties={},
    headlines=(
        ("rdkafka-produce-1024b-1p-acks-all", "bytes_per_s"),
        ("rdkafka-produce-1024b-1p-acks-all", "cpu_s_per_gb"),
        ("java-produce-1024b-1p", "bytes_per_s"),
        ("rdkafka-consume-1024b-1p", "bytes_per_s"),
        ("one-at-a-time", "requests_per_s"),
        ("one-at-a-time", "p99_s"),
        ("pipelined-200b", "requests_per_s"),
        ("pipelined-200b", "cpu_s_per_request"),
        ("pipelined-16384b", "requests_per_s"),
        ("start", "start_s"),
        ("start", "idle_private_bytes"),
    ),
    floor=FloorServer,
    profiled=ProfiledServer,
)


if __name__ == "__main__":
    main(None, PROGRAM)
