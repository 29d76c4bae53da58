import pytest

from ottla.runtime.simulated import Simulation


@pytest.fixture
def simulation():
    with Simulation(seed=1) as simulation:
        yield simulation
