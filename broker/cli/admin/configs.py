"""Requests of `ottla configs`, and changes of configurations of `ottla topics`.

A resource is what has configurations: a topic, a broker, the defaults of all brokers (a broker with the empty name), a
group, or a subscription of client metrics. Keys are compared with those that a broker lists: the broker itself would
accept a misspelled one.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ottla.broker.cli.similar import similar
from ottla.broker.cluster_client.client import ClusterClient
from ottla.broker.cluster_client.errors import ClusterError, error_name
from ottla.broker.network.client import Address
from ottla.config.config_def import AlterOperation
from ottla.config.names import base_key
from ottla.metadata.image import ConfigResourceType
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

Configs = Mapping[str, DescribeConfigsResourceResult]


@dataclass(slots=True, frozen=True)
class Resource:
    """A resource with configurations: its type, and its name, which is empty for the defaults of all brokers."""

    type: ConfigResourceType
    name: str

    def __str__(self) -> str:
        if self.type is ConfigResourceType.BROKER and not self.name:
            return "defaults of all brokers"
        return f"{self.type.name.lower().replace('_', ' ')} {self.name}"

    @property
    def broker_id(self) -> int | None:
        """The id of the broker; None for other resources."""
        return int(self.name) if self.type is ConfigResourceType.BROKER and self.name else None


@dataclass(slots=True, frozen=True)
class Change:
    """One change of a configuration: the operation, the key, and the value; None for a key that is deleted."""

    operation: AlterOperation
    key: str
    value: str | None

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.key} deleted"
        words = {AlterOperation.APPEND: "+=", AlterOperation.SUBTRACT: "-="}
        return f"{self.key}{words.get(self.operation, '=')}{self.value}"


def changes_of(
    settings: Sequence[str],
    unset: Sequence[str] = (),
    *,
    appended: Sequence[str] = (),
    subtracted: Sequence[str] = (),
) -> list[Change]:
    """The changes that the options of a command name. Raises ClusterError.

    >>> [str(each) for each in changes_of(["a=1"], ["b"], appended=["c=2"])]
    ['a=1', 'b deleted', 'c+=2']
    """
    changes = [Change(AlterOperation.SET, *_key_and_value(each)) for each in settings]
    changes += [Change(AlterOperation.DELETE, each.strip(), None) for each in unset]
    changes += [Change(AlterOperation.APPEND, *_key_and_value(each)) for each in appended]
    changes += [Change(AlterOperation.SUBTRACT, *_key_and_value(each)) for each in subtracted]
    keys = [each.key for each in changes]
    if twice := [key for key in dict.fromkeys(keys) if keys.count(key) > 1]:
        raise ClusterError(f"{twice[0]} is named twice: one change of a key is possible at a time.")
    return changes


def _key_and_value(setting: str) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not equals or not key.strip():
        raise ClusterError(f"'{setting}' is not a setting: it must be KEY=VALUE.")
    return key.strip(), value.strip()


async def described(
    client: ClusterClient,
    resources: Sequence[Resource],
    *,
    keys: Sequence[str] | None = None,
    has_details: bool = False,
) -> dict[Resource, Configs]:
    """Return the configurations of resources by key; only of these keys if there are any. Raises ClusterError.

    Each broker describes itself; any broker describes the others. `has_details`: with synonyms and documentation.
    """
    by_broker: dict[int | None, list[Resource]] = {}
    for each in resources:
        by_broker.setdefault(each.broker_id, []).append(each)
    found: dict[Resource, Configs] = {}
    for broker_id, asked in by_broker.items():
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=each.type,
                    resource_name=each.name,
                    configuration_keys=None if keys is None else list(keys),
                )
                for each in asked
            ],
            include_synonyms=has_details,
            include_documentation=has_details,
        )
        if broker_id is None:
            response = await client.ask_any(request, DescribeConfigsResponse)
        else:
            address = await _address_of(client, broker_id)
            response = await client.request(address, request, DescribeConfigsResponse)
        for result in response.results:
            resource = Resource(ConfigResourceType(result.resource_type), result.resource_name)
            if result.error_code:
                raise ClusterError(_refusal(resource, result.error_code, result.error_message))
            found[resource] = {each.name: each for each in result.configs}
    return found


async def altered(
    client: ClusterClient, resource: Resource, changes: Sequence[Change], *, is_forced: bool = False
) -> None:
    """Change configurations of a resource. Raises ClusterError.

    A key that the broker does not list is refused unless the change is forced.
    """
    known = await _known_keys(client, resource)
    for change in changes:
        check_change(resource, change, known, is_forced=is_forced)
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=resource.type,
                resource_name=resource.name,
                configs=[
                    AlterableConfig(name=each.key, config_operation=each.operation, value=each.value)
                    for each in changes
                ],
            )
        ]
    )
    if resource.broker_id is None:
        response = await client.ask_any(request, IncrementalAlterConfigsResponse)
    else:
        address = await _address_of(client, resource.broker_id)
        response = await client.request(address, request, IncrementalAlterConfigsResponse)
    [row] = response.responses
    if row.error_code:
        raise ClusterError(_refusal(resource, row.error_code, row.error_message))


def check_change(resource: Resource, change: Change, known: Configs, *, is_forced: bool) -> None:
    """Check a change against the configurations that the broker lists. Raises ClusterError."""
    key = known.get(change.key) or known.get(base_key(change.key))
    if key is None:
        if not is_forced:
            raise ClusterError(unknown_key(resource, change.key, known))
    elif key.read_only:
        raise ClusterError(
            f"{change}: {change.key} is read-only, as brokers use it at their start. "
            "Set it in server.properties, and restart them."
        )


def unknown_key(resource: Resource, key: str, known: Collection[str]) -> str:
    """Return the sentence about a key that a resource does not have, with similar keys."""
    words = [f"{resource}: there is no configuration {key}.", similar(key, known)]
    return " ".join(filter(None, words))


async def _known_keys(client: ClusterClient, resource: Resource) -> Configs:
    """The configurations of a resource; the defaults of all brokers may be any that a broker has."""
    if resource == Resource(ConfigResourceType.BROKER, ""):
        brokers = (await client.metadata([])).brokers
        if not brokers:
            raise ClusterError("No broker of the cluster is alive: the defaults cannot be described.")
        first, *_ = brokers
        resource = Resource(ConfigResourceType.BROKER, str(first.node_id))
    return (await described(client, [resource]))[resource]


async def _address_of(client: ClusterClient, broker_id: int) -> Address:
    brokers = (await client.metadata([])).brokers
    for each in brokers:
        if each.node_id == broker_id:
            return each.host, each.port
    ids = ", ".join(str(each.node_id) for each in sorted(brokers, key=lambda each: each.node_id))
    raise ClusterError(f"The cluster has no broker {broker_id} that is alive: it has {ids}.")


def _refusal(resource: Resource, code: int, message: str | None) -> str:
    return f"{resource}: {message or error_name(code)}"


def overrides(configs: Configs, sources: Iterable[int]) -> dict[str, str | None]:
    """The values that come from one of these sources; None for a sensitive value."""
    wanted = set(sources)
    return {name: each.value for name, each in configs.items() if each.config_source in wanted}
