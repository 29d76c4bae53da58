"""Storage alone: appends, reads, look-ups, recovery, compaction and idle partitions.

    python -m ottla.bench.internals.storage [--quick] [--runs N] [--only TEXT]... [--data-dir FOLDER]

Prints tables and writes them, with every sample, to bench/results/<date>-storage.{md,json}.
"""

from ottla.bench.internals import command
from ottla.bench.internals.storage_compaction import compaction
from ottla.bench.internals.storage_idle import idle
from ottla.bench.internals.storage_io import appends, lookups, reads
from ottla.bench.internals.storage_recovery import recovery


def main() -> None:
    """Run the measures that the command line chooses."""
    measures: dict[str, command.Measure] = {
        "append": appends,
        "read": reads,
        "lookup": lookups,
        "recovery": recovery,
        "compaction": compaction,
        "idle": idle,
    }
    command.run("storage", measures, description=__doc__)


if __name__ == "__main__":
    main()
