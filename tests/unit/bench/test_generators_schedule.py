"""A producer with an open-loop load sends all records that are due before the end, and no other."""

import pytest

from ottla.bench.generators.assignment import ProducerPlan
from ottla.bench.workloads.model import RecordSize


@pytest.mark.parametrize(
    ("rate", "seconds", "first_due_s", "records", "most"),
    [
        (500, 4, 0, None, 2000),  # due at 0, 2 ms, ..., 3.998 s
        (500, 4, 0.001, None, 2000),  # the last one at 3.999 s
        (500, 4, 0.002, None, 1999),  # the next one is due at the end
        (10, 0.7, 0, None, 7),
        (3, 1, 0, None, 3),  # 0, 1/3, 2/3
        (0.5, 1, 0, None, 1),
        (500, 4, 0, 100, 100),
        (500, 4, 0, 9000, 2000),
        (500, None, 0, 100, 100),
        (None, 4, 0, None, None),
        (None, 4, 0, 100, 100),
    ],
)
def test_the_records_of_a_plan(rate, seconds, first_due_s, records, most):
    plan = ProducerPlan(
        name="producer-0-0",
        topic="a",
        partitions=1,
        stream=1,
        size=RecordSize(),
        settings={},
        rate=rate,
        first_due_s=first_due_s,
        records=records,
        seconds=seconds,
        first_partition=0,
    )
    assert plan.most_records == most
