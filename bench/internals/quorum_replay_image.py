"""One process that replays a metadata log into an image and prints what that took; ImageReplay.java is Kafka's.

python -m ottla.bench.internals.quorum_replay_image DATA_DIR
"""

import gc
import json
import sys
import time
from pathlib import Path
from random import Random

import psutil

from ottla.controller.metadata_log.log import MetadataLog
from ottla.metadata.image import MetadataImage
from ottla.storage.files import Files


def main(data_dir: Path) -> None:
    """Replay the log, then measure the memory of the image."""
    gc.set_threshold(50_000, 20, 50)  # as a node has it
    before = _private_bytes()
    began = time.perf_counter()
    log = MetadataLog.open(data_dir, files=Files(), random=Random(1), now_ms=0)
    image = MetadataImage()
    for batch in log.decoded_batches(log.log_start_offset, log.end_offset):
        image.replay_all(batch.records)
    took_s = time.perf_counter() - began
    partitions = sum(len(topic.partitions) for topic in image.topics_by_id.values())
    log.close()
    found = {"replay_s": took_s, "image_bytes": _private_bytes() - before, "partitions": partitions}
    sys.stdout.write(json.dumps(found) + "\n")


def _private_bytes() -> int:
    gc.collect()
    memory = psutil.Process().memory_info()
    return int(memory.rss - memory.shared)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
