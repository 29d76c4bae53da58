"""Latencies of many records at once into one histogram."""

import ctypes

import numpy as np
import numpy.typing as npt

from ottla.bench.histograms import LEAST_US, MOST_US, new_histogram


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
