"""AlterClientQuotas: quotas of users, clients and addresses in the metadata log (KIP-546, KIP-612).

    entity                          keys
    user, client-id, or both        producer_byte_rate, consumer_byte_rate (whole numbers),
                                    request_percentage, controller_mutation_rate
    ip                              connection_creation_rate (a whole number)

A null name is the default of its type. An entity's quotas change together or not at all. Of an entity that is named
twice the first row is applied, and its result is the error that the second was ignored.

Differs from Kafka: an ip is an address, never a host name. Kafka's controller resolves the name, whose address may
change later and differ on other brokers.
Source: ClientQuotaControlManager and QuotaConfig of Kafka 4.3.1.
"""

import ipaddress
import math
from collections.abc import Mapping
from typing import Final

from ottla.controller.result import Result, check_record_count
from ottla.controller.state import ClusterState
from ottla.controller.steps import Steps, by_steps, in_steps
from ottla.metadata import records as r
from ottla.metadata.client_quotas import CLIENT_ID, IP, USER
from ottla.protocol.errors import ErrorCode, InvalidRequest, KafkaError
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    EntryDataResponse,
)

#: Key -> the largest whole number that it may be; None: any number, fractions too.
_USER_AND_CLIENT_KEYS: Final[Mapping[str, int | None]] = {
    "producer_byte_rate": 2**63 - 1,
    "consumer_byte_rate": 2**63 - 1,
    "request_percentage": None,
    "controller_mutation_rate": None,
}
_IP_KEYS: Final[Mapping[str, int | None]] = {"connection_creation_rate": 2**31 - 1}
_TYPE_NAMES: Final = {2**63 - 1: "a LONG", 2**31 - 1: "an INT"}

#: All parts and quotas of an entity are checked in one turn of the loop.
_MOST_PARTS: Final = 100

#: Type -> name, as in a request; of a type that is named twice the last row is used, as in Kafka.
_Entity = dict[str, str | None]


@in_steps
def alter_client_quotas(
    state: ClusterState, request: AlterClientQuotasRequest
) -> Steps[AlterClientQuotasResponse]:
    """Set and remove quotas of entities. Raises PolicyViolation for too many records."""
    records: list[r.MetadataRecord] = []
    outcomes: dict[frozenset[tuple[str, str | None]], EntryDataResponse] = {}
    parts = state.new_parts()
    parts.append(outcomes)
    for is_next_step, entry in by_steps(request.entries):
        if is_next_step:
            yield
        if len(entry.entity) > _MOST_PARTS:
            raise InvalidRequest(f"An entity with {len(entry.entity)} parts; there are three types of them")
        entity: _Entity = {part.entity_type: part.entity_name for part in entry.entity}
        key = frozenset(entity.items())
        error: KafkaError | None = None
        try:
            if len(entry.ops) > _MOST_PARTS:
                raise InvalidRequest(f"{len(entry.ops)} changes of one entity; there are five quotas")
            if key in outcomes or len({op.key for op in entry.ops}) < len(entry.ops):
                raise InvalidRequest(f"Ignoring duplicate entity {_text(entity)}")
            records += _alter(state, entity, entry)
        except KafkaError as refused:
            error = refused
        outcomes[key] = _row(entity, error)
        check_record_count(len(records))
    return Result(
        response=AlterClientQuotasResponse(entries=list(outcomes.values())),
        records=() if request.validate_only else records,
    )


def _row(entity: _Entity, error: KafkaError | None) -> EntryDataResponse:
    return EntryDataResponse(
        error_code=ErrorCode.none if error is None else error.code,
        error_message=None if error is None else error.message,
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
    )


def _text(entity: _Entity) -> str:
    parts = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity.items())
    return f"ClientQuotaEntity(entries={{{parts}}})"


def _alter(state: ClusterState, entity: _Entity, entry: EntryData) -> list[r.ClientQuotaRecord]:
    """The records of one entity's changes; unchanged values are not written."""
    keys = _keys_of(entity)
    current = state.image.client_quotas.get(tuple(sorted(entity.items())), {})
    records = []
    for op in entry.ops:
        if op.remove:
            is_change = op.key in current
        else:
            _check_value(keys, op.key, op.value)
            is_change = current.get(op.key) != op.value
        if is_change:
            parts = [r.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]
            value = 0.0 if op.remove else op.value
            records.append(r.ClientQuotaRecord(entity=parts, key=op.key, value=value, remove=op.remove))
    return records


def _keys_of(entity: _Entity) -> Mapping[str, int | None]:
    """The keys that this kind of entity can have. Raises InvalidRequest if the entity is invalid."""
    if not entity:
        raise InvalidRequest("Invalid empty client quota entity")
    for kind, name in entity.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise InvalidRequest(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise InvalidRequest(f"Empty {kind} not supported")
    if IP not in entity:
        return _USER_AND_CLIENT_KEYS
    if len(entity) > 1:
        raise InvalidRequest(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
        )
    address = entity[IP]
    if address is not None and not _is_address(address):
        raise InvalidRequest(f"{address} is not a valid IP or resolvable host.")
    return _IP_KEYS


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _check_value(keys: Mapping[str, int | None], key: str, value: float) -> None:
    if key not in keys:
        raise InvalidRequest(f"Invalid configuration key {key}")
    if math.isnan(value):
        # Kafka's comparisons accept it, and the quota is never reached.
        raise InvalidRequest(f"Quota {key} must be a number")
    if value <= 0.0:
        raise InvalidRequest(f"Quota {key} must be greater than 0")
    largest = keys[key]
    if largest is None:
        return
    if value > float(largest):
        raise InvalidRequest(f"Proposed value for {key} is too large for {_TYPE_NAMES[largest]}.")
    if value % 1.0 > 1e-6:
        raise InvalidRequest(f"{key} cannot be a fractional value.")
