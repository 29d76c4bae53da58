"""Bytes that clients received from brokers in other racks (KIP-392)."""

from collections.abc import Mapping

from bench.workloads.model import Workload

#: (target, run, phase, group of consumers, broker) -> bytes received.
Received = Mapping[tuple[str, int, str, int, int], float]


def cross_rack_shares(
    workload: Workload, received: Received, racks: Mapping[str, Mapping[int, str]]
) -> dict[tuple[str, int, str, int], float]:
    """The share of the bytes of each group of consumers with a rack that came from another one; no entry without bytes."""
    rack_of = {
        (phase.name, group): consumers.rack
        for phase in workload.phases
        for group, consumers in enumerate(phase.consumers)
        if consumers.rack
    }
    all_bytes: dict[tuple[str, int, str, int], float] = {}
    foreign: dict[tuple[str, int, str, int], float] = {}
    for (target, run, phase, group, broker), count in received.items():
        rack = rack_of.get((phase, group))
        known = racks.get(target, {})
        if rack is None or broker not in known:
            continue
        key = (target, run, phase, group)
        all_bytes[key] = all_bytes.get(key, 0.0) + count
        if known[broker] != rack:
            foreign[key] = foreign.get(key, 0.0) + count
    return {key: foreign.get(key, 0.0) / count for key, count in all_bytes.items() if count}
