"""Feature levels: what the cluster as a whole may use, finalized in the metadata log (KIP-584, KIP-1022).

A feature is finalized at a level once every node can run at it. Clients read the levels from ApiVersions
and use what they promise, so a new cluster only starts with what is served:

| feature | level | why |
|---|---|---|
| metadata.version | 30 (4.3-IV0) | all records of Kafka 4.3.1 are read and written |
| eligible.leader.replicas.version | 1 | the controller keeps the ELR (KIP-966) |
| kraft.version | 0 | the one voter is this node; 1 where a controller listener is given: voters then stand in the log (KIP-853) |
| group, transaction, share, streams version | 0 | their APIs are not served yet; 0 is never written |

Source: MetadataVersion, FeatureControlManager and Feature of Kafka 4.3.1.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from controller.configs import elr_safety_records
from controller.result import Result
from controller.state import ClusterState
from protocol.errors import ErrorCode, FeatureUpdateFailed, InvalidRequest, KafkaError
from protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from protocol.metadata.features import SERVED_FEATURES, UNDERSTOOD_FEATURES
from protocol.metadata.image import METADATA_VERSION
from protocol.metadata.records import FeatureLevelRecord, MetadataRecord

KRAFT_VERSION: Final = "kraft.version"
ELR_VERSION: Final = "eligible.leader.replicas.version"

#: Levels that UpdateFeatures may set: those that are served, and 0 for what is only understood.
SUPPORTED_LEVELS: Final[dict[str, range]] = {
    name: SERVED_FEATURES.get(name, range(1)) for name in UNDERSTOOD_FEATURES
}

#: What a new cluster starts with. kraft.version is no metadata record: it stands in the log's control records.
DEFAULT_LEVELS: Final[dict[str, int]] = {METADATA_VERSION: 30, ELR_VERSION: 1}

_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3
#: metadata.version from which on the ELR can be enabled (4.0-IV1).
_ELR_METADATA_VERSION: Final = 23
#: Steps of metadata.version that changed the records, so that no downgrade passes them (up to 4.3-IV0).
_LOSSY_STEPS: Final = frozenset({8, 11, 13, 14, 15, 17, 23, 30})


def update_features(state: ClusterState, request: UpdateFeaturesRequest) -> Result[UpdateFeaturesResponse]:
    """Finalize other levels, all of the request's or none (KIP-584; FeatureControlManager.updateFeatures)."""
    records: list[MetadataRecord] = []
    wanted = dict(state.image.features)
    try:
        for update in request.feature_updates:
            _check(state, update)
            if update.feature == ELR_VERSION and update.max_version_level:
                records += elr_safety_records(state)
            wanted[update.feature] = update.max_version_level
            records.append(FeatureLevelRecord(name=update.feature, feature_level=update.max_version_level))
        if len({update.feature for update in request.feature_updates}) != len(request.feature_updates):
            raise InvalidRequest("A feature is updated twice in one request.")
        _check_dependencies(wanted)
    except KafkaError as error:
        return Result(response=refusal(error, request.feature_updates))
    return Result(
        records=() if request.validate_only else records,
        response=UpdateFeaturesResponse(
            results=[
                UpdatableFeatureResult(feature=update.feature, error_code=ErrorCode.none, error_message=None)
                for update in request.feature_updates
            ]
        ),
    )


def refusal(error: KafkaError, updates: Iterable[FeatureUpdateKey]) -> UpdateFeaturesResponse:
    """The answer to a request that changes nothing; version 2 has only the error of the whole."""
    return UpdateFeaturesResponse(
        error_code=error.code,
        error_message=str(error),
        results=[
            UpdatableFeatureResult(feature=update.feature, error_code=error.code, error_message=str(error))
            for update in updates
        ],
    )


def _check(state: ClusterState, update: FeatureUpdateKey) -> None:
    name, level = update.feature, update.max_version_level
    current = state.image.features.get(name, 0)
    upgrade_type = (
        _SAFE_DOWNGRADE if update.allow_downgrade else update.upgrade_type
    )  # the former is version 0's
    if upgrade_type not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
        raise InvalidRequest(f"Upgrade type {upgrade_type} of feature {name} is unknown.")
    if name == KRAFT_VERSION:
        raise FeatureUpdateFailed(f"{KRAFT_VERSION} is decided when the metadata log is formatted.")
    if level < 0 or (name == METADATA_VERSION and level == 0):
        raise FeatureUpdateFailed(f"Feature {name} cannot have level {level}.")
    for node, levels in _supported_by_nodes(state, name):
        if level not in levels:
            raise FeatureUpdateFailed(
                f"{node} supports levels {levels.start} to {levels.stop - 1} of feature {name}, not {level}."
            )
    if upgrade_type == _UPGRADE and level < current:
        raise FeatureUpdateFailed(
            f"Feature {name} is at level {current}: to lower it to {level} has to be asked for as a downgrade."
        )
    if upgrade_type != _UPGRADE and level > current:
        raise FeatureUpdateFailed(f"Feature {name} is at level {current}: {level} is no downgrade.")
    if name == METADATA_VERSION and level < current:
        if upgrade_type == _UNSAFE_DOWNGRADE:
            raise FeatureUpdateFailed("Downgrades of metadata.version that lose metadata are not supported.")
        if any(step in _LOSSY_STEPS for step in range(level + 1, current + 1)):
            raise FeatureUpdateFailed(f"A downgrade of metadata.version to {level} would lose metadata.")


def _supported_by_nodes(state: ClusterState, name: str) -> Iterable[tuple[str, range]]:
    yield "The controller", SUPPORTED_LEVELS.get(name, range(1))
    for broker in state.image.brokers.values():
        yield f"Broker {broker.broker_id}", broker.features.get(name, range(1))


def _check_dependencies(levels: Mapping[str, int]) -> None:
    if levels.get(ELR_VERSION, 0) and levels.get(METADATA_VERSION, 0) < _ELR_METADATA_VERSION:
        raise FeatureUpdateFailed(f"{ELR_VERSION} needs metadata.version {_ELR_METADATA_VERSION} or later.")
