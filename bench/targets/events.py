"""Carries out the events of a phase (`workloads.model.Event`), and times the recovery of the cluster from them.

Brokers are killed, wiped and started, and stores slowed down, only where the bench has started them: `fit.py`
refuses other events before any load.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import assert_never

from ottla.bench.components.processes import StartFailed
from ottla.bench.targets.cluster_client import ClusterClient
from ottla.bench.targets.clusters import wipe
from ottla.bench.targets.conditions import wait_for
from ottla.bench.targets.target import Nodes, Target, TargetError
from ottla.bench.targets.wire import RequestFailed
from ottla.bench.workloads.model import Action, Event


def carry_out(
    event: Event, target: Target, topics: Mapping[str, str], *, is_over: Callable[[], bool] = lambda: False
) -> float | None:
    """Carry out the event; return the seconds from its beginning until its condition holds.

    `topics` has the name in the cluster of each name in the workload. None without a condition, or if
    `is_over` holds before. A broker that is stopped hands over its partitions first, and ends a while later:
    that is waited for, and does not count. Raises TargetError.
    """
    took_s = None
    began = time.perf_counter()
    with ThreadPoolExecutor(1, thread_name_prefix="bench-event") as beside:
        try:
            ending = _act(event, target, topics, beside)
            if event.until is not None:
                assert event.topic is not None, f"{event.name}: whose {event.until.value}?"
                if wait_for(event.until, target, topics[event.topic], is_over=is_over):
                    took_s = time.perf_counter() - began
            if ending is not None:
                ending.result()
        except (OSError, RequestFailed, StartFailed) as error:
            raise TargetError(f"{target.name}: the event {event.name!r} failed: {error}") from error
    return took_s


def _act(event: Event, target: Target, topics: Mapping[str, str], beside: Executor) -> Future[None] | None:
    """Begin the action of the event; return the part of it that goes on meanwhile, if any."""
    match event.action:
        case Action.KILL:
            broker = _broker(event, target, topics)
            target.down.add(broker)
            _nodes(target).kill_node(broker)
        case Action.STOP:
            broker = _broker(event, target, topics)
            target.down.add(broker)
            return beside.submit(_nodes(target).stop_node, broker)
        case Action.WIPE:
            wipe(_nodes(target).data_dir(_broker_that_is_down(event, target)))
        case Action.START:
            broker = _broker_that_is_down(event, target)
            _nodes(target).start_node(broker)
            target.down.discard(broker)
        case Action.SLOW_STORE:
            assert target.store is not None
            target.store.slow_down(delay_s=event.delay_s, bytes_per_s=event.bytes_per_s)
        case Action.ELECT_PREFERRED:
            assert event.topic is not None
            with ClusterClient(target.addresses()) as client:
                client.elect_preferred(topics[event.topic])
        case Action.ALTER_TOPIC:
            assert event.topic is not None
            with ClusterClient(target.addresses()) as client:
                client.alter_topic(topics[event.topic], event.configs)
        case Action.WAIT:
            pass
        case _:
            assert_never(event.action)
    return None


def _nodes(target: Target) -> Nodes:
    assert target.nodes is not None, f"{target.name} was not started by the bench"
    return target.nodes


def _broker(event: Event, target: Target, topics: Mapping[str, str]) -> int:
    """Return the broker that is to go down. Raises TargetError if it is down, or there is no leader."""
    if event.broker is not None:
        broker = event.broker
    else:
        assert event.leader_of is not None
        with ClusterClient(target.addresses()) as client:
            broker = client.leader(topics[event.leader_of])
    if broker not in target.addresses():
        raise TargetError(f"{target.name}: the event {event.name!r} concerns broker {broker}, which is down")
    return broker


def _broker_that_is_down(event: Event, target: Target) -> int:
    """Return the broker that the event names. Raises TargetError if no event has taken it down."""
    assert event.broker is not None, f"{event.name}: which broker?"
    if event.broker not in target.down:
        raise TargetError(
            f"{target.name}: the event {event.name!r} concerns broker {event.broker}, which runs"
        )
    return event.broker
