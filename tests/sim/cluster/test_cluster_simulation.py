"""Whole clusters in virtual time: brokers, controllers and clients under faults, over a fixed set of seeds.

`make sim SEEDS=...` tells every story by so many seeds more. A seed that breaks is told again, with what its nodes log,
by `cluster_stories.tell(name, seed, is_quiet=False)`. What must hold is in `cluster_judge` and
`tests/harness/history_checker.py`; what was found by more seeds than these, in docs/SIMULATION.md.
"""

import os

import pytest
from cluster_mutants import MUTANTS, Mutant
from cluster_stories import STORIES, tell
from cluster_world import World

#: Half a second for each seed where a core is free; machines are not always idle.
pytestmark = pytest.mark.timeout(300)

#: Seeds of the checks, by story: 314 together.
SEEDS = {
    "crashes": 50,
    "bad_network": 40,
    "administration": 40,
    "bad_disks": 30,
    "restless": 30,
    "everything": 20,
    "unclean": 15,
    "questions": 15,
    "retention": 12,
    "directories": 12,
    "late_words": 30,
    "amnesia": 20,
}
#: More of them, behind those.
MORE = int(os.environ.get("OTTLA_SIM_SEEDS", "0"))
CASES = [
    pytest.param(name, seed, id=f"{name}-{seed}") for name in STORIES for seed in range(SEEDS[name] + MORE)
]


@pytest.mark.parametrize(("story", "seed"), CASES)
def test_story(story, seed):
    tell(story, seed)


@pytest.mark.parametrize(
    "shape", [(3, 3), (5, 3), (4, 1)], ids=lambda shape: f"{shape[0]}-brokers-{shape[1]}-controllers"
)
def test_controllers_of_their_own(shape):
    brokers, controllers = shape
    world = World(1, brokers=brokers, controllers=controllers)
    with world:
        world.run(STORIES["everything"])
    assert not world.checked()


def test_the_same_seed_gives_the_same_trace():
    first, second, other = tell("everything", 4), tell("everything", 4), tell("everything", 5)
    assert first.simulation.trace == second.simulation.trace
    assert first.history.sends == second.history.sends
    assert first.history.polls == second.history.polls
    assert first.simulation.trace != other.simulation.trace


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.plant.__name__)
def test_a_planted_bug_is_found(mutant: Mutant):
    for seed in mutant.seeds:
        try:
            with mutant.plant():
                tell(mutant.story, seed)
        except Exception:  # noqa: BLE001 (whatever breaks by it)
            return
    pytest.fail(f"not found by {mutant.story} within the seeds {mutant.seeds}")
