"""Metrics, and the sampling of quotas.

Names, types, defaults and bounds are Kafka 4.3.1's.
"""

from broker.config.definitions.shorthand import AT_LEAST_1, CLASS, CLUSTER_WIDE, INT, LIST, LONG, LOW, STRING
from protocol.config_def import ConfigKey
from protocol.config_values import Distinct

KEYS = (
    ConfigKey("metrics.num.samples", INT, 2,
              "Samples kept for metrics that are computed over time.",
              LOW, check=AT_LEAST_1),
    ConfigKey("metrics.sample.window.ms", LONG, 30000,
              "Length of one sample of a metric.",
              LOW, check=AT_LEAST_1),
    ConfigKey("metric.reporters", LIST, ("org.apache.kafka.common.metrics.JmxReporter",),
              "Classes that receive metrics.",
              LOW, check=Distinct(), update_mode=CLUSTER_WIDE),
    ConfigKey("metrics.recording.level", STRING, "INFO",
              "Most detailed level of metrics that is recorded.",
              LOW),
    ConfigKey("kafka.metrics.reporters", LIST, (),
              "Classes that receive metrics of the older kind.",
              LOW, check=Distinct()),
    ConfigKey("kafka.metrics.polling.interval.secs", INT, 10,
              "Pause between two reports of metrics of the older kind.",
              LOW, check=AT_LEAST_1),
    ConfigKey("telemetry.max.bytes", INT, 1_048_576,
              "Size of the largest metrics message accepted from a client (KIP-714).",
              LOW, check=AT_LEAST_1),
    ConfigKey("quota.window.num", INT, 11, "Samples kept to enforce client quotas.", LOW, check=AT_LEAST_1),
    ConfigKey("replication.quota.window.num", INT, 11,
              "Samples kept to enforce replication quotas.",
              LOW, check=AT_LEAST_1),
    ConfigKey("alter.log.dirs.replication.quota.window.num", INT, 11,
              "Samples kept to enforce the quota on moves between log directories.",
              LOW, check=AT_LEAST_1),
    ConfigKey("controller.quota.window.num", INT, 11,
              "Samples kept to enforce quotas on controller mutations.",
              LOW, check=AT_LEAST_1),
    ConfigKey("quota.window.size.seconds", INT, 1,
              "Length of one sample of client quotas.",
              LOW, check=AT_LEAST_1),
    ConfigKey("replication.quota.window.size.seconds", INT, 1,
              "Length of one sample of replication quotas.",
              LOW, check=AT_LEAST_1),
    ConfigKey("alter.log.dirs.replication.quota.window.size.seconds", INT, 1,
              "Length of one sample of the quota on moves between log directories.",
              LOW, check=AT_LEAST_1),
    ConfigKey("controller.quota.window.size.seconds", INT, 1,
              "Length of one sample of quotas on controller mutations.",
              LOW, check=AT_LEAST_1),
    ConfigKey("client.quota.callback.class", CLASS, None,
              "Which callback computes the quotas of clients.",
              LOW),
)  # fmt: skip
