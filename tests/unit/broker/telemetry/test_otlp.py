"""OTLP messages are read as protobuf's own library reads them, in steps whatever they contain."""

from random import Random

import pytest
from opentelemetry.proto.metrics.v1 import metrics_pb2
from otlp_support import (
    CUMULATIVE,
    attribute,
    counter,
    gauge,
    message,
    metrics_data,
    number,
    point,
    read_all,
    steps_and_result,
    varint,
)

from ottla.broker.telemetry.otlp import MAX_ATTRIBUTES, Point
from ottla.protocol.errors import InvalidRecord


def test_gauges_and_sums_of_a_client():
    pushed = read_all(
        metrics_data(
            gauge("a.rate", point(0.5), point(-2, topic="t", partition="0"), description="A rate."),
            counter("a.total", point(7)),
            counter("b.total", point(8), temporality=CUMULATIVE),
            message(1, "c") + message(7, message(1, point(3)) + number(2, CUMULATIVE)),
            client_rack="a",
        )
    )
    assert pushed.resource == {"client_rack": "a"}
    assert pushed.points == [
        Point("a.rate", "A rate.", (), 0.5, is_counter=False, is_delta=False),
        Point(
            "a.rate", "A rate.", (("partition", "0"), ("topic", "t")), -2, is_counter=False, is_delta=False
        ),
        Point("a.total", "", (), 7, is_counter=True, is_delta=True),
        Point("b.total", "", (), 8, is_counter=True, is_delta=False),
        Point("c", "", (), 3, is_counter=False, is_delta=False),
    ]


def test_values_of_attributes_are_texts():
    values = [message(1, "x"), number(2, 1), number(3, -5), varint(4 << 3 | 1) + bytes(8), message(5, b"")]
    of_point = b"".join(message(7, message(1, f"k{at}") + message(2, each)) for at, each in enumerate(values))
    [found] = read_all(metrics_data(gauge("a", of_point))).points
    assert dict(found.attributes) == {"k0": "x", "k1": "true", "k2": "-5", "k3": "0.0", "k4": ""}


def test_what_is_beyond_the_bound_or_of_another_kind_is_counted():
    data = metrics_data(gauge("a", point(1), point(2), point(3)), message(1, "h") + message(9, b""))
    pushed = read_all(data, max_points=2)
    assert ([each.value for each in pushed.points], pushed.beyond_bound, pushed.other_kinds) == ([1, 2], 1, 1)


@pytest.mark.parametrize("data", [
    metrics_data(gauge("a", point(1)))[:-1],                     # cut off
    b"\x0a\xff\xff\xff\xff\x0f",                                 # four gibibytes are announced
    b"\x0a" + b"\xff" * 11,                                      # a number of more than 64 bits
    b"\x0b",                                                     # a group, which protobuf gave up
    number(1, 5),                                                # a number in place of a message
    metrics_data(message(1, b"\xff")),                           # no UTF-8
    metrics_data(gauge("a", number(4, 1))),                      # a value of the wrong wire type
    metrics_data(gauge("a", message(7, attribute("k", "v")) * 65)),
])  # fmt: skip
def test_other_bytes_are_refused(data):
    with pytest.raises(InvalidRecord):
        read_all(data)


MANY = 10_000
EMPTY = message(1, b"")


@pytest.mark.parametrize("data", [
    EMPTY * MANY,                                                # resources
    message(1, EMPTY * MANY),                                    # resources of one
    message(1, message(2, message(2, b"") * MANY)),              # metrics
    metrics_data(message(1, "a") + message(5, EMPTY * MANY)),    # points
    metrics_data(message(1, "a") + message(7, number(2, 1) * MANY)),
    number(9, 1) * MANY,                                         # fields that are not known
])  # fmt: skip
def test_a_message_of_many_parts_is_read_in_many_steps(data):
    steps, pushed = steps_and_result(data, max_points=10)
    assert steps >= MANY // 110
    assert len(pushed.points) <= 10


LONG = message(7, message(1, "k") * 7 + message(2, message(1, "x") * 8))


def test_a_point_and_a_resource_of_many_fields_are_read_in_many_steps():
    steps, pushed = steps_and_result(metrics_data(gauge("a", LONG * 60)))
    assert steps >= 8
    assert len(pushed.points[0].attributes) == 60
    of_client = message(1, message(1, LONG.replace(LONG[:1], message(1, b"")[:1], 1) * 60))
    steps, pushed = steps_and_result(of_client)
    assert pushed.resource == {"k": "x"}
    assert steps >= 8


def test_only_some_attributes_of_a_client_are_kept():
    data = b"".join(metrics_data(**{f"k{each}": "v"}) for each in range(100))
    assert list(read_all(data).resource) == [f"k{each}" for each in range(MAX_ATTRIBUTES)]


def test_messages_of_protobufs_library_are_read_as_they_were_written():
    random = Random(1)

    def text():
        return "".join(chr(random.choice((65, 0x20AC, 0x1F600))) for _ in range(random.randrange(200)))

    def any_value():
        return random.choice((text(), True, False, random.getrandbits(64) - 2**63, 0))

    for _ in range(30):
        data, expected = metrics_pb2.MetricsData(), []
        one = data.resource_metrics.add()
        one.resource.attributes.add(key="rack").value.string_value = rack = text()
        scope = one.scope_metrics.add()
        for _ in range(random.randrange(20)):
            name, is_sum = text(), random.random() < 0.5
            metric = scope.metrics.add(name=name, unit="1")
            kind = metric.sum if is_sum else metric.gauge
            if is_sum:
                metric.sum.is_monotonic, metric.sum.aggregation_temporality = True, 1
            row = kind.data_points.add(start_time_unix_nano=1, time_unix_nano=2)
            value = random.choice((random.getrandbits(64) - 2**63, random.random(), float("inf"), 0))
            setattr(row, "as_int" if isinstance(value, int) else "as_double", value)
            attributes = {text(): any_value() for _ in range(random.randrange(4))}
            for key, each in attributes.items():
                of_kind = {str: "string_value", bool: "bool_value", int: "int_value"}[type(each)]
                setattr(row.attributes.add(key=key).value, of_kind, each)
            shown = [(key, str(each).lower() if isinstance(each, bool) else str(each))
                     for key, each in attributes.items()]  # fmt: skip
            expected.append(Point(name, "", tuple(sorted(shown)), value, is_counter=is_sum, is_delta=is_sum))
        pushed = read_all(data.SerializeToString())
        assert (pushed.resource, pushed.points) == ({"rack": rack}, expected)
