"""Client quotas: their entities (ClientQuotaEntity) and filters (ClientQuotaFilter, KIP-546).

An entity has parts, at most one of each type: a user, a client-id, both, or an ip. A part whose name is null
is the default of its type.

    component         matches an entity whose part of this type
    EXACT name        has this name
    DEFAULT           is the default
    SPECIFIED         exists, with any name

Source: ClientQuotasImage of Kafka 4.3.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from ottla.metadata.image import QuotaEntity
from ottla.protocol.errors import InvalidRequest, UnsupportedVersion
from ottla.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class QuotaFilter:
    """A filter of quota entities by the names of their parts (KIP-546)."""

    #: Type -> the name that the entity's part must have; None: the default.
    names: Mapping[str, str | None]
    #: Types of which the entity must have a part, with any name.
    types: frozenset[str]
    #: Whether an entity may have no other parts.
    is_strict: bool

    @classmethod
    def of(cls, request: DescribeClientQuotasRequest) -> Self:
        """The filter of a request. Raises InvalidRequest, and UnsupportedVersion for an unknown entity type."""
        names: dict[str, str | None] = {}
        types: set[str] = set()
        for component in request.components:
            kind = component.entity_type
            if not kind:
                raise InvalidRequest("Invalid empty entity type.")
            if kind in names or kind in types:
                raise InvalidRequest(f"Entity type {kind} cannot appear more than once in the filter.")
            if kind not in (USER, CLIENT_ID, IP):
                raise UnsupportedVersion(f"Unsupported entity type {kind}")
            _check_match(component)
            if component.match_type == _SPECIFIED:
                types.add(kind)
            else:
                names[kind] = component.match
        if IP in names.keys() | types and len(request.components) > 1:
            raise InvalidRequest(
                "Invalid entity filter component combination. IP filter component should not be used with user "
                "or clientId filter component."
            )
        return cls(names, frozenset(types), request.strict)

    def matches(self, entity: QuotaEntity) -> bool:
        """Whether the entity matches the filter."""
        parts = dict(entity)
        if self.is_strict and len(parts) != len(self.names) + len(self.types):
            return False
        return self.types <= parts.keys() and all(
            kind in parts and parts[kind] == name for kind, name in self.names.items()
        )


def _check_match(component: ComponentData) -> None:
    if component.match_type not in (_EXACT, _DEFAULT, _SPECIFIED):
        raise InvalidRequest(f"Unknown match type {component.match_type}")
    if component.match_type == _EXACT:
        if component.match is None:
            raise InvalidRequest("Request specified MATCH_TYPE_EXACT, but set match string to null.")
    elif component.match is not None:
        name = "MATCH_TYPE_DEFAULT" if component.match_type == _DEFAULT else "MATCH_TYPE_SPECIFIED"
        raise InvalidRequest(f"Request specified {name}, but also specified a match string.")


def describe(
    asked: QuotaFilter, quotas: Mapping[QuotaEntity, Mapping[str, float]]
) -> DescribeClientQuotasResponse:
    """The entities that match, with all their quotas. Cost: O(n) in the number of entities."""
    entries = [
        EntryData(
            entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
            values=[ValueData(key=key, value=value) for key, value in limits.items()],
        )
        for entity, limits in quotas.items()
        if asked.matches(entity)
    ]
    return DescribeClientQuotasResponse(entries=entries)
