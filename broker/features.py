"""Which features this broker can run at which levels (KIP-584), told at registration and in ApiVersions.

A feature that has no row is one whose APIs are not served yet: a cluster in which it is finalized above
level 0 refuses this broker, instead of letting clients find out one request at a time.
"""

from typing import Final

#: Feature -> levels, as a half-open range. metadata.version 7 is 3.3-IV3, 30 is 4.3-IV0.
SUPPORTED_FEATURES: Final[dict[str, range]] = {
    "metadata.version": range(7, 31),
    "kraft.version": range(2),
    "eligible.leader.replicas.version": range(2),
    "group.version": range(1),
    "transaction.version": range(1),
    "share.version": range(1),
    "streams.version": range(1),
}
