"""Bytes that clients received from brokers in other racks (KIP-392)."""

from collections.abc import Mapping

from ottla.bench.aggregation.loads import loads_of
from ottla.bench.generators.rows import Role
from ottla.bench.workloads.model import Workload

#: (target, run, phase, `consumer-<group>`, broker) -> bytes received.
Received = Mapping[tuple[str, int, str, str, int], float]


def cross_rack_shares(
    workload: Workload, received: Received, racks: Mapping[str, Mapping[int, str]]
) -> dict[tuple[str, int, str, str], float]:
    """Return, for each group of consumers with a rack, the share of its bytes that came from another rack.

    There is no entry without bytes.
    """
    rack_of = {
        (phase.name, load.clients): phase.consumers[load.group].rack
        for phase in workload.phases
        for load in loads_of(phase)
        if load.role is Role.CONSUMER
    }
    all_bytes: dict[tuple[str, int, str, str], float] = {}
    foreign: dict[tuple[str, int, str, str], float] = {}
    for (target, run, phase, clients, broker), count in received.items():
        rack = rack_of.get((phase, clients), "")
        known = racks.get(target, {})
        if not rack or broker not in known:
            continue
        key = (target, run, phase, clients)
        all_bytes[key] = all_bytes.get(key, 0.0) + count
        if known[broker] != rack:
            foreign[key] = foreign.get(key, 0.0) + count
    return {key: foreign.get(key, 0.0) / count for key, count in all_bytes.items() if count}
