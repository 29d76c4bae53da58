"""A broker that loses its disk: topics that it follows, and how long it takes to rejoin their ISRs.

The topics are filled while the follower is down, by requests of one batch each: what they have is of no
importance. The broker is wiped and started: from when it has created a replica until that is in the ISR.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Final

from ottla.bench.targets.cluster_client import ClusterClient
from ottla.bench.targets.clusters import Cluster, wipe
from ottla.bench.targets.tiering_clusters import LEADER, TieredTopic
from ottla.bench.targets.wire import RequestFailed, WireClient, produce_message
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import ProduceResponse

_SEGMENT_BYTES: Final = 32 << 20
_BATCH_BYTES: Final = 1_000_000
#: The segment size of the tail, which gets a new segment: more than 99 % of the data are tiered, whatever
#: their size.
_TAIL_SEGMENT_BYTES: Final = 1 << 20
_TAIL_BATCHES: Final = 500
_TAIL_BATCH_BYTES: Final = 1024
_POLL_S: Final = 0.002
_PATIENCE_S: Final = 900


def filled(
    cluster: Cluster,
    sizes: Mapping[str, float],
    follower: int,
    *,
    others: Sequence[int] = (),
    configs: Mapping[str, str] | None = None,
) -> dict[str, TieredTopic]:
    """Make topics of these sizes in bytes; their follower is stopped when this returns, other ones are in sync."""
    configs = {"segment.bytes": str(_SEGMENT_BYTES), "min.insync.replicas": "1", **(configs or {})}
    followers = [follower, *others]
    topics = {name: TieredTopic(cluster, name, configs, followers=followers) for name in sizes}
    stop(cluster, follower, topics)
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
    """Produce batches of one record each, two under way. Raises RequestFailed."""
    message = produce_message(topic.name, batch_bytes=batch_bytes)
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


def stop(cluster: Cluster, node_id: int, topics: Mapping[str, TieredTopic]) -> None:
    """Stop a broker, and wait until it is in no ISR of these topics."""
    cluster.stop_node(node_id)
    with cluster.client() as client:
        for topic in topics.values():
            client.wait_for_isr(topic.name, partitions=1, size=len(topic.replicas) - 1, asking=LEADER)


def rejoined(cluster: Cluster, node_id: int, topics: Mapping[str, TieredTopic]) -> dict[str, float]:
    """Wipe and start a broker that is stopped; return the seconds of each topic from its folder to its ISR."""
    wipe(cluster.data_dir(node_id))
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
