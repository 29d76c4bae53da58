import pytest
from network_support import Client, Handler

from ottla.broker.network import NetworkServer, NetworkSettings
from ottla.runtime.simulated import Simulation


class World:
    """A simulated server and its clients."""

    def __init__(self, simulation):
        self.simulation = simulation
        self.runtime = simulation.runtime("server")
        self.handler = Handler(self.runtime)
        self.settings = NetworkSettings()
        self.server = NetworkServer(self.runtime, self.handler, self.settings)
        self.port = None

    async def connect(self, host="client", factory=Client):
        if self.port is None:
            self.port = (await self.server.listen("PLAINTEXT", "server", 0)).port
        _, client = await self.simulation.runtime(host).connect("server", self.port, factory)
        return client

    def run(self, scenario):
        return self.simulation.run(scenario)


@pytest.fixture
def world():
    with Simulation(seed=5) as simulation:
        yield World(simulation)
