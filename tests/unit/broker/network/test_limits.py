"""Numbers and rates of connections: the counts alone, against a list of connections and against Kafka's arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.network.limits import ConnectionLimits, CreationRate
from ottla.broker.network.settings import ListenerLimits, NetworkSettings
from ottla.config.load import load_config


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("XYZ"), st.sampled_from("abc"))))
def test_counts_are_those_of_a_list(steps):
    """X is the inter-broker listener, Y has a limit of its own, Z has the node's."""
    limits = ConnectionLimits(
        NetworkSettings(
            max_connections=5,
            max_connections_per_ip=3,
            max_connections_per_ip_overrides={"c": 4},
            listener_limits={
                "X": ListenerLimits(max_connections=6, max_creation_rate=1),
                "Y": ListenerLimits(max_connections=2, max_creation_rate=1),
            },
            inter_broker_listener="X",
        )
    )
    for name in "XYZ":
        limits.add_listener(name)
    model = []
    for is_arrival, listener, host in steps:
        of_listener = sum(each == listener for each, _ in model)
        if is_arrival:
            has_slot = of_listener < {"X": 6, "Y": 2, "Z": 5}[listener] and (
                listener == "X" or len(model) < 5
            )
            assert (limits.wait_reason(listener) is None) == has_slot
            of_host = sum(each == host for _, each in model)
            assert (limits.refusal(host) is None) == (of_host < (4 if host == "c" else 3))
            if has_slot:
                limits.add(listener)
                limits.add_host(host)
                model.append((listener, host))
        elif (listener, host) in model:
            limits.remove(listener)
            limits.remove_host(host)
            model.remove((listener, host))
        assert limits.total == len(model)
        assert limits.excess == max(len(model) - 5, 0)


@pytest.mark.parametrize(
    ("listeners", "inter_broker", "is_protected"),
    [
        (["X", "Y"], "X", True),
        (["X"], "X", False),  # clients use it, too
        (["X", "Y"], "Z", False),  # a controller's listeners
        (["X", "Y"], None, False),
    ],
)
def test_the_inter_broker_listener_is_protected_where_there_are_others(listeners, inter_broker, is_protected):
    limits = ConnectionLimits(NetworkSettings(inter_broker_listener=inter_broker, max_connections=0))
    for name in listeners:
        limits.add_listener(name)
    assert limits.is_protected("X") == is_protected


@pytest.mark.parametrize(
    ("limit", "arrivals", "delays"),
    [
        # ten windows are taken for empty before the first connection: limit * 10 s at once
        (1, [0] * 12, [0] * 10 + [1000] * 2),
        (1, [0] * 11 + [9_900], [0] * 10 + [1000, 1000]),
        # a window is forgotten when it began twelve seconds ago
        (1, [0] * 10 + [12_000], [0] * 11),
        (10, [0] * 100 + [0, 50, 100], [0] * 100 + [100, 150, 200]),
        (0, [0], [1000]),
        (2**31 - 1, [0] * 1000, [0] * 1000),
    ],
)
def test_rates_are_measured_as_by_kafka(limit, arrivals, delays):
    rate, settings = CreationRate(), NetworkSettings()
    found = [rate.record(limit, settings=settings, now_ms=now_ms) for now_ms in arrivals]
    assert found == delays


def test_the_longer_delay_counts_and_the_protected_listener_has_its_own():
    limits = ConnectionLimits(
        NetworkSettings(
            max_creation_rate=1,
            listener_limits={"X": ListenerLimits(max_connections=100, max_creation_rate=1000)},
            inter_broker_listener="X",
        )
    )
    limits.add_listener("X")
    limits.add_listener("Y")
    assert [limits.delay_ms("Y", now_ms=0) for _ in range(11)] == [0] * 10 + [1000]
    assert [limits.delay_ms("X", now_ms=0) for _ in range(20)] == [0] * 20


def test_limits_come_from_the_configuration():
    config = load_config(
        overrides=[
            "max.connections=7",
            "max.connection.creation.rate=8",
            "listener.name.plaintext.max.connections=5",
            "listener.name.controller.max.connection.creation.rate=6",
            "queued.max.requests=9",
            "quota.window.num=3",
            "quota.window.size.seconds=2",
        ]
    )
    settings = NetworkSettings.from_config(config)
    assert settings.of_listener("PLAINTEXT") == ListenerLimits(max_connections=5, max_creation_rate=8)
    assert settings.of_listener("CONTROLLER") == ListenerLimits(max_connections=7, max_creation_rate=6)
    assert (settings.max_connections, settings.max_creation_rate) == (7, 8)
    assert (settings.queued_max_requests, settings.queued_max_request_bytes) == (9, None)
    assert (settings.rate_window_count, settings.rate_window_ms) == (3, 2000)
    assert settings.inter_broker_listener == "PLAINTEXT"
