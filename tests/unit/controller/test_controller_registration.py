"""A controller registers once it may, again until it succeeds, and only with listeners (KIP-919)."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from ottla.controller.membership.controller_registration import ControllerRegistration
from ottla.controller.raft.types import OffsetAndEpoch
from ottla.controller.settings import ControllerSettings
from ottla.metadata import records as r
from ottla.metadata.image import Endpoint
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, NotController
from ottla.protocol.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from ottla.stories.elections.machine import CLUSTER_ID

ME = UUID(int=42)
LISTENERS = {"CONTROLLER": Endpoint("127.0.0.1", 9093, 0)}


class Channel:
    """Keeps what is asked; answers with what the test says."""

    def __init__(self) -> None:
        self.asked: list[ControllerRegistrationRequest] = []
        self.answers: list[Any] = []
        self.timers: list[tuple[float, Callable[[], object]]] = []

    async def request(self, api_key: int, message: Any) -> Any:
        assert api_key == ApiKey.CONTROLLER_REGISTRATION
        self.asked.append(message)
        answer = self.answers.pop(0) if self.answers else ControllerRegistrationResponse(error_message=None)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def create_task(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(coroutine, name=name)

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        self.timers.append((delay_s, callback))
        return asyncio.get_running_loop().call_later(10**6, lambda: None)

    def registration(self, listeners: dict[str, Endpoint] = LISTENERS) -> ControllerRegistration:
        settings = ControllerSettings(cluster_id=CLUSTER_ID, node_id=1, listeners=listeners)
        return ControllerRegistration(
            settings=settings, incarnation_id=ME, request=self.request, runtime=self
        )


@pytest.fixture
def channel() -> Channel:
    return Channel()


def level(number: int) -> r.FeatureLevelRecord:
    return r.FeatureLevelRecord(name="metadata.version", feature_level=number)


def registered(controller_id: int, incarnation: UUID) -> r.RegisterControllerRecord:
    return r.RegisterControllerRecord(controller_id=controller_id, incarnation_id=incarnation)


async def reported(registration: ControllerRegistration, *records: r.MetadataRecord) -> None:
    registration.on_commit(records, 0, len(records))
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_once_the_metadata_version_allows_it(channel: Channel):
    registration = channel.registration()
    await reported(registration, level(14))
    assert not channel.asked
    await reported(registration, level(15))
    (asked,) = channel.asked
    assert (asked.controller_id, asked.incarnation_id) == (1, ME)
    (listener,) = asked.listeners
    assert (listener.name, listener.host, listener.port) == ("CONTROLLER", "127.0.0.1", 9093)
    assert "metadata.version" in {feature.name for feature in asked.features}
    await reported(registration, r.NoOpRecord())  # the answer is here, the record is not yet
    await reported(registration, registered(2, UUID(int=1)), registered(1, ME))
    await reported(registration, level(30))
    assert len(channel.asked) == 1
    await registration.stop()


async def test_one_that_runs_registers_again_when_its_registration_is_removed(channel: Channel):
    registration = channel.registration()
    await reported(registration, level(33), registered(1, ME))
    await reported(registration, r.UnregisterControllerRecord(controller_id=2))
    assert not channel.asked
    await reported(registration, r.UnregisterControllerRecord(controller_id=1))
    assert len(channel.asked) == 1
    await registration.stop()


async def test_two_with_one_id_do_not_chase_each_other(channel: Channel, caplog: pytest.LogCaptureFixture):
    registration = channel.registration()
    await reported(registration, level(30), registered(1, ME))
    for count, delay_s in enumerate((0.1, 0.2, 0.4), start=1):
        await reported(registration, registered(1, UUID(int=43)))
        assert [channel.timers[-1][0], len(channel.asked)] == [delay_s, count - 1]
        channel.timers[-1][1]()
        await reported(registration, registered(1, ME))
        assert len(channel.asked) == count
    assert "another process has registered as controller 1" in caplog.text
    await registration.stop()


async def test_a_registration_that_fails_as_none_should_is_tried_again(
    channel: Channel, caplog: pytest.LogCaptureFixture
):
    registration = channel.registration()
    channel.answers = [ZeroDivisionError()]
    await reported(registration, level(30))
    assert "could not register" in caplog.text
    channel.timers[-1][1]()
    await reported(registration)
    assert len(channel.asked) == 2
    await registration.stop()


async def test_again_until_it_succeeds(channel: Channel):
    registration = channel.registration()
    refused = ControllerRegistrationResponse(error_code=ErrorCode.unknown_server_error, error_message=None)
    channel.answers = [NotController(), refused, ConnectionRefusedError(), TimeoutError()]
    await reported(registration, level(30))
    for count, delay_s in enumerate((0.1, 0.2, 0.4, 0.8), start=1):
        assert len(channel.asked) == len(channel.timers) == count
        assert channel.timers[-1][0] == delay_s
        await reported(registration, level(30))  # waits its time all the same
        channel.timers[-1][1]()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(channel.asked) == 5
    assert len(channel.timers) == 4
    await registration.stop()


async def test_a_snapshot_says_it_too(channel: Channel):
    registration = channel.registration()
    registration.on_snapshot([[level(30)], [registered(1, ME)]], OffsetAndEpoch(9, 1))
    await asyncio.sleep(0)
    assert not channel.asked
    registration.on_snapshot([[level(30)]], OffsetAndEpoch(19, 1))
    await asyncio.sleep(0)
    assert len(channel.asked) == 1
    await registration.stop()


async def test_no_registration_without_listeners_or_after_the_end(channel: Channel):
    await reported(channel.registration({}), level(30))
    registration = channel.registration()
    channel.answers = [NotController()]
    await reported(registration, level(30))
    await registration.stop()
    channel.timers[-1][1]()
    await asyncio.sleep(0)
    assert len(channel.asked) == 1
