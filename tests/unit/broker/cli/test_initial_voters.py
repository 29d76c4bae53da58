"""The voters of a quorum that a container formats its new folder for."""

import pytest

from ottla.broker.cli.container import initial_voters
from ottla.config.broker_config import BrokerConfig
from ottla.protocol.errors import InvalidConfig


def controller(servers, **others):
    return BrokerConfig({
        "process.roles": "controller", "node.id": "7", "controller.listener.names": "CONTROLLER",
        "listeners": "CONTROLLER://:9093", "controller.quorum.bootstrap.servers": servers, **others,
    })  # fmt: skip


@pytest.mark.parametrize(("servers", "initial", "voters"), [
    ("box:9093",        None,                            ["7@box:9093"]),
    ("a:9093,b:9093",   "7@a:9093:JEXY6aqzQY-32P5TStzaFg,8@b:9093:MvDxzVmcRsaTz33bUuRU6A",
                                                         ["7@a:9093", "8@b:9093"]),
])  # fmt: skip
def test_voters(servers, initial, voters):
    found = initial_voters(controller(servers), initial)
    assert [str(each).rpartition(":")[0] for each in found] == voters


def test_a_controller_that_joins_a_quorum_has_none():
    joins = {"controller.quorum.auto.join.enable": "true"}
    assert initial_voters(controller("a:9093,b:9093", **joins), None) == ()


@pytest.mark.parametrize("servers", ["a:9093,b:9093", "a:9999"])
def test_one_of_several_controllers_does_not_begin_a_quorum_of_its_own(servers):
    with pytest.raises(InvalidConfig, match="nothing names the voters"):
        initial_voters(controller(servers), None)
