"""Follower's Fetch at its leader: the follower's progress, its high watermark, and the replication throttle.

A follower reads up to the log end, and its fetch offset shows how far it has replicated: the leader records that when
the fetch arrives, not when it responds. It responds at once when the follower can advance its high watermark, and when
the fetch opens a session, so that consumers of followers do not wait for replica.fetch.wait.max.ms (KIP-392; with Kafka
4.3.1 they wait). Before a response that advances the high watermark it yields a few turns of the loop to the producers
whose requests the same high watermark completes: their next requests, if sent already, are appended by then, and the
response includes those records, too.

Source: Kafka's Partition.fetchRecords (updateFollowerFetchState) and ReplicaManager.shouldLeaderThrottle; the high
watermark in the request: KIP-1166.
"""

from typing import Final

from broker.reads.fetch_params import FetchParams
from broker.reads.fetch_sessions import FetchedPartition
from broker.replicas.partition import Partition
from storage.log import Log

#: Turns of the event loop until a producer has its response and its next request is handled. With pipelined requests a
#: record then costs each follower one fetch instead of two: a third less CPU at 1,000 requests a second.
TURNS_FOR_PRODUCERS: Final = 4

#: In a request's row: the follower does not report its high watermark (before version 18, and Kafka 4.3.1).
_NOT_REPORTED: Final = 2**63 - 1


def check_follower(partition: Partition, params: FetchParams, *, has_leader_epoch: bool) -> None:
    """Raise unless the sender is a follower of the partition. Raises what `Partition.check_follower` raises."""
    assert params.replica_id is not None
    partition.check_follower(
        params.replica_id,
        None if params.replica_epoch == -1 else params.replica_epoch,
        has_leader_epoch=has_leader_epoch,
    )


def record_progress(
    partition: Partition, fetched: FetchedPartition, params: FetchParams, *, now_ms: int
) -> None:
    """Record how far the follower has replicated, unless its fetch offset is out of range: then the read raises.

    Precondition: `check_follower`, and the follower's log does not diverge.
    """
    assert params.replica_id is not None
    request, log, leader = fetched.request, partition.log, partition.leader
    assert leader is not None, str(partition)
    if log.log_start_offset <= request.fetch_offset <= log.log_end_offset:
        leader.on_follower_fetch(
            params.replica_id,
            fetch_offset=request.fetch_offset,
            log_start_offset=request.log_start_offset,
            broker_epoch=params.replica_epoch,
            session=fetched.session,
            now_ms=now_ms,
        )


def is_high_watermark_stale(fetched: FetchedPartition, log: Log) -> bool:
    """Whether the leader's high watermark would advance the follower's.

    A follower that does not report its high watermark has the one last sent in its session. Without a session it
    receives the high watermark with records, or at the timeout: otherwise all of its fetches would be answered at once.
    """
    request = fetched.request
    known = request.high_watermark
    if known == _NOT_REPORTED:
        if fetched.session is None:
            return False
        known = -1 if fetched.high_watermark is None else fetched.high_watermark
    return known < min(log.high_watermark, request.fetch_offset)
