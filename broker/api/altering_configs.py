"""The common part of AlterConfigs and IncrementalAlterConfigs: a broker's own checks, and forwarding.

Loggers belong to this process, and a broker validates its own configurations, since it knows which values
it cannot use. All valid resources are forwarded to the controller in one request, and both parts of the
response are combined in the order of the request.
Source: ConfigAdminManager.preprocess of Kafka 4.3.1.
"""

from collections.abc import Callable
from copy import copy
from typing import Final, NamedTuple, Protocol, TypeVar

from ottla.broker.api.long_answers import ROWS_OF_STEP
from ottla.broker.membership.controller_channel import RequestHandler
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.metadata.image import ConfigResource, ConfigResourceType
from ottla.protocol.errors import ErrorCode, InvalidRequest, KafkaError
from ottla.protocol.messages import alter_configs, incremental_alter_configs
from ottla.protocol.steps import Step, counted, listed
from ottla.runtime.turns import FreedInTurns, HasTurns, result_in_turns

R = TypeVar("R")

Request = alter_configs.AlterConfigsRequest | incremental_alter_configs.IncrementalAlterConfigsRequest
Resource = alter_configs.AlterConfigsResource | incremental_alter_configs.AlterConfigsResource

#: BROKER_LOGGER is no resource of the metadata log: log levels last until the process ends.
BROKER_LOGGER = 8
#: There are some hundred keys. All those of a resource are checked in one turn of the loop.
_MAX_KEYS: Final = 1_000
_KEYS_OF_STEP: Final = 500
#: Outcomes of the controller that are noted in one turn of the loop.
_OUTCOMES_OF_STEP: Final = 1_000
_FORWARDED = {ConfigResourceType.TOPIC, ConfigResourceType.CLIENT_METRICS, ConfigResourceType.GROUP}


class Outcome(NamedTuple):
    """The outcome for one resource; the fields of both APIs' response rows."""

    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


class AltersConfigs(Protocol):
    """The node that handles the request: a broker, or a controller at its own listener."""

    @property
    def controller(self) -> RequestHandler:
        """The channel over which requests are forwarded to the active controller."""

    @property
    def runtime(self) -> HasTurns:
        """The runtime with the turns of the node's event loop."""


async def alter(
    request: Request,
    context: RequestContext,
    broker: AltersConfigs,
    outcome: Callable[..., R],
    *,
    check: Callable[[Resource], bool],
) -> list[R]:
    """Check each resource here, forward the remaining ones, and return the `outcome` of each in the request's order.

    `check` validates one resource: it returns True if the resource is done, False if it is forwarded to
    the controller, and raises KafkaError for an invalid one.
    """
    outcomes: dict[tuple[int, str], Outcome] = {}
    remaining: list[Resource] = []
    turns = broker.runtime.turns
    parts = FreedInTurns(broker.runtime)
    counting = counted(map(_name, request.resources), parts=parts)
    names = await result_in_turns(counting, broker.runtime)
    parts += [outcomes, names, remaining]
    step = Step(_KEYS_OF_STEP)
    for resource in request.resources:
        if step.is_full(_KEYS_OF_STEP // ROWS_OF_STEP + len(resource.configs)):
            await turns.share()
        try:
            if names[_name(resource)] > 1:
                raise InvalidRequest("Each resource must appear at most once.")
            _check_keys(resource)
            if check(resource):
                outcomes[_name(resource)] = Outcome(ErrorCode.none, None, *_name(resource))
            else:
                remaining.append(resource)
        except KafkaError as error:
            outcomes[_name(resource)] = Outcome(error.code, error.message, *_name(resource))
    if remaining:
        forwarded = copy(request)
        forwarded.resources = remaining  # type: ignore[assignment]  # resources of its own kind
        response = await broker.controller.request(context.api_key, forwarded, context)
        parts.append(response.responses)
        for number, row in enumerate(response.responses):
            parts.hold(row)
            name = row.resource_type, row.resource_name
            outcomes[name] = Outcome(row.error_code, row.error_message, *name)
            if number % _OUTCOMES_OF_STEP == _OUTCOMES_OF_STEP - 1:
                await turns.share()
    answered = (outcome(**outcomes[_name(resource)]._asdict()) for resource in request.resources)
    return await result_in_turns(listed(answered, size=ROWS_OF_STEP), broker.runtime)


def stored_overrides(resource: Resource, broker: BrokerServices) -> dict[str, str]:
    """The overrides of a resource in the metadata image."""
    key = ConfigResource(ConfigResourceType(resource.resource_type), resource.resource_name)
    return dict(broker.metadata.image.config(key))


def is_forwarded(resource: Resource) -> bool:
    """Whether only the controller validates this type of resource. Raises InvalidRequest for an unknown type."""
    if resource.resource_type == ConfigResourceType.BROKER:
        return False
    if resource.resource_type not in _FORWARDED:
        raise InvalidRequest(f"Unknown resource type {resource.resource_type}")
    return True


def _name(resource: Resource) -> tuple[int, str]:
    return resource.resource_type, resource.resource_name


def _check_keys(resource: Resource) -> None:
    if len(resource.configs) > _MAX_KEYS:
        raise InvalidRequest(f"{len(resource.configs)} configurations of one resource are too many")
    keys = [config.name for config in resource.configs]
    if len(set(keys)) < len(keys):
        raise InvalidRequest("Error due to duplicate config keys")
