"""Metrics, the samples by which quotas are measured, and the subscriptions of client metrics (KIP-714).

Names, types, defaults and bounds are Kafka 4.3.1's, except for `metrics.listeners`, `metrics.names` and
`metrics.clients.max.series`, which Kafka does not have: its metrics are read by JMX.
"""

from ottla.config.config_def import ConfigKey
from ottla.config.config_values import Distinct, HttpAddresses, OneOf
from ottla.config.definitions.features import CLIENT_QUOTAS, CONTROLLER_QUOTAS, METRICS
from ottla.config.definitions.shorthand import (
    AT_LEAST_0,
    AT_LEAST_1,
    CLASS,
    CLUSTER_WIDE,
    INT,
    LIST,
    LONG,
    LOW,
    MEDIUM,
    STRING,
)

KEYS = (
    ConfigKey("metrics.listeners", LIST, (),
              "HTTP addresses of the page for people, of metrics for Prometheus, and of whether this node is alive and "
              "ready (docs/METRICS.md); none by default.",
              LOW, check=HttpAddresses()),
    ConfigKey("metrics.names", STRING, "prometheus",
              "The rules by which metrics get their names: those of the JMX exporter's examples, or Strimzi's "
              "(docs/METRICS.md).",
              LOW, check=OneOf(("prometheus", "strimzi"))),
    ConfigKey("metrics.clients.max.series", INT, 0,
              "The number of series of clients' metrics that are shown on /metrics (KIP-714, docs/METRICS.md); "
              "0: none are shown, and clients push only where a subscription exists.",
              LOW, check=AT_LEAST_0),
    ConfigKey("metrics.num.samples", INT, 2,
              "Samples kept for metrics that are computed over time.",
              LOW, check=AT_LEAST_1,
              unread=METRICS),
    ConfigKey("metrics.sample.window.ms", LONG, 30000,
              "Length of one sample of a metric.",
              LOW, check=AT_LEAST_1,
              unread=METRICS),
    ConfigKey("metric.reporters", LIST, ("org.apache.kafka.common.metrics.JmxReporter",),
              "Classes that receive metrics.",
              LOW, check=Distinct(), update_mode=CLUSTER_WIDE,
              unread=METRICS),
    ConfigKey("metrics.recording.level", STRING, "INFO",
              "Most detailed level of metrics that is recorded.",
              LOW,
              unread=METRICS),
    ConfigKey("kafka.metrics.reporters", LIST, (),
              "Classes that receive metrics of the older kind.",
              LOW, check=Distinct(),
              unread=METRICS),
    ConfigKey("kafka.metrics.polling.interval.secs", INT, 10,
              "Interval between two reports of metrics of the older kind.",
              LOW, check=AT_LEAST_1,
              unread=METRICS),
    ConfigKey("telemetry.max.bytes", INT, 1_048_576,
              "Size of the largest metrics message accepted from a client (KIP-714).",
              LOW, check=AT_LEAST_1),
    ConfigKey("quota.window.num", INT, 11,
              "Samples kept to enforce client quotas and rates of new connections.",
              LOW, check=AT_LEAST_1),
    ConfigKey("replication.quota.window.num", INT, 11,
              "Samples kept to enforce replication quotas.",
              LOW, check=AT_LEAST_1),
    ConfigKey("alter.log.dirs.replication.quota.window.num", INT, 11,
              "Samples kept to enforce the quota on moves between log directories.",
              LOW, check=AT_LEAST_1),
    ConfigKey("controller.quota.window.num", INT, 11,
              "Samples kept to enforce quotas on controller mutations.",
              LOW, check=AT_LEAST_1,
              unread=CONTROLLER_QUOTAS),
    ConfigKey("quota.window.size.seconds", INT, 1,
              "Length of one sample of client quotas and rates of new connections.",
              LOW, check=AT_LEAST_1),
    ConfigKey("replication.quota.window.size.seconds", INT, 1,
              "Length of one sample of replication quotas.",
              LOW, check=AT_LEAST_1),
    ConfigKey("alter.log.dirs.replication.quota.window.size.seconds", INT, 1,
              "Length of one sample of the quota on moves between log directories.",
              LOW, check=AT_LEAST_1),
    ConfigKey("controller.quota.window.size.seconds", INT, 1,
              "Length of one sample of quotas on controller mutations.",
              LOW, check=AT_LEAST_1,
              unread=CONTROLLER_QUOTAS),
    ConfigKey("client.quota.callback.class", CLASS, None,
              "Which callback computes the quotas of clients.",
              LOW,
              unread=CLIENT_QUOTAS._replace(is_refused=True)),
)  # fmt: skip

#: The configurations of one subscription: the resource type CLIENT_METRICS.
SUBSCRIPTION_KEYS = (
    ConfigKey("metrics", LIST, (),
              "Prefixes of the metrics that clients are to send (KIP-714); * is all of them.",
              MEDIUM, check=Distinct()),
    ConfigKey("interval.ms", INT, 300_000,
              "Interval between two pushes of metrics by clients, in milliseconds.",
              MEDIUM),
    ConfigKey("match", LIST, (),
              "Which clients the subscription is for, as selector=pattern entries.",
              MEDIUM, check=Distinct()),
)  # fmt: skip
