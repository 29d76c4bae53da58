"""A broker with many tiered partitions, from its start to its stop, in a process of its own.

python -m ottla.bench.internals.tier_scale_broker FOLDER PARTITIONS READERS

Prints what each phase took, as JSON.
"""

import asyncio
import gc
import json
import os
import sys
from asyncio.subprocess import Process
from pathlib import Path
from typing import Final

from ottla.bench.internals.loop_turns import LoopTurns
from ottla.bench.internals.tier_scale_folder import (
    READ_COPIES,
    TOPIC,
    config_of,
    copies_of,
    places_of,
    until_known,
)
from ottla.bench.internals.tier_scale_phases import COUNT, Figures, Phases
from ottla.bench.targets.memory import PeakMemory
from ottla.broker.node import Node
from ottla.runtime.garbage import collect_briefly, collect_rarely
from ottla.runtime.production import ProductionRuntime, allow_open_files, run

#: The interval of each partition's tasks: those of all partitions are due soon after the start, 5 s for 1,000
#: of them.
_TASK_INTERVAL_S: Final = 0.005
_POLL_S: Final = 0.02


async def _until_checked(node: Node) -> int:
    """Wait until the expiration task has checked every partition once more; return the copies that it has found."""
    assert node.broker.remote is not None
    metrics = node.broker.remote.metrics
    gauges = [metrics.partition(place.topic_partition) for place in places_of(node)]
    for each in gauges:
        each.remote_log_metadata_count = 0
    for each in gauges:
        while not each.remote_log_metadata_count:  # noqa: ASYNC110 (nothing notifies of it)
            await asyncio.sleep(_POLL_S)
    return sum(each.remote_log_metadata_count for each in gauges)


async def _readers(node: Node, count: int) -> Process:
    """Start consumers that read the records of their partitions in the store, once they get a line."""
    end_offset = copies_of(node, 0)[READ_COPIES - 1].end_offset
    arguments = (node.listeners[0].port, TOPIC, count, end_offset)
    readers = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ottla.bench.internals.tier_scale_readers",
        *map(str, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert readers.stdout is not None
    await readers.stdout.readline()
    return readers


async def _measure(
    runtime: ProductionRuntime, folder: Path, partition_count: int, reader_count: int
) -> dict[str, Figures]:
    allow_open_files()
    collect_rarely()
    phases = Phases(LoopTurns())
    with phases.phase("start to READY") as figures:
        node = await Node.start(
            runtime, config_of(folder, task_interval_s=partition_count * _TASK_INTERVAL_S)
        )
        gc.freeze()
        collect_briefly()
    figures[COUNT] = sum(each.is_leader for each in node.broker.replicas.partitions())
    with phases.phase("until all is known") as figures:
        figures[COUNT] = await until_known(node, partition_count)
    with phases.phase("all tasks, nothing is due") as figures:
        figures[COUNT] = await _until_checked(node)
    consumers = await _readers(node, reader_count)
    with phases.phase("readers") as figures, PeakMemory([os.getpid()]) as memory:
        output, _ = await consumers.communicate(b"\n")
    figures |= {COUNT: float(output), "private_bytes": float(memory.private_bytes)}
    with phases.phase("stop"):
        await node.stop()
    phases.stop()
    return phases.figures


def main() -> None:
    """Measure a broker on a folder, and print the figures of its phases as JSON."""
    folder, partition_count, readers = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    print(json.dumps(run(lambda runtime: _measure(runtime, folder, partition_count, readers))))


if __name__ == "__main__":
    main()
