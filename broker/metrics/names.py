"""Names: Kafka's MBean and one of its attributes -> the name and type that Prometheus shows.

The rules are those of the example configurations that operators give to Prometheus' JMX exporter for Kafka
(kafka-2_0_0.yml and kafka-kraft-3_0_0.yml, `lowercaseOutputName: true`), so that their dashboards and alerts apply:

| attribute | MBean | name | type |
|---|---|---|---|
| Count | kafka.D:type=T,name=XPerSec | kafka_D_T_X_total | counter |
| Count | kafka.D:type=T,name=X | kafka_D_T_X: its _count, and _sum and _bucket, which JMX does not have | histogram |
| Value | kafka.D:type=T,name=X | kafka_D_T_X | gauge |
| a-total | kafka.D:type=T | kafka_D_T_a_total | counter |
| a | kafka.D:type=T | kafka_D_T_a | gauge |

Everything is lower case. A character that Prometheus does not allow becomes an underscore, several in a row one. The
properties behind type and name are labels, in their own spelling. Rates and percentiles of a single process are left
out: Prometheus computes them, over any time and over all brokers.

The examples have no rule for domains with two dots, except for kafka.coordinator.group; here all domains follow it:
kafka.log.remote becomes kafka_log_remote.
"""

import re
from enum import Enum
from typing import Final, NamedTuple


class Kind(Enum):
    """A type of metric; the values are Prometheus'."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricName(NamedTuple):
    """A family's name as Prometheus shows it (a counter's with _total), its type, and its fixed labels."""

    name: str
    kind: Kind
    labels: tuple[tuple[str, str], ...]


#: The attributes of Kafka's older metrics (Yammer's): all others belong to MBeans that have a type only.
_COUNT: Final = "Count"
_VALUE: Final = "Value"

_PER_SECOND: Final = re.compile(r"(.+)PerSec\w*")
_NOT_ALLOWED: Final = re.compile(r"[^a-zA-Z0-9_]+|__+")


def metric_name(mbean: str, attribute: str) -> MetricName:
    """Return the name, the type and the labels of an MBean's attribute.

    >>> metric_name("kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec", "Count").name
    'kafka_server_brokertopicmetrics_messagesin_total'
    >>> metric_name("kafka.server:type=raft-metrics", "high-watermark").name
    'kafka_server_raft_metrics_high_watermark'
    >>> metric_name("kafka.server:type=ReplicaFetcherManager,name=MaxLag,clientId=Replica", "Value").labels
    (('clientId', 'Replica'),)
    """
    domain, _, text = mbean.partition(":")
    properties = dict(each.split("=", 1) for each in text.split(","))
    prefix = f"{domain}_{properties.pop('type')}"
    name = properties.pop("name", None)
    labels = tuple(properties.items())
    if name is None:
        kind = Kind.COUNTER if attribute.endswith("-total") else Kind.GAUGE
        return MetricName(_safe(f"{prefix}_{attribute}"), kind, labels)
    assert attribute in (_COUNT, _VALUE), attribute
    if attribute == _VALUE:
        return MetricName(_safe(f"{prefix}_{name}"), Kind.GAUGE, labels)
    if (found := _PER_SECOND.fullmatch(name)) is not None:
        return MetricName(_safe(f"{prefix}_{found[1]}_total"), Kind.COUNTER, labels)
    return MetricName(_safe(f"{prefix}_{name}"), Kind.HISTOGRAM, labels)


def _safe(name: str) -> str:
    return _NOT_ALLOWED.sub("_", name).lower()
