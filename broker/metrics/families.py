"""Family: one metric of a table, with its name, its meaning, and the function that reads it.

    kafka("kafka.server:type=ReplicaManager,name=PartitionCount", "Hosted partitions.", one(lambda: scan.partitions))

A reader is called while a page is written, and returns an iterable of (labels, value): nothing is stored between two
pages. An iterable that reads as it is consumed is read in turns of the loop, some rows at a time.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from ottla.broker.metrics.names import Kind, metric_name, strimzi_name
from ottla.runtime.histogram import Histogram

Labels = Mapping[str, str]
#: One sample: its labels beside the family's fixed ones, and the value; for a histogram, the histogram
#: itself.
Reading = tuple[Labels, float | Histogram]
Read = Callable[[], Iterable[Reading]]

T = TypeVar("T")

NO_LABELS: Labels = {}


class RenderedLabels(dict[str, str]):
    """The labels of several metrics, with their text on the page, which is made once."""

    __slots__ = ("text",)

    def __init__(self, **labels: str) -> None:
        super().__init__(labels)
        self.text = label_text(self)


def label_text(labels: Labels) -> str:
    r"""The labels as both text formats write them.

    >>> label_text({"topic": "t", "partition": "0"})
    'partition="0",topic="t"'
    """
    return ",".join([f'{key}="{_escaped(text)}"' for key, text in sorted(labels.items())])


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@dataclass(slots=True, frozen=True, kw_only=True)
class Family:
    """One metric of a table: its name, its meaning, and the function that reads it.

    A counter's name ends with _total.
    """

    name: str
    kind: Kind
    documentation: str
    read: Read
    #: Kafka's MBean and its attribute; None for a metric that Kafka does not have.
    source: tuple[str, str] | None = None
    #: The fixed labels that every reading has.
    labels: tuple[tuple[str, str], ...] = ()


def kafka(mbean: str, documentation: str, read: Read, *, attribute: str = "Value") -> Family:
    """Make the family of a metric of Kafka, under the name that `ottla.broker.metrics.names` gives it."""
    name, kind, labels = metric_name(mbean, attribute)
    return Family(
        name=name,
        kind=kind,
        documentation=documentation,
        read=read,
        source=(mbean, attribute),
        labels=labels,
    )


def with_strimzis_name(family: Family) -> Family:
    """Return the family under the name that Strimzi's rules give it, and with the label of that rule."""
    if family.source is None:
        return family
    name = strimzi_name(*family.source)
    if not name.endswith("_current_state"):
        return replace(family, name=name)
    of_state = family.read

    def read() -> Iterable[Reading]:
        return [({"current_state": labels["state"]}, value) for labels, value in of_state()]

    return replace(family, name=name, read=read)


def own(name: str, kind: Kind, documentation: str, read: Read) -> Family:
    """Make the family of a metric that Kafka does not have: its name begins with `ottla_`."""
    return Family(name=f"ottla_{name}", kind=kind, documentation=documentation, read=read)


def one(read: Callable[[], float | None]) -> Read:
    """Make a reader of a single value without labels; None: there is no value at present."""

    def read_one() -> Iterable[Reading]:
        value = read()
        return () if value is None else ((NO_LABELS, value),)

    return read_one


def exporter(name: str, documentation: str, read: Read) -> Family:
    """Make the family of a gauge of kafka_exporter, a program that reads these values as a client of a cluster."""
    return Family(name=f"kafka_{name}", kind=Kind.GAUGE, documentation=documentation, read=read)
