"""In which versions records are written: every type at every metadata.version, as Kafka 4.3.1 writes it."""

import inspect
from uuid import UUID

import pytest

from ottla.controller.metadata_log.record_versions import version_of
from ottla.metadata import records as r
from ottla.metadata.features import METADATA_VERSIONS

TYPES = [
    kind
    for _, kind in inspect.getmembers(r, inspect.isclass)
    if issubclass(kind, r.MetadataRecord) and kind is not r.MetadataRecord
]
#: RegisterBroker, Partition and PartitionChange from this metadata.version on.
STEPS = {7: (1, 0), 8: (2, 0), 17: (3, 1), 23: (3, 2), 30: (4, 2)}


@pytest.mark.parametrize("metadata_version", METADATA_VERSIONS)
def test_every_type_at(metadata_version: int):
    register, partition = STEPS[max(step for step in STEPS if step <= metadata_version)]
    expected = {
        r.RegisterBrokerRecord: register,
        r.PartitionRecord: partition,
        r.PartitionChangeRecord: partition,
    }
    assert len(TYPES) == 27
    for kind in TYPES:
        version = version_of(kind(), metadata_version=metadata_version)
        assert version == expected.get(kind, 0), kind
        assert kind.__versions__.first <= version <= kind.__versions__.last


@pytest.mark.parametrize(
    ("change", "version"),
    [
        (r.BrokerRegistrationChangeRecord(fenced=1), 0),
        (r.BrokerRegistrationChangeRecord(in_controlled_shutdown=1), 1),
        (r.BrokerRegistrationChangeRecord(log_dirs=[UUID(int=9)]), 2),
        (r.BrokerRegistrationChangeRecord(cordoned_log_dirs=[]), 3),
    ],
)
def test_a_registration_change_has_the_first_version_that_can_say_it(
    change: r.BrokerRegistrationChangeRecord, version: int
):
    for metadata_version in METADATA_VERSIONS:
        assert version_of(change, metadata_version=metadata_version) == version
