"""Configurations of one group (resource type GROUP).

Names, types, defaults and bounds are Kafka 4.3.1's.
"""

from ottla.config.config_def import ConfigKey, unread
from ottla.config.config_values import Between, DurationOrOffset, OneOf
from ottla.config.definitions.features import CONSUMER_GROUPS, SHARE_GROUPS, STREAMS_GROUPS
from ottla.config.definitions.shorthand import AT_LEAST_0, AT_LEAST_1, BOOLEAN, INT, MEDIUM, STRING

KEYS = unread(CONSUMER_GROUPS, (
    ConfigKey("consumer.session.timeout.ms", INT, 45000,
              "Time without heartbeats after which a member of this consumer group is removed.",
              MEDIUM, check=AT_LEAST_1),
    ConfigKey("consumer.heartbeat.interval.ms", INT, 5000,
              "Interval between heartbeats of this consumer group's members.",
              MEDIUM, check=AT_LEAST_1),
    ConfigKey("consumer.assignment.interval.ms", INT, 1000,
              "Minimum time between two assignments of this consumer group.",
              MEDIUM, check=AT_LEAST_0),
)) + unread(SHARE_GROUPS, (
    ConfigKey("share.session.timeout.ms", INT, 45000,
              "Time without heartbeats after which a member of this share group is removed.",
              MEDIUM, check=AT_LEAST_1),
    ConfigKey("share.heartbeat.interval.ms", INT, 5000,
              "Interval between heartbeats of this share group's members.",
              MEDIUM, check=AT_LEAST_1),
    ConfigKey("share.record.lock.duration.ms", INT, 30000,
              "Duration of a member's lock on a record in this share group.",
              MEDIUM, check=Between(1000)),
    ConfigKey("share.delivery.count.limit", INT, 5,
              "Deliveries of a record to this share group's members before it is archived.",
              MEDIUM, check=Between(2)),
    ConfigKey("share.partition.max.record.locks", INT, 2000,
              "Records of one partition that are locked at the same time in this share group.",
              MEDIUM, check=Between(100)),
    ConfigKey("share.auto.offset.reset", STRING, "latest",
              "Where this share group starts to read a partition without stored state.",
              MEDIUM, check=DurationOrOffset()),
    ConfigKey("share.isolation.level", STRING, "read_uncommitted",
              "Whether this share group receives records of open and aborted transactions.",
              MEDIUM, check=OneOf(("read_committed", "read_uncommitted"))),
    ConfigKey("share.renew.acknowledge.enable", BOOLEAN, True,
              "Whether members of this share group may renew their locks.",
              MEDIUM),
    ConfigKey("share.assignment.interval.ms", INT, 1000,
              "Minimum time between two assignments of this share group.",
              MEDIUM, check=AT_LEAST_0),
)) + unread(STREAMS_GROUPS, (
    ConfigKey("streams.session.timeout.ms", INT, 45000,
              "Time without heartbeats after which a member of this streams group is removed.",
              MEDIUM, check=AT_LEAST_1),
    ConfigKey("streams.heartbeat.interval.ms", INT, 5000,
              "Interval between heartbeats of this streams group's members.",
              MEDIUM, check=AT_LEAST_1),
    ConfigKey("streams.num.standby.replicas", INT, 0,
              "Standby replicas of each task's state in this streams group.",
              MEDIUM, check=AT_LEAST_0),
    ConfigKey("streams.initial.rebalance.delay.ms", INT, 3000,
              "Time the first assignment of this streams group waits for more members.",
              MEDIUM, check=AT_LEAST_0),
    ConfigKey("streams.assignment.interval.ms", INT, 1000,
              "Minimum time between two assignments of this streams group.",
              MEDIUM, check=AT_LEAST_0),
))  # fmt: skip
