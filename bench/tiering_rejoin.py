"""KIP-405's test case 3: a broker with an empty disk rejoins the ISRs, with and without tiering.

    broker 1: leads      small, middle, large: tiered but for the active segment       full, huge: not tiered
    broker 2: follows    small, middle, large
    broker 3: follows                                                                   full, huge

Each is stopped, wiped and started: from when it has created a replica until that is in the ISR. `huge`, which is as large as
`large`, is copied once and then deleted, `full` in each run: a copy takes as long as its bytes, and a disk has to have room
for both of its replicas.

The topics are filled while their follower is down, by requests of one batch each: what they have is of no importance.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench.cluster_client import ClusterClient
from bench.clusters import Cluster
from bench.figures import Sample
from bench.tiering_clusters import LEADER, TIERED, TieredTopic, wipe
from bench.wire import RequestFailed, WireClient, produce_message
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.produce import ProduceResponse

#: Of `large` and `huge`; less at scales below 1.
_LARGEST_BYTES: Final = 16e9
_SEGMENT_BYTES: Final = 32 << 20
_BATCH_BYTES: Final = 1_000_000
#: A new segment for the tail: more than 99 % of the data are tiered, whatever their size.
_TAIL_SEGMENT_BYTES: Final = 1 << 20
_TAIL_BATCHES: Final = 500
_TAIL_BATCH_BYTES: Final = 1024
_SIZES: Final = {"small": 1 / 16, "middle": 1 / 4, "large": 1.0}
_POLL_S: Final = 0.002
_PATIENCE_S: Final = 900
_TIERED_FOLLOWER: Final = 2
_FULL_FOLLOWER: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    tiered: dict[str, TieredTopic]
    full: TieredTopic
    huge_s: float


#: What `prepare` has made, by the cluster's folder.
_prepared: dict[str, _Prepared] = {}


def prepare(cluster: Cluster, scale: float) -> None:
    """Fill the topics, copy the largest one that is not tiered, and wait until the others are tiered."""
    largest = _LARGEST_BYTES * min(1.0, scale)
    huge = _filled(cluster, {"huge": largest}, _FULL_FOLLOWER)
    huge_s = _rejoined(cluster, _FULL_FOLLOWER, huge)["huge"]
    huge["huge"].delete()
    full = _filled(cluster, {"full": largest * _SIZES["small"]}, _FULL_FOLLOWER)
    _rejoined(cluster, _FULL_FOLLOWER, full)
    sizes = {name: largest * size for name, size in _SIZES.items()}
    tiered = _filled(cluster, sizes, _TIERED_FOLLOWER, configs=TIERED)
    for topic in tiered.values():
        topic.wait_until_copied()
        topic.wait_until_tail_is_local()
    _rejoined(cluster, _TIERED_FOLLOWER, tiered)
    _prepared[str(cluster.folder)] = _Prepared(tiered=tiered, full=full["full"], huge_s=huge_s)


def _filled(
    cluster: Cluster, sizes: Mapping[str, float], follower: int, *, configs: Mapping[str, str] | None = None
) -> dict[str, TieredTopic]:
    """Topics of these sizes; their follower is stopped when this returns."""
    configs = {"segment.bytes": str(_SEGMENT_BYTES), "min.insync.replicas": "1", **(configs or {})}
    topics = {name: TieredTopic(cluster, name, configs, followers=[follower]) for name in sizes}
    _stop(cluster, follower, topics)
    for name, topic in topics.items():
        _fill(cluster, topic, int(sizes[name]))
    return topics


def _fill(cluster: Cluster, topic: TieredTopic, size_bytes: int) -> None:
    count = -(-size_bytes // _BATCH_BYTES)
    _produce(topic, count, batch_bytes=_BATCH_BYTES)
    topic.alter({"segment.bytes": str(_TAIL_SEGMENT_BYTES)})
    base_offset = topic.active_base_offset()
    while topic.active_base_offset() == base_offset:  # the leader has not applied the configuration yet
        _produce(topic, 1, batch_bytes=_TAIL_BATCH_BYTES)
        count += 1
    _produce(topic, _TAIL_BATCHES, batch_bytes=_TAIL_BATCH_BYTES)
    with cluster.client() as client:
        topic.check(client, count + _TAIL_BATCHES)


def _produce(topic: TieredTopic, count: int, *, batch_bytes: int) -> None:
    """Batches of one record each, two under way. Raises RequestFailed."""
    message = produce_message(topic.name, batch_bytes=batch_bytes, acks=1)
    with WireClient(topic.port) as one, WireClient(topic.port) as other:
        clients = [one, other]
        for number in range(count + len(clients)):
            client = clients[number % len(clients)]
            if number >= len(clients):
                answer = client.receive(ApiKey.PRODUCE, ProduceResponse)
                row = answer.responses[0].partition_responses[0]
                if row.error_code:
                    raise RequestFailed(f"{topic.name}: {ErrorCode(row.error_code).name}")
            if number < count:
                client.send(ApiKey.PRODUCE, message)


def rejoin(cluster: Cluster, _scale: float) -> Sample:
    """Seconds and bytes that both followers need."""
    prepared = _prepared[str(cluster.folder)]
    _stop(cluster, _TIERED_FOLLOWER, prepared.tiered)
    tiered = _rejoined(cluster, _TIERED_FOLLOWER, prepared.tiered)
    full = {"full": prepared.full}
    _stop(cluster, _FULL_FOLLOWER, full)
    full_s = _rejoined(cluster, _FULL_FOLLOWER, full)["full"]
    sample: Sample = {f"{name}_s": took_s for name, took_s in tiered.items()}
    full_bytes = prepared.full.local_bytes(_FULL_FOLLOWER)
    moved_bytes = prepared.tiered["large"].local_bytes(_TIERED_FOLLOWER)
    data_bytes = full_bytes / _SIZES["small"]
    return {
        **sample,
        "data_bytes": data_bytes,
        "full_s": full_s,
        "huge_s": prepared.huge_s,
        "moved_bytes": moved_bytes,
        "growth": tiered["large"] / tiered["small"],
        "speed_up": prepared.huge_s / tiered["large"],
        "fewer_bytes": data_bytes / max(1, moved_bytes),
    }


def _stop(cluster: Cluster, node_id: int, topics: Mapping[str, TieredTopic]) -> None:
    """Stop a broker, and wait until it is in no ISR of these topics."""
    cluster.stop_node(node_id)
    with cluster.client() as client:
        for topic in topics.values():
            client.wait_for_isr(topic.name, partitions=1, size=1, asking=LEADER)


def _rejoined(cluster: Cluster, node_id: int, topics: Mapping[str, TieredTopic]) -> dict[str, float]:
    """Wipe and start a broker that is stopped: the seconds of each topic."""
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
