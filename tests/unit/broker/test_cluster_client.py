"""Requests to a cluster for commands and tests: what is repeated, and an absent offset beside an unreported one."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from ottla.broker.cluster_client.client import ClusterClient, Waits, addresses_of
from ottla.broker.cluster_client.errors import (
    BrokerUnreachable,
    ClusterError,
    NoBrokerAnswers,
    Transient,
    Unknown,
    check,
)
from ottla.broker.cluster_client.groups import committed_offsets, coordinator_of, delete_group, listed_groups
from ottla.broker.network.client import ClientSettings
from ottla.protocol.errors import ErrorCode
from ottla.protocol.special_timestamps import LATEST
from ottla.protocol.types import TopicPartition
from ottla.runtime.production import run
from ottla.testing import Broker
from tests.compat.commands import Commands

T = TypeVar("T")
IN_2100_MS = 4_102_444_800_000
NAME = TopicPartition("t", 0)


@pytest.fixture(scope="module")
def broker():
    with Broker() as broker:
        broker.produce("t", "a", "b")
        yield broker


def ask(broker: Broker, question: Callable[[ClusterClient], Awaitable[T]], **waits: float) -> T:
    return ask_at(broker.bootstrap_servers, question, **waits)


def ask_at(servers: str, question: Callable[[ClusterClient], Awaitable[T]], **waits: float) -> T:
    async def main(runtime):
        client = ClusterClient(
            runtime,
            lambda: addresses_of(servers),
            client_id="reader",
            waits=Waits(pause_s=0.001, **waits),
            settings=ClientSettings(reconnect_backoff_ms=1, reconnect_backoff_max_ms=2),
        )
        try:
            return await question(client)
        finally:
            await client.close()

    return run(main)


def test_an_offset_that_is_absent_is_no_error_and_an_error_is_no_absent_offset(broker):
    async def offsets(client):
        leaders = {NAME: (await client.topic("t")).leader_of(0)}
        return await client.offsets(leaders, IN_2100_MS)

    assert ask(broker, offsets).checked() == {NAME: None}
    with broker.inject_error("LIST_OFFSETS", "NOT_LEADER_OR_FOLLOWER", client="reader").once():
        found = ask(broker, offsets)
    assert found.reported() == {NAME: None}
    with pytest.raises(Transient, match=r"t-0: NOT_LEADER_OR_FOLLOWER\."):
        found.checked()


def test_a_leader_that_does_not_answer_leaves_the_offsets_of_others(broker):
    async def offsets(client):
        leaders = {NAME: (await client.topic("t")).leader_of(0)}
        return await client.offsets(leaders, LATEST)

    with broker.disconnect_on("LIST_OFFSETS", client="reader").once():
        found = ask(broker, offsets)
    assert found.found == {}
    with pytest.raises(BrokerUnreachable):
        found.reported()


@pytest.mark.parametrize("api", ["METADATA", "LIST_OFFSETS"])
def test_a_request_is_repeated_while_its_error_may_end(broker, api):
    with broker.disconnect_on(api, client="reader").times(2) as fault:
        found = ask(
            broker,
            lambda client: client.patiently(lambda: client.offsets_now([NAME], LATEST)),
            no_broker_s=10,
        )
    assert (found, fault.struck) == ({NAME: 2}, 2)


def test_a_command_knows_at_once_that_no_broker_answers():
    with pytest.raises(NoBrokerAnswers, match=r"No broker answers at 127\.0\.0\.1:1: 127\.0\.0\.1:1: "):
        ask_at("127.0.0.1:1", lambda client: client.patiently(client.metadata))
    with pytest.raises(ClusterError, match=r"\(waited 0\.01 s\)"):
        ask_at("127.0.0.1:1", lambda client: client.patiently(client.metadata, timeout_s=0.01))


def test_a_topic_that_does_not_exist_is_waited_for_briefly(broker):
    with pytest.raises(ClusterError, match=r"topic u: UNKNOWN_TOPIC_OR_PARTITION\. \(waited 0\.01 s\)"):
        ask(broker, lambda client: client.patiently(lambda: client.topic("u")), unknown_s=0.01)


def test_a_group_that_does_not_exist_has_no_offsets_and_is_deleted(broker):
    async def question(client):
        coordinator = await client.patiently(lambda: coordinator_of(client, "none"))
        return (
            await committed_offsets(client, coordinator, "none"),
            await delete_group(client, "none"),
            await listed_groups(client),
        )

    assert ask(broker, question) == ({}, True, {})


def test_a_command_goes_on_after_a_broken_connection(broker):
    ottla = Commands(broker.bootstrap_servers)
    with broker.disconnect_on("LIST_GROUPS", client="ottla-cli").once() as fault:
        assert ottla.rows("groups", "list") == []
    assert fault.struck == 1


@pytest.mark.parametrize(("code", "kind", "sentence"), [
    (ErrorCode.not_coordinator,            Transient,    "x: NOT_COORDINATOR."),
    (ErrorCode.unknown_topic_or_partition, Unknown,      "x: UNKNOWN_TOPIC_OR_PARTITION."),
    (ErrorCode.topic_authorization_failed, ClusterError, "x: TOPIC_AUTHORIZATION_FAILED."),
])  # fmt: skip
def test_errors_of_responses(code, kind, sentence):
    with pytest.raises(kind) as raised:
        check(code, "x")
    assert (type(raised.value), str(raised.value)) == (kind, sentence)
