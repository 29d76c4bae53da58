"""Histograms of latencies (HdrHistogram): made by the clients, a few a second, and merged by the aggregation.

Microseconds from 1 us to 1 h, with three significant digits; encoded as V2, compressed, without base64.
"""

from collections.abc import Iterable
from typing import Final

import numpy
from hdrh.histogram import HdrHistogram

LEAST_US: Final = 1
MOST_US: Final = 3_600_000_000
_DIGITS: Final = 3
_SECOND_US: Final = 1e6
#: Name of a column or metric -> percentile; 100 is the largest value.
PERCENTILES: Final = {"p50_s": 50.0, "p90_s": 90.0, "p99_s": 99.0, "p999_s": 99.9, "max_s": 100.0}


def new_histogram() -> HdrHistogram:
    """Make an empty histogram; its `encode` returns bytes."""
    return HdrHistogram(LEAST_US, MOST_US, _DIGITS, b64_wrap=False)


def merged(encoded: Iterable[bytes]) -> HdrHistogram:
    """Return the sum of encoded histograms; the order does not matter."""
    total = new_histogram()
    for each in encoded:
        total.decode_and_add(bytes(each))
    return total


def percentiles_s(histogram: HdrHistogram) -> dict[str, float | None]:
    """Return PERCENTILES in seconds; None where nothing was recorded.

    Each is the highest value of the class that has it, at most 0.1 % too large.

    >>> some = new_histogram()
    >>> for latency_us in (1000, 2000, 3000, 500_000):
    ...     _ = some.record_value(latency_us)
    >>> {name: round(value, 3) for name, value in percentiles_s(some).items()}
    {'p50_s': 0.002, 'p90_s': 0.5, 'p99_s': 0.5, 'p999_s': 0.5, 'max_s': 0.5}
    """
    if not histogram.total_count:
        return dict.fromkeys(PERCENTILES)
    # As HdrHistogram's own percentiles, which take 24,000 steps of Python for each histogram.
    below = numpy.cumsum(numpy.ctypeslib.as_array(histogram.counts))
    found: dict[str, float | None] = {}
    for name, percentile in PERCENTILES.items():
        rank = histogram.get_target_count_at_percentile(percentile)
        value_us = histogram.get_value_from_index(int(numpy.searchsorted(below, rank)))
        found[name] = histogram.get_highest_equivalent_value(value_us) / _SECOND_US
    return found
