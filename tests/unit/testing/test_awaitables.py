"""`broker.aio`: every method that waits is there with its signature, and the caller's loop goes on meanwhile."""

import asyncio
import inspect

import pytest

from ottla.testing import Broker, Cluster, ClusterMethods, Existing
from ottla.testing.broker import BrokerAwaitables
from ottla.testing.cluster import ClusterAwaitables
from ottla.testing.cluster_methods import Awaitables
from ottla.testing.cluster_node import ClusterNode
from ottla.testing.controlled_node import NodeAwaitables

#: Methods that wait for nothing, and those that are not for tests.
PLAIN = {
    "get_bootstrap_server", "config", "consumer_config", "kafka_python_config", "aiokafka_config",
    "records_since", "present_faults", "end_faults", "close_operations", "let_go_on", "heal_stores",
}  # fmt: skip
OF_CLUSTERS = {"broker", "on_lost", "on_started"}
OF_NODES = {"plan", "die", "expire_session", "regards_as_fenced", "reset_faults"}


def methods_of(kind):
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("kind", "aio", "others"),
    [
        (ClusterMethods, Awaitables, set()),
        (Broker, BrokerAwaitables, set()),
        (Cluster, ClusterAwaitables, OF_CLUSTERS),
        (ClusterNode, NodeAwaitables, OF_NODES),
    ],
)
def test_every_method_that_waits_is_there(kind, aio, others):
    mirrored = {name for name in dir(aio) if not name.startswith("_")} - {"methods", "cluster"}
    assert mirrored == methods_of(kind) - PLAIN - others


async def test_signatures_are_those_of_the_methods():
    broker = Broker()
    for name in ("produce", "wait_for_records", "advance", "inject_error"):
        found = getattr(broker.aio, name)
        assert inspect.iscoroutinefunction(found)
        assert inspect.signature(found) == inspect.signature(getattr(broker, name))
        assert found.__doc__ == getattr(broker, name).__doc__
    with pytest.raises(AttributeError, match="config waits for nothing, and is not in aio"):
        broker.aio.config()
    with pytest.raises(AttributeError, match="has no attribute 'vlaues'"):
        broker.aio.vlaues("t")
    with pytest.raises(AttributeError, match=r"kill: the cluster at 127\.0\.0\.1:9 is not this test's own"):
        Existing("127.0.0.1:9").aio.kill()


async def test_a_recording_leaves_the_loop_free():
    async with Broker() as broker:
        turns = 0

        async def count():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.001)

        async def send_later():
            await asyncio.sleep(0.05)
            await broker.aio.produce("t", "x", "y")

        counting, sending = asyncio.create_task(count()), asyncio.create_task(send_later())
        async with broker.aio.recording("t", ["y", "x"]) as arrived:
            before = turns
        assert turns > before + 10  # while the end waited for the records
        assert [each.value for each in arrived] == [b"x", b"y"]
        await sending
        with pytest.raises(AssertionError, match="have arrived instead of"):
            async with broker.aio.recording("t", ["z"]):
                await broker.aio.produce("t", "x")
        counting.cancel()
