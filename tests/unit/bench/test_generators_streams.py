"""The set of seen sequences equals a naive count."""

from collections import Counter

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from ottla.bench.generators.rows import Kind, Role, Row
from ottla.bench.generators.streams import Seen, joined


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=12), min_size=1, max_size=8))
def test_counts_are_those_of_a_set(batches):
    seen = Seen()
    known, duplicates, out_of_order = set(), 0, 0
    for batch in batches:
        seen.note(np.array(batch))
        for sequence in batch:
            if sequence in known:
                duplicates += 1
            elif known and sequence < max(known):
                out_of_order += 1
            known.add(sequence)
    assert (seen.first, seen.next, seen.distinct) == (min(known), max(known) + 1, len(known))
    assert (seen.duplicates, seen.out_of_order) == (duplicates, out_of_order)


def row_of(segments, *, partition):
    """The row of a task that reads these segments of a hundred records in their order."""
    seen = Seen()
    for segment in segments:
        seen.note(np.arange(100 * segment, 100 * segment + 100))
    return Row(
        kind=Kind.STREAM,
        client="job-0",
        role=Role.CONSUMER,
        stream="s",
        partition=partition,
        first_sequence=seen.first,
        next_sequence=seen.next,
        distinct_records=seen.distinct,
        duplicates=seen.duplicates,
        out_of_order=seen.out_of_order,
        corrupt=0,
    )


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12))
@example([0, 0, 2])  # one task reads again what another one has read, and none reads the middle
def test_segments_that_several_tasks_read_are_counted_once(read):
    (whole, other) = joined([*(row_of([each], partition=0) for each in read), row_of([0], partition=1)])
    counts = Counter(read)
    assert whole.distinct_records == 100 * len(counts)
    assert whole.duplicates == 100 * (len(read) - len(counts))
    assert (whole.first_sequence, whole.next_sequence) == (100 * min(counts), 100 * max(counts) + 100)
    assert (other.partition, other.distinct_records, other.duplicates) == (1, 100, 0)


def test_segments_of_one_task_and_other_rows_stay_as_they_are():
    rows = [row_of([3, 1, 1], partition=0), Row(kind=Kind.SECOND, client="job-0", role=Role.JOB)]
    rows.append(Row(kind=Kind.STREAM, client="job-0", role=Role.CONSUMER, partition=0, corrupt=2))
    assert sorted(joined(rows), key=repr) == sorted(rows, key=repr)
