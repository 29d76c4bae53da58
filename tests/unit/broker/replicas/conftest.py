import pytest
from replicas_support import BrokerInFolder
from tiered_support import TIERED, TieredBroker


@pytest.fixture
def broker(simulation, tmp_path):
    return BrokerInFolder(tmp_path / "data", simulation.runtime("broker"))


@pytest.fixture
def tiered(simulation, tmp_path):
    broker = TieredBroker(tmp_path, simulation.runtime("broker"))
    simulation.run(broker.cache.start())
    broker.create(partitions=3, config=TIERED)
    yield broker
    broker.reads.close()
    broker.cache.close()
