"""A broker's registration, by what the controller answers."""

import asyncio
from uuid import UUID

import pytest

from ottla.broker.membership.lifecycle import BrokerLifecycle, RegistrationRefused
from ottla.config.broker_config import BrokerConfig
from ottla.metadata.features import claimed_features
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, RequestTimedOut
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatResponse
from ottla.protocol.messages.broker_registration import BrokerRegistrationResponse
from ottla.runtime.simulated import Simulation

CONFIG = {
    "process.roles": "broker",
    "node.id": "1",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
    "log.dirs": "/data",
}


class Controller:
    """The controller of a cluster with a finalized feature; it refuses brokers that do not support it, as
    Kafka's does."""

    async def request(self, api_key, message, context=None):
        if api_key == ApiKey.BROKER_HEARTBEAT:
            return BrokerHeartbeatResponse(is_caught_up=True, is_fenced=True)
        claimed = {each.name: each.max_supported_version for each in message.features}
        if claimed["transaction.version"] < 2:
            return BrokerRegistrationResponse(error_code=ErrorCode.unsupported_version)
        return BrokerRegistrationResponse(broker_epoch=7)


def of(runtime, controller, *, config=None, **what):
    """The lifecycle of a broker under this controller."""
    return BrokerLifecycle(
        runtime=runtime,
        config=BrokerConfig(CONFIG | (config or {})),
        controller=controller,
        applied_offset=lambda: 0,
        **{"offline_log_dirs": lambda: (), "features": dict} | what,
    )


def register(*, known_after_s):
    """Register a broker that reads of the feature after a while; its epoch, and the seconds that it took."""
    with Simulation(seed=1) as simulation:
        runtime = simulation.runtime("broker")
        finalized = {}

        async def main():
            lifecycle = of(runtime, Controller(), features=lambda: claimed_features(finalized))
            runtime.call_later(known_after_s, lambda: finalized.update({"transaction.version": 2}))
            began = runtime.monotonic()
            try:
                await lifecycle.register(
                    cluster_id="c", listeners=(), log_dirs=[UUID(int=1)], previous_broker_epoch=None
                )
            finally:
                await lifecycle.stop()
            return lifecycle.broker_epoch, runtime.monotonic() - began

        return simulation.run(main())


def test_features_that_are_not_known_yet_are_claimed_when_they_are():
    epoch, took_s = register(known_after_s=3)
    assert epoch == 7
    assert 3 <= took_s < 4


def test_a_cluster_with_features_that_are_not_understood_is_left_soon():
    with pytest.raises(RegistrationRefused, match="finalized features that this software does not serve"):
        register(known_after_s=12)


class Silent(Controller):
    """Registers, and then answers heartbeats only while it is asked to."""

    def __init__(self):
        self.answers = True
        self.reported = []

    async def request(self, api_key, message, context=None):
        if api_key == ApiKey.BROKER_HEARTBEAT:
            if not self.answers:
                raise RequestTimedOut("no answer")
            self.reported.append(list(message.offline_log_dirs))
            return BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False)
        return BrokerRegistrationResponse(broker_epoch=7)


def lose_a_directory(*, silent_for_s):
    """A directory fails while no controller answers for `silent_for_s`: return the end of the broker,
    [(seconds lived, reason)] or [], and the directories that it reported.
    """
    with Simulation(seed=1) as simulation:
        runtime = simulation.runtime("broker")
        controller, offline, lost, ended = Silent(), [], UUID(int=1000), []

        async def main():
            config = {"log.dir.failure.timeout.ms": "10000"}
            lifecycle = of(runtime, controller, config=config, offline_log_dirs=lambda: offline)
            await lifecycle.register(
                cluster_id="c", listeners=(), log_dirs=[lost], previous_broker_epoch=None
            )
            await lifecycle.serve()
            began = runtime.monotonic()
            lifecycle.on_failure = lambda why: ended.append((runtime.monotonic() - began, why))
            controller.answers = False
            runtime.call_later(silent_for_s, lambda: setattr(controller, "answers", True))
            offline.append(lost)
            lifecycle.send_heartbeat_soon()
            await asyncio.sleep(60)
            await lifecycle.stop()

        simulation.run(main())
        return ended, controller.reported[-1]


# KIP-858
@pytest.mark.logs("a heartbeat to the controller failed")
def test_a_broker_that_cannot_report_a_lost_directory_ends():
    ended, _ = lose_a_directory(silent_for_s=3600)
    lived_s, why = ended[0]
    assert 10 <= lived_s <= 12.5  # found out by the next heartbeat
    assert "could not be reported to a controller for 10 s (log.dir.failure.timeout.ms)" in why


@pytest.mark.logs("a heartbeat to the controller failed")
def test_a_broker_that_reports_a_lost_directory_late_keeps_running():
    ended, reported = lose_a_directory(silent_for_s=8)
    assert ended == []
    assert reported == [UUID(int=1000)]


