"""A broker's registration, by what the controller answers."""

from uuid import UUID

import pytest

from broker.config import BrokerConfig
from broker.lifecycle import BrokerLifecycle, RegistrationRefused
from broker.runtime.simulated import Simulation
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.broker_heartbeat import BrokerHeartbeatResponse
from protocol.messages.broker_registration import BrokerRegistrationResponse
from protocol.metadata.features import claimed_features

CONFIG = {
    "process.roles": "broker",
    "node.id": "1",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
    "log.dirs": "/data",
}


class Controller:
    """Of a cluster with a finalized feature; refuses brokers that do not claim it, as Kafka's does."""

    async def request(self, api_key, message, context=None):
        if api_key == ApiKey.BROKER_HEARTBEAT:
            return BrokerHeartbeatResponse(is_caught_up=True, is_fenced=True)
        claimed = {each.name: each.max_supported_version for each in message.features}
        if claimed["transaction.version"] < 2:
            return BrokerRegistrationResponse(error_code=ErrorCode.unsupported_version)
        return BrokerRegistrationResponse(broker_epoch=7)


def register(*, known_after_s):
    """Register a broker that reads of the feature after a while; its epoch, and the seconds that it took."""
    with Simulation(seed=1) as simulation:
        runtime = simulation.runtime("broker")
        finalized = {}

        async def main():
            lifecycle = BrokerLifecycle(
                runtime=runtime,
                config=BrokerConfig(CONFIG),
                controller=Controller(),
                applied_offset=lambda: 0,
                offline_log_dirs=lambda: (),
                features=lambda: claimed_features(finalized),
            )
            runtime.call_later(known_after_s, lambda: finalized.update({"transaction.version": 2}))
            began = runtime.monotonic()
            try:
                await lifecycle.register(
                    cluster_id="c", listeners=(), log_dirs=[UUID(int=1)], previous_broker_epoch=None
                )
            finally:
                await lifecycle.give_up()
            return lifecycle.broker_epoch, runtime.monotonic() - began

        return simulation.run(main())


def test_features_that_are_not_known_yet_are_claimed_when_they_are():
    epoch, took_s = register(known_after_s=3)
    assert epoch == 7
    assert 3 <= took_s < 4


def test_a_cluster_with_features_that_are_not_understood_is_left_soon():
    with pytest.raises(RegistrationRefused, match="finalized features that this software does not serve"):
        register(known_after_s=12)
