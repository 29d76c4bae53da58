"""Replication quotas: bound the rate of replication, so that a reassignment leaves bandwidth to clients (KIP-73).

    {leader,follower}.replication.throttled.rate  bytes per second, of a broker
    leader.replication.throttled.replicas         the throttled replicas: * or partition:broker, the leading broker
    follower.replication.throttled.replicas       the same, with the following broker

While its rate is exceeded, a follower leaves throttled partitions out of its fetches, and a leader sends no records of
throttled partitions. A throttled member of the ISR would leave it: so the leader never throttles members, and a
follower does not throttle a partition of which it has everything that is committed.

The windows are those of `replication/byte_quota.py`.

Source: KIP-73; ReplicationQuotaManager of Kafka 4.3.1, with the same windows.
"""

from collections.abc import Sequence
from typing import Final

from ottla.protocol.types import TopicPartition
from ottla.replication.byte_quota import ByteQuota

_ALL: Final = "*"


class ReplicationQuota(ByteQuota):
    """The bound of one kind of replication, and the rate at which it transfers bytes now (KIP-73).

    The bound is `{leader,follower}.replication.throttled.rate`, or `replica.alter.log.dirs.io.max.bytes.per.second`.
    """


def is_throttled(throttled_replicas: Sequence[str], partition: TopicPartition, broker_id: int) -> bool:
    """Whether a topic's list of throttled replicas contains this one.

    >>> is_throttled(["0:1", "0:2"], TopicPartition("t", 0), 2), is_throttled(["*"], TopicPartition("t", 7), 2)
    (True, True)
    >>> is_throttled(["0:1"], TopicPartition("t", 1), 1)
    False
    """
    return _ALL in throttled_replicas or f"{partition.partition}:{broker_id}" in throttled_replicas
