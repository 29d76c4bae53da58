"""A process that appends until it is killed. Its output: the end offset that each append or flush has returned.

python -m tests.unit.storage.crash_child DIRECTORY SEED
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

from ottla.config.log_config import LogConfig
from ottla.protocol.types import TopicPartition
from tests.unit.storage.storage_support import NOW_MS, batch, open_log

CONFIG = LogConfig(segment_bytes=50_000, index_interval_bytes=500, segment_index_bytes=4000)


def value_of(offset: int) -> bytes:
    """The value of the batch at this offset, which a reader can compute."""
    return b"%d." % offset * (1 + offset % 300)


def main(directory: Path, seed: int) -> None:
    random = Random(seed)
    log = open_log(directory, config=CONFIG, is_clean=False, topic_partition=TopicPartition("orders", 0))
    sequence = log.log_end_offset
    while True:
        at = log.log_end_offset
        log.append_as_leader(
            batch(1, value=value_of(at), producer_id=5, producer_epoch=0, base_sequence=sequence),
            leader_epoch=seed,
            now_ms=NOW_MS,
        )
        sequence += 1
        if random.random() < 0.002:
            log.roll(NOW_MS)
        if random.random() < 0.01:
            log.flush()
        sys.stdout.write(f"{log.log_end_offset}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
