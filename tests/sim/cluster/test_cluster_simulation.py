"""Whole clusters in virtual time: brokers, controllers and clients under faults, over a fixed set of seeds.

`make sim SEEDS=...` runs every story with so many more seeds. Repeat a seed that fails, with what its nodes log,
by `cluster_stories.run_story(name, seed, is_quiet=False)`. What must hold is in `cluster_judge` and
`tests/harness/history_checker.py`; what was found by more seeds than these, in docs/SIMULATION.md.
"""

import os
from itertools import product
from traceback import extract_tb

import pytest
from cluster_mutants import MUTANTS, Mutant
from cluster_stories import STORIES, run_story, shape_of
from cluster_ways import (
    counting_fast_appends,
    counting_fast_copies,
    counting_fast_fetches,
    general_only,
)

pytestmark = [
    # A second or two for each seed where a core is free; machines are not always idle.
    pytest.mark.timeout(300),
    # Faults are logged all the time; an unexpected exception in a log line fails the story (`cluster_world`).
    pytest.mark.logs(""),
]

#: Seeds of the checks, by story: 244 together, fewer of those that cost most.
SEEDS = {
    "crashes": 24,
    "bad_network": 26,
    "administration": 10,
    "voters": 6,
    "bad_disks": 26,
    "restless": 10,
    "everything": 6,
    "unclean": 6,
    "questions": 14,
    "retention": 3,
    "directories": 3,
    "left_directories": 6,
    "late_words": 16,
    "amnesia": 16,
    "parked": 10,
    "beside_the_loop": 8,
    "slow_reads": 4,
    "groups": 8,
    "group_blackouts": 4,
    "tiered": 5,
    "tiered_transactions": 5,
    "tiered_store": 5,
    "tiered_unclean": 4,
    "tiered_branches": 3,
    "tiered_returns": 3,
    "tiered_clocks": 3,
    "tiered_switches": 3,
    "tiered_blackouts": 4,
    "tiered_configurations": 3,
}
#: More of them, behind those.
MORE = int(os.environ.get("OTTLA_SIM_SEEDS", "0"))
CASES = [
    pytest.param(name, seed, id=f"{name}-{seed}") for name in STORIES for seed in range(SEEDS[name] + MORE)
]


@pytest.mark.parametrize(("story", "seed"), CASES)
def test_story(story, seed):
    run_story(story, seed)


def test_the_seeds_have_clusters_of_every_shape():
    shapes = [shape_of(name, seed) for name in STORIES for seed in range(SEEDS[name])]
    drawn = {(each["brokers"], each["controllers"], each["is_combined"]) for each in shapes}
    assert drawn >= set(product((3, 4, 5), (1, 3, 5), (False, True)))


def test_the_same_seed_gives_the_same_trace():
    first, second, other = run_story("everything", 4), run_story("everything", 4), run_story("everything", 5)
    assert first.simulation.trace == second.simulation.trace
    assert first.history.sends == second.history.sends
    assert first.history.polls == second.history.polls
    assert first.simulation.trace != other.simulation.trace


@pytest.mark.parametrize(
    ("story", "seed"), [("crashes", 3), ("bad_disks", 4), ("everything", 4), ("parked", 1), ("restless", 1)]
)
def test_a_story_is_the_same_by_the_general_way_alone(story, seed):
    with (
        counting_fast_appends() as appends,
        counting_fast_copies() as copies,
        counting_fast_fetches() as fetches,
    ):
        fast = run_story(story, seed)
    with general_only():
        general = run_story(story, seed)
    assert len(appends) > len(fast.history.sends) // 2
    assert sum(copies) > len(copies) // 2
    assert sum(fetches) > max(50, len(fetches) // 2)
    assert fast.simulation.trace == general.simulation.trace
    assert fast.history.sends == general.history.sends
    assert fast.history.polls == general.history.polls


def is_found(mutant: Mutant, seed: int) -> bool:
    try:
        with mutant.plant():
            run_story(mutant.story, seed)
    except Exception as error:  # noqa: BLE001 (others than the expected one are no finding)
        function = extract_tb(error.__traceback__)[-1].name
        return mutant.found_by in f"{type(error).__name__} in {function}: {error}"
    return False


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.plant.__name__)
def test_a_planted_bug_is_found(mutant: Mutant):
    """The story is found on the fast path, and by the same story on the general path."""
    for seed in mutant.seeds:
        if is_found(mutant, seed):
            with general_only():
                assert is_found(mutant, seed), seed
            return
    pytest.fail(f"{mutant.found_by} is not raised by {mutant.story} within the seeds {mutant.seeds}")
