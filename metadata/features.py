"""Features of a cluster: their levels, and which of them a node understands, serves and claims (KIP-584, KIP-1022).

A feature is finalized at a level for the whole cluster. A controller refuses the registration of a broker
that does not claim that level. Clients read levels from ApiVersions, and use the protocols of those levels.
The two differ: a node on a log directory that Kafka formatted must accept a finalized `group.version` 1, but
must not advertise the protocol of that level (KIP-848) before it serves it.

    understood   every level of Kafka 4.4.0: its records can be read, and its effects can be ignored
    served       advertised to clients in ApiVersions
    claimed      reported at registration: served levels, and all understood ones of a feature that is finalized
                 above 0 already. So no feature is turned on while a broker does not serve it, no broker is
                 refused registration, and a cluster that Kafka has formatted can go to its next release.

Source: MetadataVersion, Feature and the `*Version` classes of Kafka 4.4.0.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

METADATA_VERSION: Final = "metadata.version"
KRAFT_VERSION: Final = "kraft.version"
ELR_VERSION: Final = "eligible.leader.replicas.version"


class MetadataVersion(NamedTuple):
    """One level of metadata.version: its name, and whether it changes records."""

    #: Kafka's name of the level, as "3.5-IV2".
    name: str
    #: Whether its records differ from those of the level before: then a downgrade below it is refused.
    changes_records: bool

    @property
    def release(self) -> str:
        """The release that it belongs to, as "3.5"."""
        return self.name.partition("-")[0]


#: Level of metadata.version -> what it is; all that Kafka 4.4.0 has for production.
METADATA_VERSIONS: Final[Mapping[int, MetadataVersion]] = {
    7: MetadataVersion("3.3-IV3", changes_records=True),  # controlled shutdown in registrations
    8: MetadataVersion("3.4-IV0", changes_records=True),  # migration from ZooKeeper
    9: MetadataVersion("3.5-IV0", changes_records=False),  # tiered storage (KIP-405)
    10: MetadataVersion("3.5-IV1", changes_records=False),  # replica epochs in Fetch (KIP-903)
    11: MetadataVersion("3.5-IV2", changes_records=True),  # SCRAM credentials
    12: MetadataVersion("3.6-IV0", changes_records=False),  # no new epoch when an ISR shrinks (KAFKA-15021)
    13: MetadataVersion("3.6-IV1", changes_records=True),  # metadata transactions (KIP-868)
    14: MetadataVersion("3.6-IV2", changes_records=True),  # delegation tokens
    15: MetadataVersion("3.7-IV0", changes_records=True),  # registration of controllers (KIP-919)
    16: MetadataVersion("3.7-IV1", changes_records=False),  # reserved
    17: MetadataVersion("3.7-IV2", changes_records=True),  # log directories (KIP-858)
    18: MetadataVersion("3.7-IV3", changes_records=False),  # was planned for what became 23
    19: MetadataVersion("3.7-IV4", changes_records=False),  # a Fetch version (KIP-951)
    20: MetadataVersion("3.8-IV0", changes_records=False),
    21: MetadataVersion("3.9-IV0", changes_records=False),  # ListOffsets v9 (KIP-1005)
    22: MetadataVersion("4.0-IV0", changes_records=False),  # group.version
    23: MetadataVersion("4.0-IV1", changes_records=True),  # records of the ELR (KIP-966)
    24: MetadataVersion("4.0-IV2", changes_records=False),  # transaction.version (KIP-890)
    25: MetadataVersion("4.0-IV3", changes_records=False),  # ListOffsets v10 (KIP-1075)
    26: MetadataVersion("4.1-IV0", changes_records=False),  # the ELR in new clusters
    27: MetadataVersion("4.1-IV1", changes_records=False),  # a Fetch version (KIP-1166)
    28: MetadataVersion("4.2-IV0", changes_records=False),  # share groups in new clusters (KIP-932)
    29: MetadataVersion("4.2-IV1", changes_records=False),  # streams groups in new clusters (KIP-1071)
    30: MetadataVersion("4.3-IV0", changes_records=True),  # cordoned log directories (KIP-1066)
    31: MetadataVersion("4.4-IV0", changes_records=False),  # share.version 2 in new clusters
    32: MetadataVersion("4.4-IV1", changes_records=True),  # ACLs of address ranges
    33: MetadataVersion("4.4-IV2", changes_records=True),  # UnregisterController
}

FIRST_METADATA_VERSION: Final = min(METADATA_VERSIONS)
LATEST_METADATA_VERSION: Final = max(METADATA_VERSIONS)
#: Levels that both brokers and controllers check (the names are Kafka's "IBP");
#: `ottla.controller.metadata_log.record_versions` has those that only controllers check.
CONTROLLER_REGISTRATION_3_7_IV0: Final = 15
DIRECTORIES_3_7_IV2: Final = 17
CORDONED_DIRECTORIES_4_3_IV0: Final = 30
CIDR_ACLS_4_4_IV1: Final = 32
CONTROLLER_UNREGISTRATION_4_4_IV2: Final = 33


class FeatureLevel(NamedTuple):
    """One level above 0 of a feature: its default, and the levels of others that it needs."""

    #: The metadata.version from which new clusters start with this level.
    default_from: int
    #: Other features that must be at these levels or above.
    needs: Mapping[str, int] = {}


#: Feature -> its levels 1, 2, ...; all have a level 0 that means off.
FEATURE_LEVELS: Final[Mapping[str, tuple[FeatureLevel, ...]]] = {
    KRAFT_VERSION: (FeatureLevel(21),),
    "transaction.version": (FeatureLevel(24), FeatureLevel(24)),
    "group.version": (FeatureLevel(22),),
    ELR_VERSION: (FeatureLevel(26, {METADATA_VERSION: 23}),),
    "share.version": (FeatureLevel(28), FeatureLevel(31)),
    "streams.version": (FeatureLevel(29),),
}

#: Feature -> levels that a node accepts, half-open: those of Kafka 4.4.0.
UNDERSTOOD_FEATURES: Final[Mapping[str, range]] = {
    METADATA_VERSION: range(FIRST_METADATA_VERSION, LATEST_METADATA_VERSION + 1),
    **{name: range(len(levels) + 1) for name, levels in FEATURE_LEVELS.items()},
}

#: Advertised to clients; a feature without a row here is served at level 0 only.
SERVED_FEATURES: Final[Mapping[str, range]] = {
    name: UNDERSTOOD_FEATURES[name] for name in (METADATA_VERSION, KRAFT_VERSION, ELR_VERSION)
}


def claimed_features(finalized: Mapping[str, int]) -> dict[str, range]:
    """Return the levels of each feature that a broker claims at its registration, half-open.

    `finalized` has the finalized levels of the cluster.

    >>> claimed_features({})["group.version"], claimed_features({"group.version": 1})["group.version"]
    (range(0, 1), range(0, 2))
    """
    return {
        name: understood if finalized.get(name, 0) > 0 else SERVED_FEATURES.get(name, range(1))
        for name, understood in UNDERSTOOD_FEATURES.items()
    }


def missing_dependency(feature: str, level: int, levels: Mapping[str, int]) -> str | None:
    """The reason why a feature (not metadata.version) cannot have a level, given the others' `levels`; None
    if it can.

    Source: Feature.validateVersion.
    """
    if level < 1:
        return None
    first = METADATA_VERSIONS[FIRST_METADATA_VERSION]
    if levels.get(METADATA_VERSION, 0) < FIRST_METADATA_VERSION:
        return (
            f"{feature} could not be set to {level} because it depends on "
            f"{METADATA_VERSION}={FIRST_METADATA_VERSION} ({first.name})"
        )
    for name, needed in FEATURE_LEVELS[feature][level - 1].needs.items():
        if levels.get(name, 0) < needed:
            return f"{feature} could not be set to {level} because it depends on {name} level {needed}"
    return None
