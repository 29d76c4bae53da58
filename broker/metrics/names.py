"""Names: Kafka's MBean and one of its attributes -> the name and type that Prometheus shows.

The rules are those of the example configurations that operators give to Prometheus' JMX exporter for Kafka
(kafka-2_0_0.yml and kafka-kraft-3_0_0.yml, `lowercaseOutputName: true`), so that their dashboards and alerts apply:

| attribute | MBean | name | type |
|---|---|---|---|
| Count | kafka.D:type=T,name=XPerSec | kafka_D_T_X_total | counter |
| Count | kafka.D:type=T,name=X | kafka_D_T_X: its _count, and _sum and _bucket, which JMX does not have | histogram |
| Value | kafka.D:type=T,name=X | kafka_D_T_X | gauge |
| Value, MeanRate | kafka.D:type=T,name=XPercent, D without a dot | kafka_D_T_X_percent | gauge |
| a-total | kafka.D:type=T | kafka_D_T_a_total | counter |
| a | kafka.D:type=T | kafka_D_T_a | gauge |

Everything is lower case. A character that Prometheus does not allow becomes an underscore, several in a row one. The
properties behind type and name are labels, in their own spelling. Rates and percentiles of a single process are left
out: Prometheus computes them, over any time and over all brokers.

Strimzi's rules are the same but for the metrics of KRaft: `kafka_server_raftmetrics_a` and
`kafka_server_brokermetadatametrics_a` (`strimzi_name`).

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
_MEAN_RATE: Final = "MeanRate"

_PER_SECOND: Final = re.compile(r"(.+)PerSec\w*")
_PERCENT: Final = re.compile(r"(.+)Percent\w*")
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
    assert attribute in (_COUNT, _VALUE, _MEAN_RATE), attribute
    if attribute != _COUNT:
        if (found := _PERCENT.fullmatch(name)) is not None and domain.count(".") == 1:
            name = f"{found[1]}_percent"
        return MetricName(_safe(f"{prefix}_{name}"), Kind.GAUGE, labels)
    if (found := _PER_SECOND.fullmatch(name)) is not None:
        return MetricName(_safe(f"{prefix}_{found[1]}_total"), Kind.COUNTER, labels)
    return MetricName(_safe(f"{prefix}_{name}"), Kind.HISTOGRAM, labels)


#: The types of MBeans that Strimzi's rules name without the hyphens.
_OF_KRAFT: Final = ("raft-metrics", "raft-channel-metrics", "broker-metadata-metrics")


def strimzi_name(mbean: str, attribute: str) -> str:
    """Return the name of an MBean's attribute by Strimzi's rules.

    >>> strimzi_name("kafka.server:type=raft-metrics", "high-watermark")
    'kafka_server_raftmetrics_high_watermark'
    >>> strimzi_name("kafka.server:type=raft-metrics", "current-state-info")
    'kafka_server_raftmetrics_current_state'
    """
    domain, _, kind = mbean.partition(":type=")
    if kind not in _OF_KRAFT:
        return metric_name(mbean, attribute).name
    return _safe(f"{domain}_{kind.replace('-', '')}_{attribute.removesuffix('-info')}")


def _safe(name: str) -> str:
    return _NOT_ALLOWED.sub("_", name).lower()
