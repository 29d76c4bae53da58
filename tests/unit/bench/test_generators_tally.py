"""Counts by seconds, and histograms that are equal to HdrHistogram's own."""

import numpy as np
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from ottla.bench.generators.histograms import LEAST_US, MOST_US, new_histogram
from ottla.bench.generators.rows import Kind, Role
from ottla.bench.generators.tally import Latencies, Tally

START_US = 1_000_000_000


@given(st.lists(st.one_of(st.integers(LEAST_US, 5000), st.integers(LEAST_US, MOST_US)), min_size=1))
def test_a_histogram_of_arrays_is_that_of_single_values(values):
    latencies, single = Latencies(), new_histogram()
    latencies.record(np.array(values))
    for value in values:
        assert single.record_value(value)
    decoded = HdrHistogram.decode(latencies.encoded(), b64_wrap=False)
    assert list(decoded.counts) == list(single.counts)
    assert decoded.total_count == len(latencies) == len(values)
    assert latencies.encoded() == single.encode()


def test_latencies_out_of_bounds_count_as_the_bounds():
    latencies = Latencies()
    latencies.record(np.array([-5, 0, 2 * MOST_US]))
    decoded = HdrHistogram.decode(latencies.encoded(), b64_wrap=False)
    assert [decoded.get_count_at_value(value) for value in (LEAST_US, MOST_US)] == [2, 1]


def note(tally, second, count):
    tally.note(
        now_us=START_US + int(second * 1e6),
        records=count,
        payload_bytes=10 * count,
        latencies_us=np.full(count, 500),
    )


def test_a_row_is_what_happened_in_one_second():
    tally = Tally("producer-0-0", Role.PRODUCER, "t")
    tally.start_us = START_US
    note(tally, 0.1, 3)
    note(tally, 0.9, 4)
    tally.note_errors(now_us=START_US + 2_500_000, text="refused", count=2)
    note(tally, 4.0, 1)
    rows = list(tally.rows())
    seconds = [row for row in rows if row.kind is Kind.SECOND]
    assert [
        (row.second, row.records, row.payload_bytes, row.errors, row.latency is None) for row in seconds
    ] == [
        (0, 7, 70, 0, False),
        (2, 0, 0, 2, True),
        (4, 1, 10, 0, False),
    ]
    assert HdrHistogram.decode(seconds[0].latency, b64_wrap=False).total_count == 7
    assert [(row.text, row.errors) for row in rows if row.kind is Kind.ERROR] == [("refused", 2)]
    assert (tally.records, tally.payload_bytes, tally.errors) == (8, 80, 2)


def test_texts_are_bounded():
    tally = Tally("producer-0-0", Role.PRODUCER, "t")
    for number in range(1000):
        tally.note_errors(now_us=0, text=f"connection {number}", count=1)
    rows = list(tally.rows())
    assert sum(row.kind is Kind.ERROR for row in rows) == 20
    assert sum(row.errors for row in rows if row.kind is Kind.SECOND) == 1000
