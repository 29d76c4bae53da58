import pytest
from replicas_support import BrokerInFolder

from runtime.simulated import Simulation


@pytest.fixture
def simulation():
    with Simulation(seed=1) as simulation:
        yield simulation


@pytest.fixture
def broker(simulation, tmp_path):
    return BrokerInFolder(tmp_path / "data", simulation.runtime("broker"))