@pytest.mark.logs("a heartbeat to the controller failed")
def test_a_broker_without_a_controller_may_be_replaced_after_a_session():
    with Simulation(seed=1) as simulation:
        runtime = simulation.runtime("broker")
        controller = Silent()

        async def main():
            lifecycle = of(runtime, controller, config={"broker.session.timeout.ms": "9000"})
            seen = [lifecycle.may_be_deposed]  # not registered yet
            await lifecycle.register(
                cluster_id="c", listeners=(), log_dirs=[UUID(int=1)], previous_broker_epoch=None
            )
            await lifecycle.serve()
            for pause_s, answers in ((30, False), (6, False), (3, True), (3, True)):
                await asyncio.sleep(pause_s)
                seen.append(lifecycle.may_be_deposed)
                controller.answers = answers
            await lifecycle.stop()
            return seen

        assert simulation.run(main()) == [True, False, False, True, False]


class Taken(Controller):
    """Another process has the broker's id, for so long."""

    def __init__(self, runtime, *, for_s):
        self.runtime = runtime
        self.for_s = for_s

    async def request(self, api_key, message, context=None):
        if api_key == ApiKey.BROKER_REGISTRATION and self.runtime.monotonic() < self.for_s:
            return BrokerRegistrationResponse(error_code=ErrorCode.duplicate_broker_registration)
        return BrokerRegistrationResponse(broker_epoch=7)


async def register_at(runtime, controller):
    lifecycle = of(runtime, controller)
    try:
        await lifecycle.register(
            cluster_id="c", listeners=(), log_dirs=[UUID(int=1)], previous_broker_epoch=None
        )
    finally:
        await lifecycle.stop()


@pytest.mark.parametrize("for_s", [9, 3600])
def test_an_id_that_is_taken_is_waited_for_and_logged_now_and_then(caplog, for_s):
    caplog.set_level("INFO")
    with Simulation(seed=1) as simulation:
        runtime = simulation.runtime("broker")
        registering = register_at(runtime, Taken(runtime, for_s=for_s))
        if for_s < 60:
            simulation.run(registering)
        else:
            with pytest.raises(
                RegistrationRefused, match=r"after 60 s .* broker 1\. Another node with this node.id"
            ):
                simulation.run(registering)
    lines = [record.getMessage() for record in caplog.records if "DUPLICATE_BROKER" in record.getMessage()]
    assert len(lines) == (1 if for_s == 9 else 6)
    assert "a process with the same node.id has a session" in lines[0]


def test_why_no_controller_was_reached_is_what_the_broker_gives_up_with():
    class Unreachable:
        async def request(self, api_key, message, context=None):
            raise RequestTimedOut(
                "No controller has responded within 2 s: 10.0.0.1:9093: connection refused."
            )

    with Simulation(seed=1) as simulation:
        runtime = simulation.runtime("broker")
        with pytest.raises(
            RegistrationRefused, match=r"broker 1\. .*10\.0\.0\.1:9093: connection refused\.$"
        ):
            simulation.run(register_at(runtime, Unreachable()))


def test_a_broker_that_lacks_a_log_is_registered_again_as_incomplete():
    """A new incarnation without a previous epoch, once the session of the first one has ended."""
    requests = []

    class Sessions(Controller):
        async def request(self, api_key, message, context=None):
            if api_key == ApiKey.BROKER_HEARTBEAT:
                requests.append(message.broker_epoch)
                return BrokerHeartbeatResponse(is_caught_up=True, is_fenced=True)
            requests.append((message.incarnation_id, message.previous_broker_epoch))
            if len([each for each in requests if isinstance(each, tuple)]) in (2, 3):
                return BrokerRegistrationResponse(error_code=ErrorCode.duplicate_broker_registration)
            return BrokerRegistrationResponse(broker_epoch=len(requests))

    async def main():
        lifecycle = of(runtime, Sessions())
        await lifecycle.register(
            cluster_id="c", listeners=(), log_dirs=[UUID(int=1)], previous_broker_epoch=5
        )
        await lifecycle.caught_up()
        first = lifecycle.broker_epoch
        requests.append("again")
        await lifecycle.register_as_incomplete()
        assert lifecycle.broker_epoch > first
        await lifecycle.caught_up()
        await lifecycle.stop()
        return first

    with Simulation(seed=1) as simulation:
        runtime = simulation.runtime("broker")
        first = simulation.run(main())
    before, after = requests[: requests.index("again")], requests[requests.index("again") + 1 :]
    (incarnation, epoch), *beats = before
    assert epoch == 5
    assert set(beats) == {first}
    assert set(after[:3]) == {(after[0][0], -1)}
    assert after[0][0] != incarnation
    assert after[3:]  # heartbeats of the new epoch only
    assert first not in after
