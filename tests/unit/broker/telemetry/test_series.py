"""The metrics that clients push become a bounded number of series, and are gone with them."""

from uuid import UUID

import pytest
from otlp_support import CUMULATIVE, counter, gauge, metrics_data, point, read_all

from ottla.broker.telemetry.series import ClientSeries, metric_name
from ottla.broker.telemetry.subscriptions import Client

ONE, TWO = (Client(UUID(int=each), f"c{each}", "java", "4", "192.0.2.1", 5000) for each in (1, 2))


def push(series, *metrics, client=ONE, at=0, interval_ms=1000, **resource):
    pushed = read_all(metrics_data(*metrics, **resource), series.max_series)
    for _ in series.add(client, pushed, interval_ms=interval_ms, now_ms=at):
        pass


def shown(series):
    return {
        (name, each.labels["client_id"], *(each.labels.get(key, "") for key in ("topic",))): each.value
        for name, of_name in series.by_name.items()
        for each in of_name.series.values()
    }


def test_changes_are_added_up_and_other_values_replaced():
    series = ClientSeries(max_series=10)
    for value in (5, 7):
        push(
            series,
            counter("org.apache.kafka.producer.record.send.total", point(value)),
            counter("all", point(value), temporality=CUMULATIVE),
            gauge("rate", point(value / 2, topic="t")),
            client_rack="a",
        )
    assert shown(series) == {
        ("kafka_client_producer_record_send_total", "c1", ""): 12,
        ("kafka_client_all_total", "c1", ""): 7,
        ("kafka_client_rate", "c1", "t"): 3.5,
    }
    [instance] = series.instances.values()
    assert instance.labels["client_rack"] == "a"
    assert instance.labels["client_software_name"] == "java"


def test_the_series_are_bounded_and_the_others_counted():
    series = ClientSeries(max_series=3)
    push(series, gauge("a", *(point(1, topic=f"t{each}") for each in range(5))))
    push(series, gauge("b", point(1)), client=TWO)
    push(series, gauge("a", point(9, topic="t0")))
    assert sorted(shown(series).values()) == [1, 1, 9]
    assert series.left_out["bound"] == 3  # two beyond the bound of a push, one beyond that of all


def test_series_are_gone_some_intervals_after_the_last_push():
    series = ClientSeries(max_series=3)
    push(series, gauge("a", point(1)), at=0, interval_ms=50_000)
    push(series, gauge("a", point(2)), at=0, client=TWO)
    for at, left in ((59_999, 2), (60_000, 1), (149_999, 1), (150_000, 0)):
        for _ in series.expire(at):
            pass
        assert (series.count, len(shown(series)), len(series.instances)) == (left, left, left), at
    assert not series.by_name


@pytest.mark.parametrize("steps", range(4))
def test_an_instance_that_pushes_while_it_expires_keeps_what_it_pushes(steps):
    series = ClientSeries(max_series=200)
    points = [counter(f"n{each}", point(1)) for each in range(50)]
    push(series, *points, client=TWO)
    push(series, *points)
    expiring = series.expire(60_000)
    for _ in range(steps):
        next(expiring)
    push(series, *points, at=60_000)
    push(series, *points, client=TWO, at=60_000)
    for _ in expiring:
        pass
    assert set(shown(series).values()) == {1}
    assert series.count == len(shown(series)) == 100
    push(series, at=120_000)
    for _ in series.expire(180_000):
        pass
    assert (series.count, series.by_name, series.instances) == (0, {}, {})


def test_an_instance_that_pushes_before_it_is_removed_stays():
    series = ClientSeries(max_series=200)
    push(series, *(gauge(f"n{each}", point(1)) for each in range(50)))
    push(series, gauge("a", point(1)), client=TWO)
    expiring = series.expire(60_000)
    next(expiring)
    series.instances[TWO.instance_id].shown_until_ms = 120_000
    for _ in expiring:
        pass
    assert list(shown(series)) == [("kafka_client_a", "c2", "")]


def test_one_name_has_one_type_and_one_label_has_one_value():
    series = ClientSeries(max_series=10)
    push(
        series, counter("a.total", point(1)), gauge("a_total", point(2)), gauge("b", point(1, **{"x.y": "1"}))
    )
    push(series, gauge("a", point(2)), counter("b", point(2)))
    push(series, gauge("b", point(5, x_y="1", client_id="another")))
    assert shown(series) == {("kafka_client_a_total", "c1", ""): 1, ("kafka_client_b", "c1", ""): 5}
    [series_of_b] = series.by_name["kafka_client_b"].series.values()
    assert series_of_b.labels["x_y"] == "1"
    assert series.left_out["kind"] == 3


@pytest.mark.parametrize("metric", [
    gauge("n" * 300, point(1)),
    gauge("a", point(1, topic="t" * 300)),
    gauge("a", point(1, **{f"k{each}": "" for each in range(17)})),
])  # fmt: skip
def test_long_texts_are_left_out(metric):
    series = ClientSeries(max_series=10)
    push(series, metric)
    assert (shown(series), series.left_out["text"]) == ({}, 1)


def test_a_client_cannot_write_a_metric_of_the_broker():
    name = metric_name("kafka_server_BrokerTopicMetrics_messagesin", is_counter=True)
    assert name == "kafka_client_kafka_server_brokertopicmetrics_messagesin_total"
    assert metric_name("...", is_counter=False) == "kafka_client_"
