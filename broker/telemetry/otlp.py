"""OTLP: reads the gauges and sums of a push, a MetricsData message of OpenTelemetry's metrics v1, in steps.

    MetricsData > ResourceMetrics > Resource > attributes                 of the client: its rack, its group, ...
                                  > ScopeMetrics > Metric > Gauge, Sum > NumberDataPoint > attributes, value

Unknown fields are skipped, as protobuf asks; histograms and summaries, which no Kafka client sends, are counted.

Protobuf's own library would read a message in one step, which no bound but the message's size limits: a hostile message
of telemetry.max.bytes made of empty parts holds the interpreter's lock for 150 ms and takes 50 MB. This reader makes
no object of a part that it does not return, and reads some `_FIELDS_OF_STEP` fields in one step.

Source: opentelemetry/proto/metrics/v1/metrics.proto, common.proto and resource.proto 1.x; protobuf's encoding.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from struct import unpack_from
from typing import Final, NamedTuple

from ottla.protocol.errors import InvalidRecord

#: The fields that are read in one step: some 100 µs.
_FIELDS_OF_STEP: Final = 100
#: The fields of a point, of a resource, and of a metric beside its points; those of real clients have less than ten.
_MAX_FIELDS: Final = 64
#: The fields of an attribute, and of its value; real ones have two, and one.
_MAX_FIELDS_OF_ATTRIBUTE: Final = 8
#: The attributes of a point, or of a client, that become labels; those of real clients have two or three.
MAX_ATTRIBUTES: Final = 16

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
#: AggregationTemporality of a sum: changes since the last push.
_DELTA: Final = 1

#: Where the bytes of a part begin and end.
_Span = tuple[int, int]
#: A field of a message: its number, its wire type, and its value, or where that lies.
_Field = tuple[int, int, int | _Span]
Attributes = tuple[tuple[str, str], ...]


class Point(NamedTuple):
    """One value of one metric."""

    name: str
    description: str
    attributes: Attributes
    value: float
    #: A sum that only grows: a counter.
    is_counter: bool
    #: Of a sum: the value is the change since the client's last push.
    is_delta: bool


@dataclass(slots=True)
class Pushed:
    """The content of one push."""

    #: The first attributes of the client itself, at most MAX_ATTRIBUTES.
    resource: dict[str, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    #: The number of points beyond the bound, and of metrics that are neither gauges nor sums.
    beyond_bound: int = 0
    other_kinds: int = 0


def read(data: bytes, *, max_points: int) -> Generator[None, None, Pushed]:
    """Read a MetricsData message in steps. Raises InvalidRecord if it is none.

    Of more than `max_points` points, the others are counted.
    """
    reader = _Reader(data, max_points)
    yield from reader.read()
    return reader.pushed


class _Reader:
    """Reads one message; `_left` fields are left of the present step."""

    def __init__(self, data: bytes, max_points: int) -> None:
        self._data = data
        self._max_points = max_points
        self._left = _FIELDS_OF_STEP
        self.pushed = Pushed()

    def read(self) -> Iterator[None]:
        for resource_metrics in self._parts((0, len(self._data)), 1):
            if resource_metrics is None:
                yield
                continue
            for resource in self._parts(resource_metrics, 1):
                if resource is None:
                    yield
                else:
                    yield from self._read_resource(resource)
            for scope_metrics in self._parts(resource_metrics, 2):
                if scope_metrics is None:
                    yield
                    continue
                for metric in self._parts(scope_metrics, 2):
                    if metric is None:
                        yield
                    else:
                        yield from self._read_metric(metric)

    def _parts(self, span: _Span, wanted: int) -> Iterator[_Span | None]:
        """The places of the messages in one field of a message; None where a step ends."""
        for number, _, value in self._fields(span):
            if number == wanted:
                yield _span(value)
            if self._ends_step():
                yield None

    def _ends_step(self) -> bool:
        """Whether a step ends here; then the next one begins."""
        if self._left > 0:
            return False
        self._left = _FIELDS_OF_STEP
        return True

    def _read_resource(self, span: _Span) -> Iterator[None]:
        resource = self.pushed.resource
        for number, _, value in self._few_fields(span, _MAX_FIELDS):
            if number == 1 and len(resource) < MAX_ATTRIBUTES:
                key, text = self._attribute(_span(value))
                resource[key] = text
            if self._ends_step():
                yield

    def _read_metric(self, metric: _Span) -> Generator[None, None, None]:
        pushed = self.pushed
        name = description = ""
        of_kind: _Span | None = None
        is_sum = False
        for number, _, value in self._few_fields(metric, _MAX_FIELDS):
            if number == 1:
                name = self._text(value)
            elif number == 2:
                description = self._text(value)
            elif number in (5, 7):
                of_kind, is_sum = _span(value), number == 7
            elif number in (9, 10, 11):
                pushed.other_kinds += 1
        if of_kind is None:
            return
        is_counter, is_delta = (yield from self._kind_of_sum(of_kind)) if is_sum else (False, False)
        for point in self._parts(of_kind, 1):
            if point is None:
                yield
            elif len(pushed.points) < self._max_points:
                attributes, measured = yield from self._point(point)
                pushed.points.append(Point(name, description, attributes, measured, is_counter, is_delta))
            else:
                pushed.beyond_bound += 1

    def _kind_of_sum(self, span: _Span) -> Generator[None, None, tuple[bool, bool]]:
        """Whether a sum is a counter, and whether its values are changes; its points may come before that."""
        is_counter = is_delta = False
        for number, _, value in self._fields(span):
            if number == 2:
                is_delta = value == _DELTA
            elif number == 3:
                is_counter = bool(value)
            if self._ends_step():
                yield
        return is_counter, is_delta

    def _point(self, span: _Span) -> Generator[None, None, tuple[Attributes, float]]:
        attributes: list[tuple[str, str]] = []
        result: float = 0
        for number, wire_type, value in self._few_fields(span, _MAX_FIELDS):
            if number == 7:
                attributes.append(self._attribute(_span(value)))
            elif number == 4:
                result = self._fixed64(wire_type, value, "<d")
            elif number == 6:
                result = self._fixed64(wire_type, value, "<q")
            if self._ends_step():
                yield
        return tuple(sorted(attributes)), result

    def _attribute(self, span: _Span) -> tuple[str, str]:
        """A KeyValue, its value as text; that of an array or of another message is empty."""
        key = ""
        of_value: _Span = (0, 0)
        for number, _, value in self._few_fields(span, _MAX_FIELDS_OF_ATTRIBUTE):
            if number == 1:
                key = self._text(value)
            elif number == 2:
                of_value = _span(value)
        text = ""
        for number, wire_type, value in self._few_fields(of_value, _MAX_FIELDS_OF_ATTRIBUTE):
            if number == 1:
                text = self._text(value)
            elif number == 2:
                text = "true" if value else "false"
            elif number == 3 and isinstance(value, int):
                text = str(value - (1 << 64) if value >= 1 << 63 else value)
            elif number == 4:
                text = repr(self._fixed64(wire_type, value, "<d"))
        return key, text

    def _few_fields(self, span: _Span, bound: int) -> Iterator[_Field]:
        for count, each in enumerate(self._fields(span)):
            if count == bound:
                raise InvalidRecord(f"A part of the metrics has more than {bound} fields")
            yield each

    def _fields(self, span: _Span) -> Iterator[_Field]:
        """The fields of a message that lies in `span`."""
        at, end = span
        data = self._data
        while at < end:
            self._left -= 1
            tag, at = _varint(data, at, end)
            number, wire_type = tag >> 3, tag & 7
            if wire_type == _VARINT:
                value, at = _varint(data, at, end)
                yield number, wire_type, value
                continue
            begin = at
            if wire_type == _BYTES:
                size, begin = _varint(data, at, end)
                at = begin + size
            elif wire_type == _FIXED64:
                at += 8
            elif wire_type == _FIXED32:
                at += 4
            else:
                raise InvalidRecord(f"The metrics have a field of the unknown wire type {wire_type}")
            if at > end:
                raise InvalidRecord("The metrics are cut off")
            yield number, wire_type, (begin, at)

    def _text(self, value: int | _Span) -> str:
        begin, end = _span(value)
        try:
            return self._data[begin:end].decode()
        except UnicodeDecodeError as error:
            raise InvalidRecord("The metrics have a text that is not UTF-8") from error

    def _fixed64(self, wire_type: int, value: int | _Span, layout: str) -> float:
        if wire_type != _FIXED64:
            raise InvalidRecord("The metrics have a number that is not 64 bits long")
        result: float = unpack_from(layout, self._data, _span(value)[0])[0]
        return result


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        if shift > 63:
            raise InvalidRecord("The metrics have a number of more than 64 bits")
    raise InvalidRecord("The metrics are cut off")


def _span(value: int | _Span) -> _Span:
    if isinstance(value, int):
        raise InvalidRecord("The metrics have a number in place of a message")
    return value
