"""Versions of metadata records: the oldest software that the metadata.version admits must be able to read a record.

Some record types of Kafka 4.4.0 are unknown to software of older metadata.versions: a decision that writes one checks
the level first, with the names below and those in `ottla.metadata.features`.

Source: MetadataVersion of Kafka 4.3.1 (in 4.4.0 the versions are the same) and the callers of its record constructors.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from ottla.metadata.features import CORDONED_DIRECTORIES_4_3_IV0, DIRECTORIES_3_7_IV2
from ottla.metadata.records import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)

#: Levels of metadata.version that introduced a change (the names are Kafka's "IBP").
MIGRATION_3_4_IV0: Final = 8
SCRAM_3_5_IV2: Final = 11
ISR_SHRINK_KEEPS_EPOCH_3_6_IV0: Final = 12
TRANSACTIONS_3_6_IV1: Final = 13
DELEGATION_TOKENS_3_6_IV2: Final = 14
ELR_4_0_IV1: Final = 23


def version_of(record: MetadataRecord, *, metadata_version: int) -> int:
    """The version to encode `record` in, in a cluster of this metadata.version."""
    choose = _CHOICES.get(type(record))
    return 0 if choose is None else choose(record, metadata_version)


def _register_broker(record: RegisterBrokerRecord, metadata_version: int) -> int:
    if metadata_version >= CORDONED_DIRECTORIES_4_3_IV0:
        return 4
    if metadata_version >= DIRECTORIES_3_7_IV2:
        return 3
    return 2 if metadata_version >= MIGRATION_3_4_IV0 else 1


def _partition(record: PartitionRecord | PartitionChangeRecord, metadata_version: int) -> int:
    if metadata_version >= ELR_4_0_IV1:
        return 2
    return 1 if metadata_version >= DIRECTORIES_3_7_IV2 else 0


def _registration_change(record: BrokerRegistrationChangeRecord, metadata_version: int) -> int:
    if record.cordoned_log_dirs is not None:
        return 3
    if record.log_dirs:
        return 2
    return 1 if record.in_controlled_shutdown else 0


_CHOICES: Final[Mapping[type[MetadataRecord], Callable[[Any, int], int]]] = {
    RegisterBrokerRecord: _register_broker,
    PartitionRecord: _partition,
    PartitionChangeRecord: _partition,
    BrokerRegistrationChangeRecord: _registration_change,
}
