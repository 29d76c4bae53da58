"""Logs and batches to measure with."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from struct import Struct
from typing import Final

from ottla.config.log_config import LogConfig
from ottla.protocol.records.batch import HEADER_SIZE_BYTES, crc_of
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import Compression
from ottla.protocol.records.record import Record
from ottla.protocol.types import TopicPartition
from ottla.storage.files import Files
from ottla.storage.log import Log

#: A broker stamps what it is sent with the time of the request; here time stands still.
NOW_MS: Final = 1_700_000_000_000
PARTITION: Final = TopicPartition("bench", 0)
_UNSET_OFFSET: Final = bytes(8)
#: The bytes of a record besides its value: lengths, deltas of time and offset, attributes, no key, no
#: headers.
_RECORD_OVERHEAD_BYTES: Final = 12
#: The largest difference of time between the first and the last record of a batch.
_SPAN_MS: Final = 39
_CRC: Final = Struct(">I")
_TIMES: Final = Struct(">qq")
_CRC_AT: Final = 17
_TIMES_AT: Final = 27


def batch_of(size_bytes: int, *, value_bytes: int = 100) -> tuple[bytearray, int]:
    """Make a batch of nearly this size as a producer sends it; return it with the number of its records."""
    count = max((size_bytes - HEADER_SIZE_BYTES) // (value_bytes + _RECORD_OVERHEAD_BYTES), 1)
    value = Random(1).randbytes(value_bytes)
    data = build_batch([Record(at, NOW_MS + at % (_SPAN_MS + 1), None, value) for at in range(count)])
    return bytearray(data), count


def stamp(batch: bytearray, now_ms: int) -> None:
    """Move all records of a batch of `batch_of` to a new time, which is quicker than a new batch."""
    _TIMES.pack_into(batch, _TIMES_AT, now_ms, now_ms + _SPAN_MS)
    _CRC.pack_into(batch, _CRC_AT, crc_of(batch))


def keyed_batch(random: Random, *, keys: int, count: int, value_bytes: int, codec: Compression) -> bytearray:
    """Make a batch whose keys are drawn from so many."""
    half = value_bytes // 2
    rows = [
        Record(at, NOW_MS, b"key-%d" % random.randrange(keys), random.randbytes(half) * 2)
        for at in range(count)
    ]
    return bytearray(build_batch(rows, compression=codec))


def open_log(folder: Path, config: LogConfig | None = None) -> Log:
    """Open the log of `PARTITION` below this folder."""
    return Log.open(
        folder / str(PARTITION),
        config=config or LogConfig(),
        topic_partition=PARTITION,
        now_ms=NOW_MS,
        files=Files(),
        random=Random(1),
    )


def append(log: Log, batch: bytearray, times: int) -> None:
    """Append batches as the Produce handler does, from a buffer that the log may patch."""
    for _ in range(times):
        batch[:8] = _UNSET_OFFSET
        log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Write all dirty pages of earlier work, and make a folder that is removed afterwards."""
    os.sync()
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def seconds_since(began: float) -> float:
    """Return the seconds since `began`, by `time.perf_counter`."""
    return time.perf_counter() - began
