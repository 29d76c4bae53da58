"""A workload that a target cannot run is refused in one sentence before any load; events are followed in
their order."""

import re

import pytest

from ottla.bench.targets.fit import check_fit, slows_store
from ottla.bench.targets.started import started
from ottla.bench.targets.target import TargetError
from ottla.bench.workloads.model import (
    Action,
    ClusterNeeds,
    Condition,
    Event,
    Phase,
    Tier,
    TopicSpec,
    Workload,
)

ONE = ClusterNeeds()
DIRECTORY = ClusterNeeds(brokers=3, tier=Tier.DIRECTORY)


def event(action, **more):
    return Event(at_s=0, action=action, name="it", **more)


def workload(*phases, needs=ONE, replicas=1):
    return Workload(
        name="w",
        title="",
        about="",
        cluster=needs,
        topics=[TopicSpec(name="t", replicas=replicas)],
        phases=[Phase(name=str(number), events=events) for number, events in enumerate(phases)],
    )


def sentence(wanted, target):
    """The refusal; None for a workload that fits."""
    try:
        check_fit(wanted, target)
    except TargetError as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three brokers, not started: nothing is asked of them."""
    return started("ottla", ClusterNeeds(brokers=3), tmp_path_factory.mktemp("fit") / "ottla")


KILL_2, START_2, WIPE_2 = (event(action, broker=2) for action in (Action.KILL, Action.START, Action.WIPE))
KILL_LEADER = event(Action.KILL, leader_of="t")


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        ([[KILL_2, START_2]], None),
        ([[KILL_2], [WIPE_2, START_2]], None),  # over phases, too
        ([[event(Action.STOP, broker=2), START_2, KILL_2]], None),
        ([[KILL_2, KILL_2]], "would kill broker 2, which is down by then"),
        ([[START_2]], "would start broker 2, which runs by then"),
        ([[KILL_2, START_2, WIPE_2]], "would wipe broker 2, which runs by then"),
        ([[KILL_LEADER, START_2]], None),  # it may be broker 2
        ([[event(Action.KILL, broker=4)]], "concerns broker 4; there are 1, 2, 3"),
        ([[event(Action.WAIT, topic="t", until=Condition.IN_SYNC)]], None),
        (
            [[event(Action.WAIT, topic="t", until=Condition.TIERED)]],
            "waits until a topic is tiered, which is seen with a remote tier and --start only",
        ),
        ([[event(Action.SLOW_STORE, delay_s=1)]], "works with --start ottla --store minio only"),
    ],
)
def test_events_of_a_cluster_without_a_tier(three, phases, words):
    refusal = sentence(workload(*phases), three)
    assert (refusal is None) == (words is None)
    assert words is None or re.fullmatch(
        f"ottla does not fit w: the event 'it' .*{re.escape(words)}", refusal
    )


@pytest.mark.parametrize("name", ["kafka", "ottla"])
def test_a_directory_can_be_filled_but_not_slowed_down(tmp_path, name):
    target = started(name, DIRECTORY, tmp_path / name)
    waits = event(Action.WAIT, topic="t", until=Condition.LOCAL_ACTIVE_ONLY)
    assert sentence(workload([waits]), target) is None
    assert "slows the store down" in sentence(workload([event(Action.SLOW_STORE)]), target)


def test_one_broker_can_be_killed_but_not_wiped_and_has_one_replica(tmp_path):
    target = started("ottla", ONE, tmp_path / "ottla")
    kill, wipe = event(Action.KILL, broker=1), event(Action.WIPE, broker=1)
    assert sentence(workload([kill]), target) is None
    assert "would wipe the only broker" in sentence(workload([kill, wipe]), target)
    assert "ottla has 1 broker(s): w needs 3 for the replicas of t" in sentence(
        workload([], replicas=3), target
    )


def test_which_workloads_slow_the_store_down():
    assert slows_store(workload([], [event(Action.SLOW_STORE)]))
    assert not slows_store(workload([KILL_2]))


@pytest.mark.parametrize(
    ("name", "needs", "words"),
    [
        ("redpanda", ONE, "--start redpanda: what can be started is ottla, kafka and minio"),
        ("kafka", ClusterNeeds(tier=Tier.MINIO), "has no storage manager for MinIO; use --store directory"),
    ],
)
def test_what_cannot_be_started(tmp_path, name, needs, words):
    with pytest.raises(TargetError, match=re.escape(words)):
        started(name, needs, tmp_path / name)
    assert not (tmp_path / name).exists()
