"""Conditions that events wait for (`workloads.model.Condition`), seen by requests and in the leaders' files."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from ottla.bench.targets.cluster_client import ClusterClient
from ottla.bench.targets.target import Target, TargetError
from ottla.bench.targets.wire import TIER_VERSIONS, Address, RequestFailed
from ottla.bench.workloads.model import Condition
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.special_timestamps import EARLIEST_LOCAL, LATEST, LATEST_TIERED

_POLL_S: Final = 0.01
#: With many partitions an answer takes a while: the next request is sent this many times as long afterwards.
_IDLE_SHARE: Final = 9
#: The longest wait for a condition: longer than a rejoin or an upload of some gigabytes takes.
_PATIENCE_S: Final = 900
#: The conditions that are seen in the files of the leader.
NEEDS_FILES: Final = (Condition.TIERED, Condition.LOCAL_ACTIVE_ONLY)


def wait_for(
    condition: Condition,
    target: Target,
    topic: str,
    *,
    is_over: Callable[[], bool],
    patience_s: float = _PATIENCE_S,
) -> bool:
    """Wait until the condition holds; return False if `is_over` does before.

    Raises TargetError if it takes too long.
    """
    deadline = time.monotonic() + patience_s
    while not is_over():
        # A broker that is killed or starts answers late or with errors: then the condition does not hold.
        with (
            suppress(OSError, RequestFailed),
            ClusterClient(_serving(target), versions=_versions(condition)) as client,
        ):
            while _serving(target) and not is_over() and time.monotonic() < deadline:
                began = time.monotonic()
                if _CONDITIONS[condition](client, target, topic):
                    return True
                time.sleep(max(_POLL_S, _IDLE_SHARE * (time.monotonic() - began)))
        if time.monotonic() > deadline:
            raise TargetError(f"{target.name}: {topic} is still not {condition.value} after {patience_s} s")
        time.sleep(_POLL_S)
    return False


def _serving(target: Target) -> Mapping[int, Address]:
    """The brokers that run, but for one that is being stopped: it still answers, and may still lead."""
    return {broker: at for broker, at in target.addresses().items() if broker not in target.down}


def _versions(condition: Condition) -> Mapping[ApiKey, int]:
    return TIER_VERSIONS if condition in NEEDS_FILES else MappingProxyType({})


def _is_in_sync(client: ClusterClient, target: Target, topic: str) -> bool:
    """Whether all replicas are in their ISRs, as all brokers see it.

    A broker that has just started is out of all ISRs by its own registration at the latest.
    """
    for broker in _serving(target):
        rows = client.partitions(topic, asking=broker).values()
        if not rows or any(row.leader_id < 0 or set(row.isr_nodes) != set(row.replica_nodes) for row in rows):
            return False
    return True


def _is_led(client: ClusterClient, target: Target, topic: str) -> bool:
    """Whether all leaders answer; a leader that has been killed does not."""
    rows = client.partitions(topic)
    if not rows or any(row.leader_id not in _serving(target) for row in rows.values()):
        return False
    return len(client.offsets(topic, LATEST)) == len(rows)


def _is_tiered(client: ClusterClient, target: Target, topic: str) -> bool:
    active = _active_base_offsets(client, target, topic)
    tiered = client.offsets(topic, LATEST_TIERED)
    # -1 if nothing is tiered: then the active segment must be the first one.
    return bool(active) and all(tiered[index] >= base - 1 for index, base in active.items())


def _is_local_active_only(client: ClusterClient, target: Target, topic: str) -> bool:
    active = _active_base_offsets(client, target, topic)
    local = client.offsets(topic, EARLIEST_LOCAL)
    return bool(active) and all(local[index] >= base for index, base in active.items())


def _active_base_offsets(client: ClusterClient, target: Target, topic: str) -> dict[int, int]:
    """Return the base offset of the leader's active segment of each partition.

    Raises RequestFailed where there is no log yet.
    """
    assert target.nodes is not None, "the files of a cluster that the bench has not started are unknown"
    found = {}
    for index, row in client.partitions(topic).items():
        if row.leader_id < 0:
            raise RequestFailed(f"{topic}-{index} has no leader")
        files = (target.nodes.data_dir(row.leader_id) / f"{topic}-{index}").glob("*.log")
        offsets = [int(path.stem) for path in files]
        if not offsets:
            raise RequestFailed(f"{topic}-{index} has no segment at its leader, broker {row.leader_id}")
        found[index] = max(offsets)
    return found


_CONDITIONS: Final[Mapping[Condition, Callable[[ClusterClient, Target, str], bool]]] = {
    Condition.IN_SYNC: _is_in_sync,
    Condition.LED: _is_led,
    Condition.TIERED: _is_tiered,
    Condition.LOCAL_ACTIVE_ONLY: _is_local_active_only,
}
