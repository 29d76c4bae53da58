"""KIP-405's test case 3: a broker with an empty disk rejoins the ISRs, with and without tiering.

    broker 1: leads      small, middle, large: tiered but for the active segment       full: as large as large, not tiered
    broker 2: follows    small, middle, large
    broker 3: follows                                                                   full

Each is stopped, wiped and started: from when it has created a replica until that is in the ISR.
"""

import time
from dataclasses import dataclass
from typing import Final

from bench.cluster_client import ClusterClient
from bench.clusters import Cluster
from bench.figures import Sample
from bench.replication_loads import RECORD_BYTES, produce
from bench.tiering_clusters import LEADER, TIERED, TieredTopic, wipe

#: Of `large` and `full`, at scale 1.
_MEGABYTES: Final = 2000
_SEGMENT_BYTES: Final = 32 << 20
#: A new segment for the tail: more than 99 % of the data are tiered, whatever their size.
_TAIL_SEGMENT_BYTES: Final = 1 << 20
_TAIL_RECORDS: Final = 500
_SIZES: Final = {"small": 1 / 16, "middle": 1 / 4, "large": 1.0}
_POLL_S: Final = 0.002
_PATIENCE_S: Final = 300
_TIERED_FOLLOWER: Final = 2
_FULL_FOLLOWER: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Topics:
    tiered: dict[str, TieredTopic]
    full: TieredTopic


#: What `prepare` has made, by the cluster's folder.
_prepared: dict[str, _Topics] = {}


def prepare(cluster: Cluster, scale: float) -> None:
    """Fill the topics, and wait until they are tiered."""
    topics = _Topics(
        tiered={
            name: _filled(cluster, f"tiered-{name}", scale * size, is_tiered=True)
            for name, size in _SIZES.items()
        },
        full=_filled(cluster, "full", scale, is_tiered=False),
    )
    for topic in topics.tiered.values():
        topic.wait_until_copied()
        topic.wait_until_tail_is_local()
    _prepared[str(cluster.folder)] = topics


def _filled(cluster: Cluster, load: str, scale: float, *, is_tiered: bool) -> TieredTopic:
    configs = {"segment.bytes": str(_SEGMENT_BYTES), **(TIERED if is_tiered else {})}
    follower = _TIERED_FOLLOWER if is_tiered else _FULL_FOLLOWER
    topic = TieredTopic(cluster, load, configs, followers=[follower])
    count = int(_MEGABYTES * 1e6 * scale) // RECORD_BYTES
    with cluster.client() as client:
        produce(cluster, topic.name, count=count)
        topic.alter({"segment.bytes": str(_TAIL_SEGMENT_BYTES)})
        base_offset = topic.active_base_offset()
        while topic.active_base_offset() == base_offset:  # the leader has not applied the configuration yet
            produce(cluster, topic.name, count=1)
            count += 1
        produce(cluster, topic.name, count=_TAIL_RECORDS)
        topic.check(client, count + _TAIL_RECORDS)
    return topic


def rejoin(cluster: Cluster, scale: float) -> Sample:
    """Seconds and bytes that both followers need."""
    topics = _prepared[str(cluster.folder)]
    sample: Sample = {}
    tiered = _rejoined(cluster, _TIERED_FOLLOWER, topics.tiered)
    full_s = _rejoined(cluster, _FULL_FOLLOWER, {"full": topics.full})["full"]
    for name, took_s in tiered.items():
        sample[f"{name}_s"] = took_s
    moved = {name: topic.local_bytes(_TIERED_FOLLOWER) for name, topic in topics.tiered.items()}
    full_bytes = topics.full.local_bytes(_FULL_FOLLOWER)
    return {
        **sample,
        "data_bytes": full_bytes,
        "full_s": full_s,
        "moved_bytes": moved["large"],
        "growth": tiered["large"] / tiered["small"],
        "speed_up": full_s / tiered["large"],
        "fewer_bytes": full_bytes / max(1, moved["large"]),
    }


def _rejoined(cluster: Cluster, node_id: int, topics: dict[str, TieredTopic]) -> dict[str, float]:
    """Stop, wipe and start a broker: the seconds of each topic."""
    cluster.stop_node(node_id)
    with cluster.client() as client:
        for topic in topics.values():
            client.wait_for_isr(topic.name, partitions=1, size=1, asking=LEADER)
    wipe(cluster, node_id)
    deadline = time.monotonic() + _PATIENCE_S
    folders = {name: cluster.node(node_id).data_dir / f"{topic.name}-0" for name, topic in topics.items()}
    created: dict[str, float] = {}
    joined: dict[str, float] = {}
    cluster.spawn(node_id)
    with cluster.client() as client:
        while len(joined) < len(topics):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{cluster.name}: broker {node_id} is in the ISR of {', '.join(joined)} only"
                )
            for name, topic in topics.items():
                if name not in created and folders[name].exists():
                    created[name] = time.perf_counter()
                if name in created and name not in joined and _is_in_sync(client, topic, node_id):
                    joined[name] = time.perf_counter()
            time.sleep(_POLL_S)
    cluster.wait_until_answering(node_id)
    return {name: joined[name] - created[name] for name in topics}


def _is_in_sync(client: ClusterClient, topic: TieredTopic, node_id: int) -> bool:
    return node_id in client.partitions(topic.name, asking=LEADER)[0].isr_nodes
