"""Configurations of a client metrics subscription (resource type CLIENT_METRICS, KIP-714).

Names, types, defaults and bounds are Kafka 4.3.1's.
"""

from ottla.config.config_def import ConfigKey, unread
from ottla.config.config_values import Distinct
from ottla.config.definitions.features import CLIENT_METRICS
from ottla.config.definitions.shorthand import INT, LIST, MEDIUM

KEYS = unread(CLIENT_METRICS, (
    ConfigKey("metrics", LIST, (),
              "Prefixes of the metrics that clients are to send (KIP-714); * is all of them.",
              MEDIUM, check=Distinct()),
    ConfigKey("interval.ms", INT, 300_000,
              "Interval between two pushes of metrics by clients, in milliseconds.",
              MEDIUM),
    ConfigKey("match", LIST, (),
              "Which clients the subscription is for, as selector=pattern entries.",
              MEDIUM, check=Distinct()),
))  # fmt: skip
