"""ControllerRegistration and UnregisterController: the features and listeners of the quorum's controllers (KIP-919).

Every controller registers with the active one when it starts, and when another incarnation has registered under its
id (`controller_registration.py`). The registration of a controller that will not return is removed by an
administrator: otherwise its features count without end. Source: ClusterControlManager of Kafka 4.4.0.
"""

from ottla.controller.result import Result
from ottla.controller.state import ClusterState
from ottla.metadata.features import CONTROLLER_REGISTRATION_3_7_IV0, CONTROLLER_UNREGISTRATION_4_4_IV2
from ottla.metadata.records import (
    ControllerEndpoint,
    ControllerFeature,
    RegisterControllerRecord,
    UnregisterControllerRecord,
)
from ottla.protocol.errors import ControllerIdNotRegistered, InvalidRequest, UnsupportedVersion
from ottla.protocol.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from ottla.protocol.messages.unregister_controller import (
    UnregisterControllerRequest,
    UnregisterControllerResponse,
)


def register_controller(
    state: ClusterState, request: ControllerRegistrationRequest
) -> Result[ControllerRegistrationResponse]:
    """Register a controller. Raises UnsupportedVersion, and InvalidRequest for a negative id or a duplicate name."""
    if state.metadata_version < CONTROLLER_REGISTRATION_3_7_IV0:
        raise UnsupportedVersion(
            "The current MetadataVersion is too old to support controller registrations."
        )
    if request.controller_id < 0:
        raise InvalidRequest(f"Controller ID {request.controller_id} is negative.")
    for what, names in (
        ("listener", [each.name for each in request.listeners]),
        ("feature", [each.name for each in request.features]),
    ):
        if len(set(names)) < len(names):
            raise InvalidRequest(f"Controller {request.controller_id} registers a {what} twice.")
    record = RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        endpoints=[
            ControllerEndpoint(
                name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol
            )
            for each in request.listeners
        ],
        features=[
            ControllerFeature(
                name=each.name,
                min_supported_version=each.min_supported_version,
                max_supported_version=each.max_supported_version,
            )
            for each in request.features
        ],
    )
    return Result(response=ControllerRegistrationResponse(error_message=None), records=[record])


def unregister_controller(
    state: ClusterState, request: UnregisterControllerRequest
) -> Result[UnregisterControllerResponse]:
    """Remove a controller's registration; one that still runs registers again.

    Raises UnsupportedVersion, and ControllerIdNotRegistered.
    """
    if state.metadata_version < CONTROLLER_UNREGISTRATION_4_4_IV2:
        raise UnsupportedVersion(
            "The current MetadataVersion is too old to support controller unregistration."
        )
    if request.controller_id not in state.image.controllers:
        raise ControllerIdNotRegistered(f"Controller ID {request.controller_id} is not currently registered.")
    return Result(
        response=UnregisterControllerResponse(error_message=None),
        records=[UnregisterControllerRecord(controller_id=request.controller_id)],
    )
