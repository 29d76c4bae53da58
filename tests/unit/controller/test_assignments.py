"""Placement: spread over racks and brokers, leaders that are alive."""

from collections import Counter
from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.controller.partitions.assignments import Candidate, _interleaved, _Rack, _replicas, place_replicas
from ottla.protocol.errors import InvalidReplicationFactor

candidates_of = st.lists(
    st.tuples(st.sampled_from([None, "a", "b", "c"]), st.booleans()), min_size=1, max_size=9
).map(lambda rows: [Candidate(index, rack, fenced) for index, (rack, fenced) in enumerate(rows)])


# KIP-36
@given(candidates=candidates_of, count=st.integers(1, 30), factor=st.integers(1, 9), seed=st.integers(0, 99))
def test_every_placement(candidates, count, factor, seed):
    unfenced = {each.broker_id for each in candidates if not each.is_fenced}
    if not unfenced or factor > len(candidates):
        with pytest.raises(InvalidReplicationFactor):
            place_replicas(candidates, partition_count=count, replication_factor=factor, random=Random(seed))
        return
    placed = place_replicas(candidates, partition_count=count, replication_factor=factor, random=Random(seed))
    assert len(placed) == count
    racks = {each.broker_id: each.rack for each in candidates}
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
        assert replicas[0] in unfenced
        assert len({racks[replica] for replica in replicas}) == min(factor, len(set(racks.values())))


@given(
    fenced=st.lists(st.booleans(), min_size=1, max_size=9).filter(lambda each: not all(each)),
    turn=st.integers(0, 20),
    seed=st.integers(0, 9),
)
def test_one_rack_is_placed_as_several(fenced: list[bool], turn: int, seed: int):
    rack = _Rack([Candidate(index, None, is_fenced) for index, is_fenced in enumerate(fenced)], Random(seed))
    for factor in range(1, len(fenced) + 1):
        general = [*islice(_interleaved([iter(rack.brokers_from(turn))]), factor)]
        assert _replicas([rack], turn, factor) == general


@pytest.mark.parametrize(
    ("racks", "factor"),
    [
        ([None] * 3, 1),
        ([None] * 3, 3),
        (["a", "b", "c"], 2),
        (["a", "a", "b", "b"], 2),
        (["a"] * 3 + ["b"] * 3, 3),
    ],
)
def test_leaders_and_replicas_are_spread_evenly(racks: list[str | None], factor: int):
    candidates = [Candidate(index, rack, False) for index, rack in enumerate(racks)]
    count = 12 * len(racks)
    placed = place_replicas(candidates, partition_count=count, replication_factor=factor, random=Random(1))
    leaders = Counter(replicas[0] for replicas in placed)
    everyone = Counter(replica for replicas in placed for replica in replicas)
    assert set(leaders.values()) == {12}
    assert max(everyone.values()) - min(everyone.values()) <= factor


def test_topics_of_one_partition_do_not_all_begin_with_the_same_broker():
    candidates = [Candidate(index, None, False) for index in range(3)]
    random = Random(1)
    first = {
        place_replicas(candidates, partition_count=1, replication_factor=1, random=random)[0][0]
        for _ in range(30)
    }
    assert first == {0, 1, 2}


def test_no_broker_takes_over_all_that_another_led():
    candidates = [Candidate(index, None, False) for index in range(6)]
    placed = place_replicas(candidates, partition_count=120, replication_factor=2, random=Random(1))
    successors = Counter(second for first, second in placed if first == 0)
    assert len(successors) >= 4
    assert max(successors.values()) <= 10


@pytest.mark.parametrize(
    ("candidates", "factor", "said"),
    [
        ([], 1, "All brokers are currently fenced"),
        ([Candidate(1, None, True)], 1, "All brokers are currently fenced"),
        ([Candidate(1, None, False)], 0, "must be positive"),
        ([Candidate(1, None, False)], 2, "only 1 broker"),
    ],
)
def test_what_cannot_be_placed(candidates, factor, said):
    with pytest.raises(InvalidReplicationFactor, match=said):
        place_replicas(candidates, partition_count=1, replication_factor=factor, random=Random(1))
