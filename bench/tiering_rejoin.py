"""KIP-405's test case 3: a broker with an empty disk rejoins the ISRs, with and without tiering.

    broker 1: leads      small, middle, large: tiered but for the active segment       full, huge: not tiered
    broker 2: follows    small, middle, large
    broker 3: follows                                                                   full, huge

Each is stopped, wiped and started: from when it has created a replica until that is in the ISR. `huge`, which
is as large as `large`, is copied once and then deleted, `full` in each run: a copy takes as long as its
bytes, and a disk has to have room for both of its replicas. It takes minutes, and is compared with Ottla's
own figures only: Kafka has no `huge`.
"""

from dataclasses import dataclass
from typing import Final

from ottla.bench.figures import OTTLA, Sample
from ottla.bench.targets.clusters import Cluster
from ottla.bench.targets.tiering_clusters import TIERED, TieredTopic
from ottla.bench.targets.wiped_broker import filled, rejoined, stop

#: The bytes of `large` and `huge`; less at scales below 1.
_LARGEST_BYTES: Final = 16e9
_SIZES: Final = {"small": 1 / 16, "middle": 1 / 4, "large": 1.0}
_TIERED_FOLLOWER: Final = 2
_FULL_FOLLOWER: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    tiered: dict[str, TieredTopic]
    full: TieredTopic
    #: The sample of `huge`, taken once; none for Kafka.
    huge: Sample


#: The topics that `prepare` has made, by the cluster's folder.
_prepared: dict[str, _Prepared] = {}


def prepare(cluster: Cluster, scale: float) -> None:
    """Fill the topics, copy the largest one that is not tiered, and wait until the others are tiered."""
    largest = _LARGEST_BYTES * min(1.0, scale)
    huge = _copied_in_full(cluster, largest) if cluster.name == OTTLA else {}
    full = filled(cluster, {"full": largest * _SIZES["small"]}, _FULL_FOLLOWER)
    rejoined(cluster, _FULL_FOLLOWER, full)
    sizes = {name: largest * size for name, size in _SIZES.items()}
    tiered = filled(cluster, sizes, _TIERED_FOLLOWER, configs=TIERED)
    for topic in tiered.values():
        topic.wait_until_copied()
        topic.wait_until_tail_is_local()
    rejoined(cluster, _TIERED_FOLLOWER, tiered)
    _prepared[str(cluster.folder)] = _Prepared(tiered=tiered, full=full["full"], huge=huge)


def _copied_in_full(cluster: Cluster, size_bytes: float) -> Sample:
    topics = filled(cluster, {"huge": size_bytes}, _FULL_FOLLOWER)
    took_s = rejoined(cluster, _FULL_FOLLOWER, topics)["huge"]
    data_bytes = topics["huge"].local_bytes(_FULL_FOLLOWER)
    topics["huge"].delete()
    return {"huge_s": took_s, "data_bytes": data_bytes}


def rejoin(cluster: Cluster, _scale: float) -> Sample:
    """Measure the seconds and bytes that both followers need."""
    prepared = _prepared[str(cluster.folder)]
    stop(cluster, _TIERED_FOLLOWER, prepared.tiered)
    tiered = rejoined(cluster, _TIERED_FOLLOWER, prepared.tiered)
    full = {"full": prepared.full}
    stop(cluster, _FULL_FOLLOWER, full)
    full_s = rejoined(cluster, _FULL_FOLLOWER, full)["full"]
    sample: Sample = {f"{name}_s": took_s for name, took_s in tiered.items()}
    moved_bytes = prepared.tiered["large"].local_bytes(_TIERED_FOLLOWER)
    sample |= {"full_s": full_s, "moved_bytes": moved_bytes, "growth": tiered["large"] / tiered["small"]}
    if huge := prepared.huge:
        sample |= huge
        sample["speed_up"] = huge["huge_s"] / tiered["large"]
        sample["fewer_bytes"] = huge["data_bytes"] / max(1, moved_bytes)
    return sample
