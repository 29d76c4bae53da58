"""Broker keys that exist only dynamically: a properties file cannot set them.

Names, types, defaults and bounds are Kafka 4.3.1's.
"""

from ottla.config.config_def import ConfigKey
from ottla.config.definitions.shorthand import AT_LEAST_0, CLUSTER_WIDE, LONG, MAX_LONG, MEDIUM

KEYS = (
    ConfigKey("leader.replication.throttled.rate", LONG, MAX_LONG,
              "Maximum bytes per second that leaders on this broker send to throttled followers (KIP-73).",
              MEDIUM, check=AT_LEAST_0, update_mode=CLUSTER_WIDE),
    ConfigKey("follower.replication.throttled.rate", LONG, MAX_LONG,
              "Maximum bytes per second that followers on this broker fetch for throttled replicas (KIP-73).",
              MEDIUM, check=AT_LEAST_0, update_mode=CLUSTER_WIDE),
    ConfigKey("replica.alter.log.dirs.io.max.bytes.per.second", LONG, MAX_LONG,
              "Maximum bytes per second that moves between log directories of this broker copy (KIP-113).",
              MEDIUM, check=AT_LEAST_0, update_mode=CLUSTER_WIDE),
)  # fmt: skip
