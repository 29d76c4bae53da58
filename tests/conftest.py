"""What holds for every test."""

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from runtime.stalls import BOUND_VARIABLE

# A busy machine is no bug: how long an example takes, or its making, says nothing here.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# As a simulation's seeds: a failure is due to a change, and not to a new example.
settings.register_profile("ottla", settings.get_profile("explore"), derandomize=True)
settings.load_profile("ottla")


def pytest_collection_finish() -> None:
    """Garbage collections need not look at what has been imported and collected: it stays."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_turn_of_an_event_loop_takes_too_long() -> Iterator[None]:
    """With OTTLA_LOOP_STALL_MS set: no broker, of this process or a child's, blocks its loop for longer."""
    if BOUND_VARIABLE not in os.environ:
        yield
        return
    from tests.harness import stalls

    with stalls.collected() as found:
        yield
    assert not found, f"{len(found)} turns took too long:\n" + "\n".join(found)
