"""Feature levels: what the cluster as a whole may use, finalized in the metadata log (KIP-584, KIP-1022).

A level can be finalized only if every node supports it: this controller, all registered brokers and,
from metadata.version 15 on, all controllers of the quorum. Brokers register the levels that they serve, so a level
that some broker does not serve yet is refused here, with that broker's id.

kraft.version is decided here like the others, but changed by the Raft layer (`ottla.controller.state`): the log
receives control records, and a NoOp record in place of a FeatureLevel record.

Source: FeatureControlManager and QuorumFeatures of Kafka 4.3.1; those of 4.4.0 check in the same order.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from ottla.controller.configs import elr_safety_records
from ottla.controller.formatting import feature_levels
from ottla.controller.result import Result
from ottla.controller.state import ClusterState
from ottla.metadata.features import (
    CONTROLLER_REGISTRATION_3_7_IV0,
    ELR_VERSION,
    KRAFT_VERSION,
    METADATA_VERSION,
    METADATA_VERSIONS,
    UNDERSTOOD_FEATURES,
    missing_dependency,
)
from ottla.metadata.records import FeatureLevelRecord, MetadataRecord, NoOpRecord
from ottla.protocol.errors import InvalidRequest, InvalidUpdateVersion
from ottla.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

#: What a new cluster starts with.
DEFAULT_LEVELS: Final = {
    name: level for name, level in feature_levels(None, {}, has_dynamic_quorum=False).items() if level
}

#: Features of one request: there are a dozen, and one that no node knows is refused in any case.
MOST_UPDATES: Final = 100

_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3

#: The levels that a node supports of a feature that it does not know.
_OFF: Final = range(1)


def update_features(state: ClusterState, request: UpdateFeaturesRequest) -> Result[UpdateFeaturesResponse]:
    """Finalize the request's levels, all or none of them. Raises InvalidUpdateVersion, InvalidRequest."""
    if len(request.feature_updates) > MOST_UPDATES:
        raise InvalidRequest(f"The request updates more than {MOST_UPDATES} features.")
    updates = {update.feature: update for update in request.feature_updates}
    if len(updates) < len(request.feature_updates):
        raise InvalidRequest("The request updates a feature twice.")
    wanted = state.image.features | {name: each.max_version_level for name, each in updates.items()}
    records: list[MetadataRecord] = []
    upgrade: Callable[[int], None] | None = None
    for name, update in updates.items():
        _check(state, update)
        level = update.max_version_level
        if name == KRAFT_VERSION:
            if _kind(update) == _UPGRADE:
                state.kraft.check_upgrade(level)
                upgrade = partial(_upgrade_kraft, state, level)
                records.append(NoOpRecord())
            continue
        if name == METADATA_VERSION:
            _check_metadata_version(state, update)
        elif name not in UNDERSTOOD_FEATURES:  # level 0 of a feature that this node does not know
            raise _invalid(update, f"Feature {name} not found.")
        elif (reason := missing_dependency(name, level, wanted)) is not None:
            raise _invalid(update, reason)
        records.append(FeatureLevelRecord(name=name, feature_level=level))
    if ELR_VERSION in updates and updates[ELR_VERSION].max_version_level > 0:
        records = [*elr_safety_records(state), *records]
    return Result(
        response=UpdateFeaturesResponse(
            error_message=None,
            # Only for versions 0 and 1; the message is Kafka's.
            results=[UpdatableFeatureResult(feature=name, error_message="NONE") for name in updates],
        ),
        records=() if request.validate_only else records,
        on_appended=None if request.validate_only else upgrade,
    )


def _upgrade_kraft(state: ClusterState, level: int, _end_offset: int) -> None:
    state.kraft.upgrade(level)


def _kind(update: FeatureUpdateKey) -> int:
    # Version 0 has only a flag that allows a downgrade.
    return _SAFE_DOWNGRADE if update.allow_downgrade else update.upgrade_type


def _check(state: ClusterState, update: FeatureUpdateKey) -> None:
    level = update.max_version_level
    if _kind(update) not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
        raise _invalid(update, "The controller does not support the given upgrade type.")
    if level < 0:
        raise _invalid(update, "A feature version cannot be less than 0.")
    if (reason := _reason_not_supported(state, update)) is not None:
        raise _invalid(update, reason)
    current = _current(state, update.feature)
    if level < current and _kind(update) == _UPGRADE:
        raise _invalid(
            update,
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
            "unsafe downgrade.",
        )
    if level > current and _kind(update) != _UPGRADE:
        raise _invalid(update, "Can't downgrade to a newer version.")
    if level < current and update.feature == KRAFT_VERSION:
        raise _invalid(update, "Can't downgrade the version of this feature.")


def _current(state: ClusterState, name: str) -> int:
    return state.kraft.version if name == KRAFT_VERSION else state.image.features.get(name, 0)


def _reason_not_supported(state: ClusterState, update: FeatureUpdateKey) -> str | None:
    """The name of the first node that cannot run at this level, and the reason; None if all can."""
    for node, levels in _supported_by_nodes(state, update.feature):
        if update.max_version_level not in levels:
            if levels.stop <= 1:
                return f"{node} does not support this feature."
            return f"{node} only supports versions {levels.start}-{levels.stop - 1}"
    if state.metadata_version >= CONTROLLER_REGISTRATION_3_7_IV0:
        known = {state.settings.node_id, *state.image.controllers}
        for voter_id in sorted(state.kraft.voter_ids - known):
            return f"controller {voter_id} has not registered, and may not support this feature"
    return None


def _supported_by_nodes(state: ClusterState, name: str) -> Iterator[tuple[str, range]]:
    yield f"Local controller {state.settings.node_id}", UNDERSTOOD_FEATURES.get(name, _OFF)
    for broker in state.brokers():
        yield f"Broker {broker.broker_id}", broker.features.get(name, _OFF)
    if state.metadata_version >= CONTROLLER_REGISTRATION_3_7_IV0:
        for controller_id, controller in sorted(state.image.controllers.items()):
            if controller_id != state.settings.node_id:
                yield f"Controller {controller_id}", controller.features.get(name, _OFF)


def _check_metadata_version(state: ClusterState, update: FeatureUpdateKey) -> None:
    """Refuse a downgrade across a level that changed records: the log may have some that older software cannot read.

    Raises InvalidUpdateVersion.
    """
    level, current = update.max_version_level, state.metadata_version
    if level >= current or not any(
        METADATA_VERSIONS[step].changes_records for step in range(level + 1, current + 1)
    ):
        return
    reason = (
        "Unsafe metadata downgrade is not supported in this version."
        if _kind(update) == _UNSAFE_DOWNGRADE
        else "Refusing to perform the requested downgrade because it might delete metadata information."
    )
    raise InvalidUpdateVersion(
        f"Unsupported {METADATA_VERSION} downgrade from {current} to {level}. {reason}"
    )


def _invalid(update: FeatureUpdateKey, reason: str) -> InvalidUpdateVersion:
    return InvalidUpdateVersion(
        f"Invalid update version {update.max_version_level} for feature {update.feature}. {reason}"
    )
