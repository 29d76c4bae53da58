"""Exposition: metrics of prometheus-client as text, in pieces, for a page that is written in turns of the loop.

Prometheus-client's own `generate_latest` writes the same metrics, which the tests hold equal, but in one
turn: 100 ms for 5,000 partitions. Sources: Prometheus' text format 0.0.4, OpenMetrics 1.0.
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import islice
from math import isfinite, isnan
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

#: The number of samples that one piece of a page has: some 50 µs.
SAMPLES_PER_PIECE: Final = 25


class TextFormat(Enum):
    """The formats; the values are their Content-Type."""

    PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
    OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def chosen_format(accept: str) -> TextFormat:
    """The format for an Accept header: OpenMetrics for a client that names it, as Prometheus does.

    >>> chosen_format("application/openmetrics-text;version=1.0.0;q=0.75,text/plain;q=0.5").name
    'OPEN_METRICS'
    >>> chosen_format("*/*").name
    'PROMETHEUS'
    """
    media_types = (each.partition(";")[0].strip().lower() for each in accept.split(","))
    return TextFormat.OPEN_METRICS if "application/openmetrics-text" in media_types else TextFormat.PROMETHEUS


def pieces(metrics: Iterable[Metric], text_format: TextFormat) -> Iterator[str]:
    """The text of a whole page, some samples at a time."""
    for metric in metrics:
        yield _head(metric, text_format)
        samples = iter(metric.samples)
        while lines := [_line(sample) for sample in islice(samples, SAMPLES_PER_PIECE)]:
            yield "".join(lines)
    if text_format is TextFormat.OPEN_METRICS:
        yield "# EOF\n"


def _head(metric: Metric, text_format: TextFormat) -> str:
    name, kind, documentation = metric.name, metric.type, metric.documentation
    documentation = documentation.replace("\\", r"\\").replace("\n", r"\n")
    if text_format is TextFormat.OPEN_METRICS:
        documentation = documentation.replace('"', r"\"")
    elif kind == "counter":
        name += "_total"
    elif kind == "info":
        name, kind = f"{name}_info", "gauge"
    return f"# HELP {name} {documentation}\n# TYPE {name} {kind}\n"


def _line(sample: Sample) -> str:
    name, labels, value = sample[:3]
    if not labels:
        return f"{name} {number(value)}\n"
    pairs = ",".join([f'{key}="{_escaped(text)}"' for key, text in sorted(labels.items())])
    return f"{name}{{{pairs}}} {number(value)}\n"


def number(value: float) -> str:
    """The value as both formats write it; integers without exponent and without loss.

    >>> number(2**60), number(0.5), number(float("inf"))
    ('1152921504606846976', '0.5', '+Inf')
    """
    if isinstance(value, int):
        return str(int(value))  # of a bool, too
    if isfinite(value):
        return repr(value)
    return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
