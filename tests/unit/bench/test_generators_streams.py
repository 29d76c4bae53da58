"""Which sequences were seen: equal to a naive count."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench.generators.streams import Seen


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
