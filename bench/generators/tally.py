"""The counts and latencies of one client in a phase, and the rows that they become."""

import ctypes
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ottla.bench.generators.histograms import LEAST_US, MOST_US, new_histogram
from ottla.bench.generators.rows import Kind, Role, Row

#: The maximum number of different error texts of one client; a broker may put a number into each.
_MOST_TEXTS = 20


class Latencies:
    """A histogram that takes arrays; HdrHistogram itself takes 2 us for each value."""

    def __init__(self) -> None:
        self._histogram = new_histogram()
        self._counts = np.ctypeslib.as_array(
            ctypes.cast(self._histogram.counts, ctypes.POINTER(ctypes.c_uint64)),
            (self._histogram.counts_len,),
        )
        self._half_bits = self._histogram.sub_bucket_half_count_magnitude

    def record(self, latencies_us: npt.NDArray[np.int64]) -> None:
        """Record these latencies. Values out of bounds count as the bounds.

        A due time of another machine's clock may be in the future.
        """
        if not len(latencies_us):
            return
        values = np.clip(latencies_us, LEAST_US, MOST_US)
        # HdrHistogram's own index: the power of two of the value, then its bits below. frexp is exact below 2^53.
        bits = np.frexp((values | ((2 << self._half_bits) - 1)).astype(np.float64))[1].astype(np.int64)
        bucket = bits - (self._half_bits + 1)
        half = 1 << self._half_bits
        np.add.at(self._counts, ((bucket + 1) << self._half_bits) + (values >> bucket) - half, 1)
        histogram = self._histogram
        histogram.total_count += len(values)
        histogram.min_value = min(histogram.min_value, int(values.min()))
        histogram.max_value = max(histogram.max_value, int(values.max()))

    def __len__(self) -> int:
        return int(self._histogram.total_count)

    def encoded(self) -> bytes:
        """Return the histogram in V2's compressed encoding, as in `Row.latency`."""
        encoded: bytes = self._histogram.encode()
        return encoded


class Tally:
    """Counts of one client by seconds of the phase; its totals may be read by another thread."""

    def __init__(self, client: str, role: Role, topic: str | None) -> None:
        self.client, self.role, self.topic = client, role, topic
        self.records = self.payload_bytes = self.errors = 0
        #: The beginning of the phase, in microseconds since the epoch.
        self.start_us = 0
        self._rows: list[Row] = []
        self._second = 0
        self._counted = (0, 0, 0)
        self._latencies = Latencies()
        self._texts: dict[str, int] = {}

    def note(
        self, *, now_us: int, records: int, payload_bytes: int, latencies_us: npt.NDArray[np.int64]
    ) -> None:
        """Count records that have just been acknowledged or delivered."""
        self._turn_to(now_us)
        self.records += records
        self.payload_bytes += payload_bytes
        self._latencies.record(latencies_us)

    def note_errors(self, *, now_us: int, text: str, count: int) -> None:
        """Count `count` records that failed; zero if no record did."""
        self._turn_to(now_us)
        self.errors += count
        if text in self._texts or len(self._texts) < _MOST_TEXTS:
            self._texts[text] = self._texts.get(text, 0) + count

    def _turn_to(self, now_us: int) -> None:
        second = max(0, (now_us - self.start_us) // 1_000_000)
        if second != self._second:
            self._end_second()
            self._second = second

    def _end_second(self) -> None:
        totals = (self.records, self.payload_bytes, self.errors)
        records, payload_bytes, errors = (
            total - counted for total, counted in zip(totals, self._counted, strict=True)
        )
        self._counted = totals
        if not records and not errors:
            return
        self._rows.append(
            self.row(
                Kind.SECOND,
                second=self._second,
                records=records,
                payload_bytes=payload_bytes,
                errors=errors,
                latency=self._latencies.encoded() if len(self._latencies) else None,
            )
        )
        self._latencies = Latencies()

    def row(self, kind: Kind, **fields: object) -> Row:
        """Return a row of this client."""
        return Row(kind=kind, client=self.client, role=self.role, topic=self.topic, **fields)  # type: ignore[arg-type]

    def rows(self) -> Iterator[Row]:
        """Yield the rows of all seconds, and of the errors."""
        self._end_second()
        yield from self._rows
        for text, count in self._texts.items():
            yield self.row(Kind.ERROR, text=text, errors=count)
