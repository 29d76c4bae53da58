"""Cleaning a compacted log: megabytes of it a second."""

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from ottla.bench.figures import MEGABYTES_A_SECOND, PERCENT, RECORDS_A_SECOND, SECONDS_A_GIGABYTE, Figure
from ottla.bench.internals.command import Cases, of_ottla
from ottla.bench.internals.storage_support import (
    NOW_MS,
    append,
    keyed_batch,
    open_log,
    scratch,
    seconds_since,
)
from ottla.config.log_config import LogConfig
from ottla.protocol.records.compression import Compression
from ottla.storage.cleaner import cleaning_job, measure
from ottla.storage.log import Log

_VALUE_BYTES: Final = 1000
_RECORDS_A_BATCH: Final = 16
_LOG_BYTES: Final = 256_000_000
#: The configuration of the log. Batches are made before, and repeat: as many as a log of that size has keys
#: for.
_CONFIG: Final = LogConfig(
    cleanup_policy=("compact",), segment_bytes=64 * 2**20, min_cleanable_dirty_ratio=0.01
)


class _Case(NamedTuple):
    """The contents of the log: the number of keys, and the codec."""

    keys: int
    codec: Compression


_CASES: Final = {
    "one record of ten stays": _Case(25_000, Compression.NONE),
    "most records stay": _Case(10_000_000, Compression.NONE),
    "one record of ten stays, lz4": _Case(25_000, Compression.LZ4),
}


def compaction(folder: Path, *, runs: int, scale: float) -> Cases:
    """Measure one cleaning of a log whose every closed segment is dirty."""
    samples = {name: of_ottla(runs, partial(_run, folder, case, scale)) for name, case in _CASES.items()}
    return Cases(
        name="compaction",
        title="Compaction",
        note=(
            f"Records of {_VALUE_BYTES} bytes in batches of {_RECORDS_A_BATCH}, with keys drawn from so "
            "many that what the case says stays; both passes (offset map, rewriting) and the flush of what "
            "replaces the old segments. MB/s of dirty log."
        ),
        figures=(
            Figure(metric="bytes_per_s", title="throughput", unit=MEGABYTES_A_SECOND),
            Figure(metric="records_per_s", title="throughput", unit=RECORDS_A_SECOND),
            Figure(metric="cpu_s_per_gb", title="CPU", unit=SECONDS_A_GIGABYTE),
            Figure(metric="kept", title="kept", unit=PERCENT),
        ),
        samples=samples,
    )


def _run(folder: Path, case: _Case, scale: float) -> Mapping[str, float]:
    with scratch(folder / "compaction") as at:
        log = open_log(at, _CONFIG)
        count = _fill(log, case, scale)
        log.roll(NOW_MS)
        log.update_high_watermark(log.log_end_offset)
        log.flush()
        before = log.segments.size_bytes
        cleaned: list[int | None] = []
        job = cleaning_job(
            measure(log, cleaned_to=None, now_ms=NOW_MS),
            now_ms=NOW_MS,
            on_done=lambda _, end: cleaned.append(end),
        )
        began, cpu_began = time.perf_counter(), time.process_time()
        job.complete()
        cleaning_s, cpu_s = seconds_since(began), time.process_time() - cpu_began
        assert cleaned == [log.log_end_offset], cleaned
        kept = log.segments.size_bytes / before
        log.close()
    return {
        "bytes_per_s": before / cleaning_s,
        "records_per_s": count / cleaning_s,
        "cpu_s_per_gb": cpu_s / before * 1e9,
        "kept": kept,
    }


def _fill(log: Log, case: _Case, scale: float) -> int:
    """Append until the log has its size, before compression; return the number of records."""
    random = Random(7)
    count = int(_LOG_BYTES * scale / _VALUE_BYTES)
    for _ in range(count // _RECORDS_A_BATCH):
        batch = keyed_batch(
            random, keys=case.keys, count=_RECORDS_A_BATCH, value_bytes=_VALUE_BYTES, codec=case.codec
        )
        append(log, batch, 1)
    return count
