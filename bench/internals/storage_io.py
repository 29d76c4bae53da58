"""Appends against write(2), reads against read(2) and sendfile(2), look-ups."""

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from ottla.bench.figures import MEGABYTES_A_SECOND, MICROSECONDS, RECORDS_A_SECOND, TIMES, Figure
from ottla.bench.internals.command import Cases, of_ottla
from ottla.bench.internals.storage_support import (
    NOW_MS,
    append,
    batch_of,
    open_log,
    scratch,
    seconds_since,
    stamp,
)
from ottla.config.log_config import LogConfig
from ottla.storage.log import Log

_KIB: Final = 1024
_MIB: Final = 1024 * 1024
_BATCH_SIZES: Final = {"1 KB": _KIB, "16 KB": 16 * _KIB, "128 KB": 128 * _KIB, "1 MB": _MIB}
#: Small batches cost time by their number, large ones by their bytes.
_MOST_BATCHES: Final = 50_000
_APPENDED_BYTES: Final = 512 * _MIB
_READ_SIZES: Final = {"64 KB": 64 * _KIB, "1 MB": _MIB}
_SEGMENTS: Final = 8
_LOOKUPS: Final = 20_000
_MS_BETWEEN_BATCHES: Final = 40


def appends(folder: Path, *, runs: int, scale: float) -> Cases:
    """Measure the log's whole append of a batch, and one write(2) of the same bytes to the same disk."""
    samples = {}
    for name, size in _BATCH_SIZES.items():
        times = int(min(_MOST_BATCHES, _APPENDED_BYTES // size) * scale)
        samples[name] = of_ottla(
            runs,
            partial(_append_run, folder, size, times),
        )
    return Cases(
        name="append",
        title="Append",
        note=(
            "Batches of 100-byte records, uncompressed: CRC and header checked, offsets and epoch patched in, written, "
            "indexed. Beside it one write(2) for each of the same buffers; 'flushed' counts a last fdatasync, too."
        ),
        figures=(
            Figure(metric="raw_bytes_per_s", title="write(2)", unit=MEGABYTES_A_SECOND),
            Figure(metric="bytes_per_s", title="append", unit=MEGABYTES_A_SECOND),
            Figure(metric="part_of_raw", title="append / write(2)", unit=TIMES),
            Figure(metric="records_per_s", title="append", unit=RECORDS_A_SECOND),
            Figure(metric="batch_s", title="a batch", unit=MICROSECONDS),
            Figure(metric="batch_cpu_s", title="a batch: CPU", unit=MICROSECONDS),
            Figure(metric="raw_flushed_bytes_per_s", title="write(2), flushed", unit=MEGABYTES_A_SECOND),
            Figure(metric="flushed_bytes_per_s", title="append, flushed", unit=MEGABYTES_A_SECOND),
        ),
        samples=samples,
    )


def _append_run(folder: Path, size: int, times: int) -> Mapping[str, float]:
    batch, count = batch_of(size)
    total = len(batch) * times
    with scratch(folder / "raw") as raw:
        raw_s, raw_flushed_s = _write_raw(raw / "file", batch, times)
    with scratch(folder / "log") as at:
        log = open_log(at)
        append(log, batch, 1)
        began, cpu_began = time.perf_counter(), time.process_time()
        append(log, batch, times)
        append_s, cpu_s = seconds_since(began), time.process_time() - cpu_began
        log.flush()
        flushed_s = seconds_since(began)
        log.close()
    return {
        "raw_bytes_per_s": total / raw_s,
        "raw_flushed_bytes_per_s": total / raw_flushed_s,
        "bytes_per_s": total / append_s,
        "flushed_bytes_per_s": total / flushed_s,
        "part_of_raw": raw_s / append_s,
        "records_per_s": count * times / append_s,
        "batch_s": append_s / times,
        "batch_cpu_s": cpu_s / times,
    }


def _write_raw(path: Path, data: bytearray, times: int) -> tuple[float, float]:
    """Return the seconds of the writes alone, and with a flush behind them."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.write(fd, data)
        began = time.perf_counter()
        for _ in range(times):
            os.write(fd, data)
        written_s = seconds_since(began)
        os.fdatasync(fd)
        return written_s, seconds_since(began)
    finally:
        os.close(fd)


def reads(folder: Path, *, runs: int, scale: float) -> Cases:
    """Measure the reads of a log from its beginning to its end, as fetches of one size."""
    samples = {}
    with _filled_log(folder / "reads", scale) as log:
        path = log.segments.first.path_of(".log")
        for name, size in _READ_SIZES.items():
            samples[name] = of_ottla(runs, partial(_read_run, log, path, size))
    return Cases(
        name="read",
        title="Read",
        note=(
            "A closed segment in the page cache, front to back. Alone: `Log.read` against read(2); a large "
            "read is lent from a mapping and not copied, so that alone it costs nothing. To a socket whose "
            "other end is drained by another process: `Log.read` and send(2) against sendfile(2) of the "
            "same file."
        ),
        figures=(
            Figure(metric="pread_bytes_per_s", title="read(2)", unit=MEGABYTES_A_SECOND),
            Figure(metric="bytes_per_s", title="Log.read", unit=MEGABYTES_A_SECOND),
            Figure(metric="sendfile_bytes_per_s", title="sendfile(2) to a socket", unit=MEGABYTES_A_SECOND),
            Figure(metric="sent_bytes_per_s", title="Log.read to a socket", unit=MEGABYTES_A_SECOND),
            Figure(metric="part_of_sendfile", title="Log.read / sendfile(2), to a socket", unit=TIMES),
        ),
        samples=samples,
    )


@contextmanager
def _filled_log(folder: Path, scale: float) -> Iterator[Log]:
    """Make a log of eight closed segments and an active one, of batches of 16 KB, with an index entry for each."""
    batch, _ = batch_of(16 * _KIB)
    segment_bytes = int(128 * _MIB * scale)
    with scratch(folder) as at:
        log = open_log(at, LogConfig(segment_bytes=segment_bytes))
        now_ms = NOW_MS
        while len(log.segments) <= _SEGMENTS:
            stamp(batch, now_ms)
            append(log, batch, 1)
            now_ms += _MS_BETWEEN_BATCHES
        log.flush()
        yield log
        log.close()


def _read_run(log: Log, path: Path, size: int) -> Mapping[str, float]:
    end = log.segments.end_of(log.segments.first)
    assert end is not None
    total = path.stat().st_size

    def read_file(use: Callable[[bytes], object]) -> None:
        fd = os.open(path, os.O_RDONLY)
        for position in range(0, total, size):
            use(os.pread(fd, size, position))
        os.close(fd)

    def read_log(use: Callable[[bytes | memoryview], object]) -> None:
        offset = 0
        while offset < end:
            found = log.reader.read(offset, max_bytes=size, min_one_message=True, may_block=False)
            use(found.records)
            offset += len(found.records) // batch_bytes * batch_records

    def send_file() -> None:
        fd = os.open(path, os.O_RDONLY)
        position = 0
        while position < total:
            position += os.sendfile(sink.fileno(), fd, position, min(size, total - position))
        os.close(fd)

    first = log.segments.first.log.header_at(0)
    batch_bytes, batch_records = first.size_bytes, first.records_count
    pread_s = _timed(lambda: read_file(len))
    read_s = _timed(lambda: read_log(len))
    with _drain() as sink:
        sendfile_s = _timed(send_file)
        sent_s = _timed(lambda: read_log(sink.sendall))
    return {
        "pread_bytes_per_s": total / pread_s,
        "bytes_per_s": total / read_s,
        "sendfile_bytes_per_s": total / sendfile_s,
        "sent_bytes_per_s": total / sent_s,
        "part_of_sendfile": sendfile_s / sent_s,
    }


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return seconds_since(began)


@contextmanager
def _drain() -> Iterator[socket.socket]:
    """Open a TCP connection and yield one end; a child process reads and drops the bytes that are sent."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        child = os.fork()
        if child == 0:
            try:
                reader = socket.create_connection(listening.getsockname())
                place = bytearray(_MIB)
                while reader.recv_into(place):
                    pass
            finally:
                os._exit(0)
        sender, _ = listening.accept()
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        yield sender
    finally:
        sender.close()
        os.waitpid(child, 0)


def lookups(folder: Path, *, runs: int, scale: float) -> Cases:
    """Measure the look-up of an offset, or of a time, anywhere in a log of nine segments."""
    with _filled_log(folder / "lookups", scale) as log:
        samples = {
            name: of_ottla(runs, partial(_lookup_run, log, lookup)) for name, lookup in _LOOKUPS_OF.items()
        }
        size_bytes = log.segments.size_bytes
    return Cases(
        name="lookup",
        title="Look up",
        note=(
            f"{_LOOKUPS:,} offsets drawn anywhere in a log of {size_bytes / 1e6:,.0f} MB, {_SEGMENTS + 1} "
            "segments, batches of 16 KB, each with an index entry; all in the page cache."
        ),
        figures=(
            Figure(metric="p50_s", title="p50", unit=MICROSECONDS),
            Figure(metric="p99_s", title="p99", unit=MICROSECONDS),
        ),
        samples=samples,
    )


def _in_index(log: Log, offset: int) -> object:
    segment = log.segments.floor(offset)
    assert segment is not None
    return segment.indexes.offset_index.lookup(offset)


def _read_small(log: Log, offset: int) -> object:
    return log.reader.read(offset, max_bytes=_KIB, min_one_message=True)


def _by_time(log: Log, offset: int) -> object:
    """Look up an offset by its time: batches are equal and equally far apart, so that an offset determines it."""
    return log.reader.offset_for_timestamp(NOW_MS + offset * _MS_BETWEEN_BATCHES // _records_each(log))


def _records_each(log: Log) -> int:
    return log.segments.first.log.header_at(0).records_count


_LOOKUPS_OF: Final[dict[str, Callable[[Log, int], object]]] = {
    "entry in the index": _in_index,
    "position of the batch": lambda log, offset: (
        log.segments.floor(offset) or log.segments.first
    ).reader.find(offset),
    "read of one batch": _read_small,
    "record by timestamp": _by_time,
    "batch at the end of the log": lambda log, _: _read_small(log, log.log_end_offset - 1),
}


def _lookup_run(log: Log, lookup: Callable[[Log, int], object]) -> Mapping[str, float]:
    random = Random(3)
    times: list[float] = []
    for _ in range(_LOOKUPS):
        offset = random.randrange(log.log_end_offset)
        began = time.perf_counter()
        lookup(log, offset)
        times.append(seconds_since(began))
    times.sort()
    return {"p50_s": times[len(times) // 2], "p99_s": times[len(times) * 99 // 100]}
