"""UpdateFeatures: which levels are refused, in whose name, and what is written for those that are not."""

import pytest

from ottla.controller.features import MOST_UPDATES, update_features
from ottla.metadata.features import METADATA_VERSIONS, UNDERSTOOD_FEATURES, claimed_features
from ottla.metadata.image import ConfigResource, ConfigResourceType
from ottla.metadata.records import (
    BrokerFeature,
    ConfigRecord,
    ControllerFeature,
    FeatureLevelRecord,
    NoOpRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.protocol.refusals import refuse
from ottla.stories.elections.machine import ELR, Machine

UPGRADE, SAFE, UNSAFE = 1, 2, 3


def update(
    machine: Machine, *updates: tuple[str, int, int], validate_only: bool = False, is_v0: bool = False
) -> UpdateFeaturesResponse:
    request = UpdateFeaturesRequest(
        feature_updates=[
            FeatureUpdateKey(
                feature=name,
                max_version_level=level,
                upgrade_type=UPGRADE if is_v0 else kind,
                allow_downgrade=is_v0 and kind != UPGRADE,
            )
            for name, level, kind in updates
        ],
        validate_only=validate_only,
    )
    try:
        return machine.do(update_features(machine.state, request))
    except KafkaError as error:
        return refuse(request, error)


def invalid(name: str, level: int, reason: str) -> str:
    return f"Invalid update version {level} for feature {name}. {reason}"


TYPE = "The controller does not support the given upgrade type."
NEGATIVE = "A feature version cannot be less than 0."
UP = (
    "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
    "downgrade."
)
NEWER = "Can't downgrade to a newer version."
LOSS = "Refusing to perform the requested downgrade because it might delete metadata information."


# KIP-584
@pytest.mark.parametrize(
    ("name", "level", "kind", "why"),
    [
        ("metadata.version", 33, UPGRADE, None),
        ("metadata.version", 34, UPGRADE, "Local controller 1 only supports versions 7-33"),
        ("metadata.version", 6, SAFE, "Local controller 1 only supports versions 7-33"),
        ("metadata.version", 0, SAFE, "Local controller 1 only supports versions 7-33"),
        ("metadata.version", 29, UPGRADE, UP),
        ("metadata.version", -1, SAFE, NEGATIVE),
        ("group.version", 1, UPGRADE, None),
        ("group.version", 2, UPGRADE, "Local controller 1 only supports versions 0-1"),
        ("transaction.version", 2, UPGRADE, None),
        ("transaction.version", 2, SAFE, NEWER),
        ("share.version", 1, UPGRADE, None),
        ("streams.version", 1, UPGRADE, None),
        ("streams.version", 0, UPGRADE, None),
        ("nonsense", 1, UPGRADE, "Local controller 1 does not support this feature."),
        ("", 1, UPGRADE, "Local controller 1 does not support this feature."),
        ("nonsense", 0, UPGRADE, "Feature nonsense not found."),
        (ELR, 0, UPGRADE, UP),
        (ELR, 0, SAFE, None),
        (ELR, 0, UNSAFE, None),
        (ELR, 1, 0, TYPE),
        (ELR, 1, 9, TYPE),
    ],
)
def test_which_levels_are_refused(name: str, level: int, kind: int, why: str | None):
    machine = Machine()
    response = update(machine, (name, level, kind))
    if why is None:
        assert (response.error_code, response.error_message) == (ErrorCode.none, None)
        assert [row.feature for row in response.results] == [name]
        assert machine.state.image.features.get(name, 0) == level
    else:
        assert response.error_code == ErrorCode.invalid_update_version
        assert response.error_message == (
            "The update failed for all features since the following feature had an error: "
            + invalid(name, level, why)
        )
        assert response.results == []


@pytest.mark.parametrize("current", METADATA_VERSIONS)
def test_downgrades_of_metadata_version_stop_where_records_changed(current: int):
    for level in range(7, current):
        is_lossy = any(METADATA_VERSIONS[step].changes_records for step in range(level + 1, current + 1))
        for kind, why in (
            (SAFE, LOSS),
            (UNSAFE, "Unsafe metadata downgrade is not supported in this version."),
        ):
            machine = Machine(elr=False, metadata_version=current)
            response = update(machine, ("metadata.version", level, kind))
            assert machine.state.metadata_version == (current if is_lossy else level)
            if is_lossy:
                assert response.error_message.endswith(
                    f"Unsupported metadata.version downgrade from {current} to {level}. {why}"
                )


def test_the_steps_that_changed_records_are_kafkas():
    # MetadataVersion of 4.4.0: didMetadataChange.
    changed = [level for level, version in METADATA_VERSIONS.items() if version.changes_records]
    assert changed == [7, 8, 11, 13, 14, 15, 17, 23, 30, 32, 33]
    assert list(METADATA_VERSIONS) == list(range(7, 34))


def test_version_0_says_by_a_flag_that_a_downgrade_is_meant():
    machine = Machine()
    assert update(machine, (ELR, 0, UPGRADE), is_v0=True).error_code == ErrorCode.invalid_update_version
    assert update(machine, (ELR, 0, SAFE), is_v0=True).error_code == ErrorCode.none
    assert not machine.state.is_elr_enabled


# KIP-1022
def test_features_that_need_others():
    machine = Machine(elr=False, metadata_version=22)
    refused = update(machine, (ELR, 1, UPGRADE))
    why = f"{ELR} could not be set to 1 because it depends on metadata.version level 23"
    assert refused.error_message.endswith(invalid(ELR, 1, why))
    # Both in one request hold together.
    assert update(machine, (ELR, 1, UPGRADE), ("metadata.version", 23, UPGRADE)).error_code == 0
    assert machine.state.is_elr_enabled


def test_all_updates_or_none():
    machine = Machine()
    refused = update(machine, (ELR, 0, SAFE), ("nonsense", 1, UPGRADE))
    assert refused.error_code == ErrorCode.invalid_update_version
    assert update(machine, (ELR, 0, SAFE), (ELR, 0, SAFE)).error_code == ErrorCode.invalid_request
    assert update(machine, (ELR, 0, SAFE), validate_only=True).error_code == ErrorCode.none
    assert machine.state.is_elr_enabled
    assert update(machine).error_code == ErrorCode.none


def test_enabling_the_elr_makes_min_insync_replicas_one_for_all():
    machine = Machine(elr=False, static_configs={"min.insync.replicas": "2"})
    machine.replay(ConfigRecord(resource_type=4, resource_name="1", name="min.insync.replicas", value="3"))
    before = len(machine.log)
    assert update(machine, (ELR, 1, UPGRADE), ("group.version", 1, UPGRADE)).error_code == ErrorCode.none
    image = machine.state.image
    assert image.config(ConfigResource(ConfigResourceType.BROKER, "1")) == {}
    assert image.config(ConfigResource(ConfigResourceType.BROKER, "")) == {"min.insync.replicas": "2"}
    assert [type(record) for record in machine.log[before:]] == [ConfigRecord] * 2 + [FeatureLevelRecord] * 2


# -- the other nodes -----------------------------------------------------------------------------------


def register(machine: Machine, broker_id: int, **levels: tuple[int, int]) -> None:
    features = [
        BrokerFeature(name=name.replace("_", "."), min_supported_version=low, max_supported_version=high)
        for name, (low, high) in levels.items()
    ]
    machine.replay(
        RegisterBrokerRecord(broker_id=broker_id, broker_epoch=len(machine.log), features=features)
    )


def register_controller(machine: Machine, controller_id: int, **levels: tuple[int, int]) -> None:
    features = [
        ControllerFeature(name=name.replace("_", "."), min_supported_version=low, max_supported_version=high)
        for name, (low, high) in levels.items()
    ]
    machine.replay(RegisterControllerRecord(controller_id=controller_id, features=features))


def test_a_broker_that_cannot_is_in_the_way():
    machine = Machine(elr=False, metadata_version=23)
    register(machine, 4, metadata_version=(7, 29), group_version=(0, 1))
    register(machine, 2, metadata_version=(7, 30))
    refused = update(machine, ("metadata.version", 30, UPGRADE))
    assert refused.error_message.endswith("Broker 4 only supports versions 7-29")
    assert update(machine, ("metadata.version", 29, UPGRADE)).error_code == ErrorCode.none
    refused = update(machine, ("group.version", 1, UPGRADE))
    assert refused.error_message.endswith("Broker 2 does not support this feature.")


def test_controllers_count_from_the_metadata_version_with_their_registrations_on():
    for level, why in ((14, None), (15, "Controller 3 only supports versions 7-15")):
        machine = Machine(elr=False, metadata_version=level)
        register_controller(machine, 3, metadata_version=(7, 15))
        refused = update(machine, ("metadata.version", 17, UPGRADE))
        assert (refused.error_message or "").endswith(why or "")
        assert machine.state.metadata_version == (17 if why is None else level)


class Layer:
    """A Raft layer with three voters that moves to kraft.version 1 when it is asked to."""

    voter_ids = frozenset({1, 2, 3})

    def __init__(self, refuses: KafkaError | None = None) -> None:
        self.version = 0
        self._refuses = refuses

    def check_upgrade(self, level: int) -> None:
        if self._refuses:
            raise self._refuses

    def upgrade(self, level: int) -> None:
        self.version = level


def test_a_voter_that_has_not_registered_is_in_the_way():
    machine = Machine(elr=False)
    machine.state.kraft = Layer()
    register_controller(machine, 2, group_version=(0, 1))
    refused = update(machine, ("group.version", 1, UPGRADE))
    assert refused.error_message.endswith("controller 3 has not registered, and may not support this feature")
    register_controller(machine, 3, group_version=(0, 1))
    assert update(machine, ("group.version", 1, UPGRADE)).error_code == ErrorCode.none


def test_kraft_version_is_changed_by_the_raft_layer():
    machine = Machine()
    layer = machine.state.kraft = Layer()
    for voter_id in (2, 3):
        register_controller(machine, voter_id, kraft_version=(0, 1))
    assert update(machine, ("kraft.version", 1, UPGRADE), validate_only=True).error_code == ErrorCode.none
    assert layer.version == 0
    assert update(machine, ("kraft.version", 1, UPGRADE)).error_code == ErrorCode.none
    assert (layer.version, machine.log[-1]) == (1, NoOpRecord())
    refused = update(machine, ("kraft.version", 0, SAFE))
    assert refused.error_message.endswith("Can't downgrade the version of this feature.")
    before = len(machine.log)
    assert update(machine, ("kraft.version", 1, SAFE)).error_code == ErrorCode.none
    assert len(machine.log) == before


def test_a_quorum_that_cannot_change_says_so():
    machine = Machine()
    refused = update(machine, ("kraft.version", 1, UPGRADE), (ELR, 0, SAFE))
    assert refused.error_code == ErrorCode.invalid_update_version
    assert machine.state.is_elr_enabled


def test_a_broker_claims_what_it_serves_and_what_is_finalized_already():
    claimed = claimed_features({"share.version": 1, "group.version": 0, "unheard.of": 7})
    assert claimed.keys() == UNDERSTOOD_FEATURES.keys()
    assert claimed["metadata.version"] == range(7, 34)
    assert claimed["share.version"] == range(3)  # level 2, which Kafka 4.4 finalizes in such a cluster, too
    assert claimed["group.version"] == claimed["transaction.version"] == range(1)
    for name, levels in claimed.items():
        assert levels.start == UNDERSTOOD_FEATURES[name].start
        assert levels.stop <= UNDERSTOOD_FEATURES[name].stop


@pytest.mark.parametrize("count", [MOST_UPDATES, MOST_UPDATES + 1, 3 * MOST_UPDATES])
def test_more_features_than_there_can_be_are_refused_before_each_is_checked(count: int) -> None:
    answer = update(Machine(), *((f"f{number}", 1, UPGRADE) for number in range(count)))
    is_too_many = count > MOST_UPDATES
    assert ErrorCode(answer.error_code) is (
        ErrorCode.invalid_request if is_too_many else ErrorCode.invalid_update_version
    )
    assert len(UNDERSTOOD_FEATURES) < MOST_UPDATES
