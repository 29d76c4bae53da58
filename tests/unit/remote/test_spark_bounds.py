"""Filters of a query leave out no record that matches them."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.remote.spark_source.bounds import Bounds, Comparison, Filter

EPOCH = datetime.fromtimestamp(0, UTC)
HOLDS = {
    Comparison.ONE_OF: lambda value, values: value in values,
    Comparison.AT_LEAST: lambda value, values: value >= values[0],
    Comparison.MORE: lambda value, values: value > values[0],
    Comparison.AT_MOST: lambda value, values: value <= values[0],
    Comparison.LESS: lambda value, values: value < values[0],
}


def condition(column, comparison, *values):
    return Filter(column=column, comparison=Comparison(comparison), values=values)


def at_us(microseconds):
    return EPOCH + timedelta(microseconds=microseconds)


VALUES = {
    "topic": st.sampled_from("abc"),
    "partition": st.integers(0, 3),
    "offset": st.integers(0, 30),
    "timestamp": st.integers(0, 5000).map(at_us),
}


@st.composite
def conditions(draw):
    column = draw(st.sampled_from(list(VALUES)))
    comparison = draw(st.sampled_from(list(Comparison)))
    count = 3 if comparison is Comparison.ONE_OF else 1
    values = draw(st.lists(VALUES[column], min_size=1, max_size=count))
    return Filter(column=column, comparison=comparison, values=tuple(values))


RECORDS = st.fixed_dictionaries({**VALUES, "timestamp": st.integers(0, 5).map(lambda ms: at_us(1000 * ms))})


@given(st.lists(conditions(), max_size=4), RECORDS)
def test_what_matches_is_within(filters, record):
    bounds = Bounds().within(filters)
    if all(HOLDS[each.comparison](record[each.column], each.values) for each in filters):
        assert bounds.has(record["topic"], record["partition"])
        assert bounds.start_offset <= record["offset"] < bounds.end_offset
        milliseconds = (record["timestamp"] - EPOCH) // timedelta(milliseconds=1)
        assert bounds.min_timestamp_ms is None or milliseconds >= bounds.min_timestamp_ms


@pytest.mark.parametrize(("filters", "expected"), [
    ([condition("offset", ">=", 3), condition("offset", "<", 9)], Bounds(start_offset=3, end_offset=9)),
    ([condition("offset", ">", 3), condition("offset", "<=", 9)], Bounds(start_offset=4, end_offset=10)),
    ([condition("offset", "in", 7, 4)],                           Bounds(start_offset=4, end_offset=8)),
    ([condition("topic", "in", "a", "b"), condition("topic", "in", "b")], Bounds(topics=frozenset("b"))),
    ([condition("partition", "in", 1)],                           Bounds(partitions=frozenset({1}))),
    ([condition("timestamp", ">=", at_us(2999))],                 Bounds(min_timestamp_ms=2)),
    ([condition("timestamp", "in", at_us(5000), at_us(3000))],    Bounds(min_timestamp_ms=3)),
    # Nothing is known of these.
    ([condition("timestamp", "<", at_us(5000))],                  Bounds()),
    ([condition("timestamp", ">=", datetime(2020, 1, 1))],        Bounds()),
    ([condition("topic", ">=", "a"), condition("value", "in", b"x")], Bounds()),
    ([condition("offset", "in", 4, None)],                        Bounds()),
])  # fmt: skip
def test_what_is_left(filters, expected):
    assert Bounds().within(filters) == expected
