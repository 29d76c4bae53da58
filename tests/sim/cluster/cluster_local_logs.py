"""Clusters whose followers start after the tiered records and whose elections prefer local data (KIP-1023,
draft KIP-1303).

| invariant | what must hold |
| --- | --- |
| EventuallyLocalLogsAreKnown | at the end the controllers have the local log of each member of an ISR, |
|  | as elections distinguish them |
| NothingIsReported | where the preference has always been off, no partition has a local log; |
|  | those of a topic whose tiering was switched off stay, and have no effect |
"""

from collections.abc import Container, Iterable
from random import Random

from cluster_machine import Machine

from ottla.metadata.image import MetadataImage
from ottla.replication.local_log_reports import is_unreported

_ELECTION = "leader.election"


def tier_aware_settings(name: str, seed: int) -> dict[str, object]:
    """Settings of all nodes of a story: of four seeds one has none, the others the first draft of KIP-1303,
    its redraft, or both.
    """
    random = Random(f"local logs {name} {seed}")
    early = {
        f"{_ELECTION}.prefer.early.local.log.start.offset": "true",
        f"{_ELECTION}.local.log.start.offset.threshold": random.choice((0, 5, 20)),
    }
    eligible = {
        f"{_ELECTION}.eligible.local.log.bytes": random.choice((0, 500, 900)),
        f"{_ELECTION}.eligible.local.log.ms": random.choice((-1, 500, 2000)),
    }
    preference = ({}, early, eligible, early | eligible)[seed % 4]
    return {"follower.fetch.last.tiered.offset.enable": "true", **preference} if preference else {}


def unreported(machines: Iterable[Machine], image: MetadataImage, switched: Container[str]) -> str | None:
    """The first violation of the final invariants; None: there is none. `switched` are topics whose tiering
    changes."""
    for machine in machines:
        for partition in () if machine.broker is None else machine.broker.replicas.partitions():
            topic = image.topics_by_id.get(partition.topic_id)
            known = None if topic is None else topic.partitions.get(partition.topic_partition.partition)
            if known is None:
                continue
            log, reported = partition.log, dict(known.local_logs)
            preference = log.files.leader_preference
            if preference is None:
                if reported and partition.topic_partition.topic not in switched:
                    return f"NothingIsReported: {partition}: {reported}"
            elif machine.node_id in known.isr:
                local_log = log.local_log
                if local_log is None or is_unreported(
                    local_log,
                    reported.get(machine.node_id),
                    eligible_bytes=preference.eligible_local_bytes,
                ):
                    return (
                        f"EventuallyLocalLogsAreKnown: {partition} on {machine}: {local_log}, not {reported}"
                    )
    return None
