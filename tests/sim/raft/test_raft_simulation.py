"""The metadata quorum in virtual time: Kafka's RaftEventSimulationTest, and more, over a fixed set of seeds.

`make sim SEEDS=...` runs every story with so many more seeds. Repeat a seed that fails, with its trace, by
`raft_stories.run_story(name, seed, is_traced=True)`. What must hold is in `raft_judge`.
"""

import logging
import os
import re

import pytest
from raft_mutants import MUTANTS, Mutant
from raft_stories import STORIES, run_story

#: A core for itself needs a few seconds for the longest; machines are not always idle.
pytestmark = pytest.mark.timeout(300)

#: Seeds of the checks, by story; each is a cluster of another size, kraft.version and weather. docs/SIMULATION.md has
#: what was run by hand. A second of a core is some four stories, or one of those that cost more.
SEEDS = {
    "can_elect_initial_leader": 15,
    "votes_are_kept": 20,
    "leaders_die_young": 15,
    "isolated_voter_does_not_disturb": 10,
    "cut_off_leader_cannot_shrink_the_quorum": 8,
    "survives_anything": 12,
    "voters_change_under_faults": 5,
}
#: Of Kafka's own properties, which are tried 100 times each there.
USUAL_SEEDS = 10
#: More of them, behind those.
MORE = int(os.environ.get("OTTLA_SIM_SEEDS", "0"))
CASES = [
    pytest.param(name, seed, id=f"{name}-{seed}")
    for name in STORIES
    for seed in range(SEEDS.get(name, USUAL_SEEDS) + MORE)
]


@pytest.fixture(autouse=True)
def quiet():
    """Nodes complain of each other all the time here; thousands of lines would be captured."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("story", "seed"), CASES)
def test_story(story, seed):
    run_story(story, seed)


@pytest.mark.parametrize("story", ["can_recover_after_all_nodes_killed", "survives_anything"])
def test_the_same_seed_gives_the_same_trace(story):
    first, second, other = run_story(story, 4), run_story(story, 4), run_story(story, 5)
    assert first.events.digest == second.events.digest
    assert first.events.count == second.events.count
    assert first.events.digest != other.events.digest


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.plant.__name__)
def test_a_planted_bug_is_found(mutant: Mutant):
    others = []
    for seed in mutant.seeds:
        try:
            with mutant.plant():
                run_story(mutant.story, seed)
        except Exception as error:  # noqa: BLE001 (compared by name and text)
            found_by = f"{type(error).__name__}: {error}"
            if re.search(mutant.sign, found_by):
                return
            others.append(f"seed {seed}: {found_by}")
    pytest.fail(f"no {mutant.sign!r} by {mutant.story} within the seeds {mutant.seeds}; but {others}")
