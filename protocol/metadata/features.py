"""Which features a node can live with, and which it serves (KIP-584).

A feature is finalized at a level for the whole cluster. A controller refuses the registration of a broker
that does not claim that level, and clients read levels from ApiVersions as promises of what is served.
The two are not the same: a node on a folder that Kafka formatted must live with `group.version` 1, but
must not promise the protocol behind it (KIP-848) before it serves it.
"""

from typing import Final

#: Claimed at registration, as half-open ranges: Kafka 4.3.1's own. metadata.version 7 is 3.3-IV3, 30 is 4.3-IV0.
UNDERSTOOD_FEATURES: Final[dict[str, range]] = {
    "metadata.version": range(7, 31),
    "kraft.version": range(2),
    "eligible.leader.replicas.version": range(2),
    "group.version": range(2),
    "transaction.version": range(3),
    "share.version": range(2),
    "streams.version": range(2),
}

#: Told to clients, and what UpdateFeatures may set: whatever has no row here is served at level 0 only.
SERVED_FEATURES: Final[dict[str, range]] = {
    name: UNDERSTOOD_FEATURES[name]
    for name in ("metadata.version", "kraft.version", "eligible.leader.replicas.version")
}
