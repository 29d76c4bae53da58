"""One filled record of each type: what golden bytes and round trips are about.

`python tests/unit/metadata/metadata_cases.py` prints them as lines `NAME version json`, which GoldenRecords.java
turns into golden.txt with Kafka's own code (its first lines say how).
"""

import base64
import dataclasses
import json
import re
from typing import Any
from uuid import UUID

from ottla.metadata import records as r

A, B, C = UUID(int=0x0123456789ABCDEF0123456789ABCDEF), UUID(int=7), UUID(int=2**128 - 1)

CASES: list[r.MetadataRecord] = [
    r.RegisterBrokerRecord(
        broker_id=7,
        is_migrating_zk_broker=True,
        incarnation_id=A,
        broker_epoch=2**40,
        endpoints=[
            r.BrokerEndpoint(name="PLAINTEXT", host="höst", port=65535, security_protocol=0),
            r.BrokerEndpoint(name="SSL", host="::1", port=1, security_protocol=1),
        ],
        features=[
            r.BrokerFeature(name="metadata.version", min_supported_version=7, max_supported_version=30)
        ],
        rack="r" * 200,
        fenced=False,
        in_controlled_shutdown=True,
        log_dirs=[A, B],
        cordoned_log_dirs=[C],
    ),
    r.RegisterBrokerRecord(broker_id=1, rack=None),
    r.UnregisterBrokerRecord(broker_id=3, broker_epoch=-1),
    r.TopicRecord(name="orders.v1", topic_id=A),
    r.PartitionRecord(
        partition_id=300,
        topic_id=A,
        replicas=[1, 2, 3],
        isr=[3, 1],
        removing_replicas=[2],
        adding_replicas=[4, 5],
        leader=3,
        leader_recovery_state=1,
        leader_epoch=12,
        partition_epoch=130,
        directories=[A, B, C],
        eligible_leader_replicas=[2],
        last_known_elr=[1],
    ),
    r.PartitionRecord(partition_id=0, topic_id=B, replicas=[1], isr=[1], leader=1),
    r.ConfigRecord(resource_type=2, resource_name="t", name="retention.ms", value="1000"),
    r.ConfigRecord(resource_type=4, resource_name="", name="x", value=None),
    r.PartitionChangeRecord(
        partition_id=1,
        topic_id=A,
        isr=[],
        leader=-1,
        replicas=[1, 2],
        removing_replicas=[],
        adding_replicas=[9],
        leader_recovery_state=0,
        directories=[B],
        eligible_leader_replicas=[1, 2],
        last_known_elr=[],
    ),
    r.PartitionChangeRecord(partition_id=1, topic_id=A),
    r.FenceBrokerRecord(id=1, epoch=99),
    r.UnfenceBrokerRecord(id=1, epoch=99),
    r.RemoveTopicRecord(topic_id=C),
    r.DelegationTokenRecord(
        owner="User:o",
        requester="User:r",
        renewers=["User:a", "User:b"],
        issue_timestamp=1,
        max_timestamp=2,
        expiration_timestamp=3,
        token_id="token",
    ),
    r.UserScramCredentialRecord(
        name="alice", mechanism=2, salt=b"\x00salt", stored_key=b"k" * 64, server_key=b"", iterations=8192
    ),
    r.FeatureLevelRecord(name="metadata.version", feature_level=30),
    r.ClientQuotaRecord(
        entity=[
            r.EntityData(entity_type="user", entity_name="alice"),
            r.EntityData(entity_type="client-id", entity_name=None),
        ],
        key="producer_byte_rate",
        value=1234.5,
        remove=False,
    ),
    r.ProducerIdsRecord(broker_id=1, broker_epoch=5, next_producer_id=2**50),
    r.BrokerRegistrationChangeRecord(
        broker_id=1,
        broker_epoch=5,
        fenced=-1,
        in_controlled_shutdown=1,
        log_dirs=[A],
        cordoned_log_dirs=[],
    ),
    r.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, fenced=1),
    r.AccessControlEntryRecord(
        id=A,
        resource_type=2,
        resource_name="t",
        pattern_type=3,
        principal="User:alice",
        host="*",
        operation=3,
        permission_type=3,
    ),
    r.RemoveAccessControlEntryRecord(id=A),
    r.NoOpRecord(),
    r.ZkMigrationStateRecord(zk_migration_state=1),
    r.RemoveUserScramCredentialRecord(name="alice", mechanism=1),
    r.BeginTransactionRecord(name="Bootstrap records"),
    r.BeginTransactionRecord(),
    r.EndTransactionRecord(),
    r.AbortTransactionRecord(reason="Controller failover"),
    r.RemoveDelegationTokenRecord(token_id="token"),
    r.RegisterControllerRecord(
        controller_id=3000,
        incarnation_id=B,
        zk_migration_ready=True,
        endpoints=[r.ControllerEndpoint(name="CONTROLLER", host="h", port=9093, security_protocol=3)],
        features=[
            r.ControllerFeature(name="kraft.version", min_supported_version=0, max_supported_version=1)
        ],
    ),
    r.ClearElrRecord(topic_name="t"),
    r.UnregisterControllerRecord(controller_id=3000),
]


def versions(record: r.MetadataRecord) -> range:
    """All versions of a record's type."""
    of = type(record).__versions__
    assert of.last is not None
    return range(of.first, of.last + 1)


def has_field(of_class: "dataclasses.Field[Any]", version: int) -> bool:
    """Whether a version of a record has the field."""
    text = of_class.metadata.get("versions", "0+")
    return version >= int(text.rstrip("+").split("-")[0])


def as_read(record: r.MetadataRecord, version: int) -> r.MetadataRecord:
    """The record without what the version cannot say."""
    kept = {
        field.name: getattr(record, field.name)
        for field in dataclasses.fields(record)
        if has_field(field, version)
    }
    return type(record)(**kept)


def _json(value: Any) -> Any:
    match value:
        case UUID():
            return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
        case bytes():
            return base64.b64encode(value).decode()
        case list():
            return [_json(each) for each in value]
        case _ if dataclasses.is_dataclass(value):
            return to_json(value, 0)
        case _:
            return value


def to_json(record: Any, version: int) -> dict[str, Any]:
    """The JSON that Kafka's MetadataJsonConverters read: tagged fields only where they are not at their
    default."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        default = (
            field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        )
        if not has_field(field, version) or ("tag" in field.metadata and value == default):
            continue
        name = re.sub(r"_(\w)", lambda match: match[1].upper(), field.name)
        fields[{"endpoints": "endPoints"}.get(name, name)] = _json(value)
    return fields


def kafka_name(record: r.MetadataRecord) -> str:
    """The name in Kafka's MetadataRecordType."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(record).__name__).upper()


if __name__ == "__main__":
    for record in CASES:
        for version in versions(record):
            case = record
            if isinstance(record, r.RegisterBrokerRecord) and version < 2:
                case = as_read(record, version)
            print(kafka_name(record), version, json.dumps(to_json(case, version)))  # noqa: T201
