"""Thousands of crashes: random work on a faulty disk, power cuts, recovery. `OTTLA_CRASH_SEEDS=5000` for more of them.

One of the logs is tiered (KIP-405).
"""

import errno
import os

import pytest

from ottla.stories.partition.faulty_files import Killed, Loss
from tests.unit.storage.crash_support import Story

pytestmark = pytest.mark.logs("")  # whatever a crash leaves

SEEDS = int(os.environ.get("OTTLA_CRASH_SEEDS", "8"))
FIRST_SEED = int(os.environ.get("OTTLA_CRASH_FIRST_SEED", "0"))


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_power_cut(seed):
    story = Story(seed)
    for _ in range(3):
        if story.random.random() < 0.5:
            story.files.fail(None, nth=story.random.randint(1, 500), errno=None)
        story.work(story.random.choice([20, 60, 150]))
        crash(story)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS // 2))
def test_failing_disk(seed):
    """A directory whose disk is full or bad goes offline, the other one serves; what was flushed survives."""
    story = Story(seed)
    for _ in range(2):
        story.files.fail(
            story.random.choice([None, "write", "fsync", "rename", "truncate", "create"]),
            nth=story.random.randint(1, 150),
            errno=story.random.choice([errno.ENOSPC, errno.EIO]),
            under=story.random.choice(story.directories),
            is_lasting=story.random.random() < 0.5,
        )
        story.work(story.random.choice([60, 150]))
        crash(story)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS // 2))
def test_recovery_that_fails(seed):
    """Killed or failing while it recovers; the next recovery ends well."""
    story = Story(seed)
    story.work(story.random.choice([60, 150]))
    loss = story.random_loss()
    story.files = story.files_after(loss)
    kind = story.random.choice([None, errno.EIO, errno.ENOSPC])
    operation = None if kind is None else story.random.choice([None, "read", "write", "rename"])
    story.files.fail(operation, nth=story.random.randint(1, 60), errno=kind, under=story.directories[-1])
    try:
        manager = story.open()
    except Killed:
        pass
    except OSError:  # the only directory
        assert len(story.directories) == 1
    else:
        assert set(manager.offline_dirs) <= {story.directories[-1]}
    story.files = story.files_after(Loss.NOTHING)
    story.restart(loss=loss)


def crash(story):
    loss = story.random_loss()
    story.history.append(f"crash: {loss.name}")
    story.files = story.files_after(loss)
    story.restart(loss=loss)
