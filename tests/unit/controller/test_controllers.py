"""ControllerRegistration: what is remembered of the quorum's controllers, and what is refused."""

from uuid import UUID

import pytest

from ottla.controller.membership.controllers import register_controller
from ottla.metadata.image import ControllerImage, Endpoint
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.controller_registration import ControllerRegistrationRequest, Feature, Listener
from ottla.protocol.refusals import refuse
from ottla.stories.elections.machine import Machine

LISTENER = Listener(name="CONTROLLER", host="c2", port=9093, security_protocol=3)
FEATURE = Feature(name="metadata.version", min_supported_version=7, max_supported_version=30)


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
                features={"metadata.version": range(7, 31)},
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
