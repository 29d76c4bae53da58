"""ControllerRegistration and UnregisterController: what is remembered of controllers, and what is refused."""

from uuid import UUID

import pytest

from ottla.controller.membership.controllers import register_controller, unregister_controller
from ottla.metadata.image import ControllerImage, Endpoint
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.controller_registration import ControllerRegistrationRequest, Feature, Listener
from ottla.protocol.messages.unregister_controller import UnregisterControllerRequest
from ottla.protocol.refusals import refuse
from ottla.stories.elections.machine import Machine

LISTENER = Listener(name="CONTROLLER", host="c2", port=9093, security_protocol=3)
FEATURE = Feature(name="metadata.version", min_supported_version=7, max_supported_version=33)


def test_registered_and_registered_again():
    machine = Machine()
    for incarnation in (UUID(int=5), UUID(int=6)):
        request = ControllerRegistrationRequest(
            controller_id=2, incarnation_id=incarnation, listeners=[LISTENER], features=[FEATURE]
        )
        assert machine.do(register_controller(machine.state, request)).error_code == ErrorCode.none
        assert machine.state.image.controllers == {
            2: ControllerImage(
                controller_id=2,
                incarnation_id=incarnation,
                endpoints={"CONTROLLER": Endpoint("c2", 9093, 3)},
                features={"metadata.version": range(7, 34)},
            )
        }


@pytest.mark.parametrize(
    ("metadata_version", "fields", "code"),
    [
        (14, {}, ErrorCode.unsupported_version),
        (15, {}, None),
        (30, {"controller_id": -1}, ErrorCode.invalid_request),
        (30, {"listeners": [LISTENER, LISTENER]}, ErrorCode.invalid_request),
        (30, {"features": [FEATURE, FEATURE]}, ErrorCode.invalid_request),
        (30, {"listeners": [], "features": []}, None),
    ],
)
def test_what_is_refused(metadata_version: int, fields: dict, code: ErrorCode | None):
    machine = Machine(elr=False, metadata_version=metadata_version)
    request = ControllerRegistrationRequest(**{"controller_id": 2, **fields})
    if code is None:
        machine.do(register_controller(machine.state, request))
        assert set(machine.state.image.controllers) == {2}
        return
    with pytest.raises(KafkaError) as refused:
        register_controller(machine.state, request)
    assert refuse(request, refused.value).error_code == code


@pytest.mark.parametrize(
    ("metadata_version", "controller_id", "code", "why"),
    [
        (33, 2, ErrorCode.none, None),
        (33, 3, ErrorCode.controller_id_not_registered, "Controller ID 3 is not currently registered."),
        (33, -1, ErrorCode.controller_id_not_registered, "Controller ID -1 is not currently registered."),
        (
            32,
            2,
            ErrorCode.unsupported_version,
            "The current MetadataVersion is too old to support controller unregistration.",
        ),
    ],
)
def test_a_controller_that_will_not_return_is_removed(
    metadata_version: int, controller_id: int, code: ErrorCode, why: str | None
):
    machine = Machine(metadata_version=metadata_version)
    machine.do(register_controller(machine.state, ControllerRegistrationRequest(controller_id=2)))
    request = UnregisterControllerRequest(controller_id=controller_id)
    try:
        response = machine.do(unregister_controller(machine.state, request))
    except KafkaError as error:
        response = refuse(request, error)
    assert (response.error_code, response.error_message) == (code, why)
    assert set(machine.state.image.controllers) == (set() if code == ErrorCode.none else {2})
