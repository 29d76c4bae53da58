"""The records of `__cluster_metadata`: everything that a KRaft cluster knows of itself is made of these.

Kafka 4.3.1 has 26 types; the numbers 6, 13 and 16 belonged to types that were never released. The classes
are free of versions (see `protocol.schema`): in which version one is written follows from the cluster's
metadata.version (`controller.record_versions`), and all versions are read. Fields that a record leaves out
say "unchanged" in PartitionChangeRecord and BrokerRegistrationChangeRecord.

On the wire each record stands in a small frame of its own, see `protocol.metadata.frame`.
Source: KIP-631 and the schemas of Kafka 4.3.1's metadata module.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Final
from uuid import UUID

from protocol.schema import Record, Versions
from protocol.types import ZERO_UUID


class MetadataRecord(Record):
    """One entry of the metadata log; all versions of all of them have compact lengths and tagged fields."""

    __slots__ = ()
    __flexible_from__: ClassVar[int | None] = 0


@dataclass(slots=True, kw_only=True)
class BrokerEndpoint:
    """Where a broker listens; `security_protocol` is Kafka's number (0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL)."""

    name: str = field(default="", metadata={"kafka_type": "string"})
    host: str = field(default="", metadata={"kafka_type": "string"})
    port: int = field(default=0, metadata={"kafka_type": "uint16"})
    security_protocol: int = field(default=0, metadata={"kafka_type": "int16"})


@dataclass(slots=True, kw_only=True)
class BrokerFeature:
    """Levels of one feature that a broker can run at, both ends included (KIP-584)."""

    name: str = field(default="", metadata={"kafka_type": "string"})
    min_supported_version: int = field(default=0, metadata={"kafka_type": "int16"})
    max_supported_version: int = field(default=0, metadata={"kafka_type": "int16"})


@dataclass(slots=True, kw_only=True)
class RegisterBrokerRecord(MetadataRecord):
    """A broker, or a new incarnation of one, is known to the cluster from here on (KIP-631)."""

    __api_key__: ClassVar[int] = 0
    __versions__: ClassVar[Versions] = Versions(0, 4)

    broker_id: int = field(default=0, metadata={"kafka_type": "int32"})
    #: Always false: ZooKeeper is gone.
    is_migrating_zk_broker: bool = field(default=False, metadata={"kafka_type": "bool", "versions": "2+"})
    incarnation_id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})
    #: The offset of this record in the metadata log.
    broker_epoch: int = field(default=0, metadata={"kafka_type": "int64"})
    endpoints: list[BrokerEndpoint] = field(default_factory=list)
    features: list[BrokerFeature] = field(default_factory=list)
    rack: str | None = field(default="", metadata={"kafka_type": "string", "nullable": "0+"})
    fenced: bool = field(default=True, metadata={"kafka_type": "bool"})
    in_controlled_shutdown: bool = field(default=False, metadata={"kafka_type": "bool", "versions": "1+"})
    #: Ids of the broker's log directories that are online (KIP-858).
    log_dirs: list[UUID] = field(
        default_factory=list, metadata={"kafka_type": "uuid", "versions": "3+", "tag": 0}
    )
    #: Directories that take no new replicas; null until the broker has told.
    cordoned_log_dirs: list[UUID] | None = field(
        default=None, metadata={"kafka_type": "uuid", "versions": "4+", "nullable": "4+", "tag": 1}
    )


@dataclass(slots=True, kw_only=True)
class UnregisterBrokerRecord(MetadataRecord):
    """A broker is forgotten; it must be the registration of this epoch."""

    __api_key__: ClassVar[int] = 1
    __versions__: ClassVar[Versions] = Versions(0, 0)

    broker_id: int = field(default=0, metadata={"kafka_type": "int32"})
    broker_epoch: int = field(default=0, metadata={"kafka_type": "int64"})


@dataclass(slots=True, kw_only=True)
class TopicRecord(MetadataRecord):
    """A topic exists; its configurations and partitions follow in the same batch."""

    __api_key__: ClassVar[int] = 2
    __versions__: ClassVar[Versions] = Versions(0, 0)

    name: str = field(default="", metadata={"kafka_type": "string"})
    topic_id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})


@dataclass(slots=True, kw_only=True)
class PartitionRecord(MetadataRecord):
    """A partition exists, complete: it replaces what was known of it."""

    __api_key__: ClassVar[int] = 3
    __versions__: ClassVar[Versions] = Versions(0, 2)

    partition_id: int = field(default=-1, metadata={"kafka_type": "int32"})
    topic_id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})
    #: The preferred leader is the first.
    replicas: list[int] = field(default_factory=list, metadata={"kafka_type": "int32"})
    isr: list[int] = field(default_factory=list, metadata={"kafka_type": "int32"})
    removing_replicas: list[int] = field(default_factory=list, metadata={"kafka_type": "int32"})
    adding_replicas: list[int] = field(default_factory=list, metadata={"kafka_type": "int32"})
    #: -1: nobody leads.
    leader: int = field(default=-1, metadata={"kafka_type": "int32"})
    #: 1 while the leader of an unclean election recovers (KIP-704), else 0.
    leader_recovery_state: int = field(default=0, metadata={"kafka_type": "int8", "tag": 0})
    leader_epoch: int = field(default=-1, metadata={"kafka_type": "int32"})
    partition_epoch: int = field(default=-1, metadata={"kafka_type": "int32"})
    #: One directory id for each of `replicas`, in the same order (KIP-858).
    directories: list[UUID] = field(default_factory=list, metadata={"kafka_type": "uuid", "versions": "1+"})
    #: Out of the ISR but as good for an election (KIP-966).
    eligible_leader_replicas: list[int] | None = field(
        default=None, metadata={"kafka_type": "int32", "versions": "2+", "nullable": "2+", "tag": 1}
    )
    #: The last leader, while nobody leads (KIP-966).
    last_known_elr: list[int] | None = field(
        default=None, metadata={"kafka_type": "int32", "versions": "2+", "nullable": "2+", "tag": 2}
    )


@dataclass(slots=True, kw_only=True)
class ConfigRecord(MetadataRecord):
    """One configuration of one resource (2 topic, 4 broker, 16 client metrics, 32 group); null deletes it."""

    __api_key__: ClassVar[int] = 4
    __versions__: ClassVar[Versions] = Versions(0, 0)

    resource_type: int = field(default=0, metadata={"kafka_type": "int8"})
    resource_name: str = field(default="", metadata={"kafka_type": "string"})
    name: str = field(default="", metadata={"kafka_type": "string"})
    value: str | None = field(default="", metadata={"kafka_type": "string", "nullable": "0+"})


@dataclass(slots=True, kw_only=True)
class PartitionChangeRecord(MetadataRecord):
    """What changes of a partition; each field has a value that says "unchanged".

    The partition epoch grows by one with each such record, and the leader epoch with each that names a leader,
    the same one included (KIP-101).
    """

    __api_key__: ClassVar[int] = 5
    __versions__: ClassVar[Versions] = Versions(0, 2)

    partition_id: int = field(default=-1, metadata={"kafka_type": "int32"})
    topic_id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})
    #: Null: unchanged.
    isr: list[int] | None = field(default=None, metadata={"kafka_type": "int32", "nullable": "0+", "tag": 0})
    #: -2: unchanged; -1: nobody leads from here on.
    leader: int = field(default=-2, metadata={"kafka_type": "int32", "tag": 1})
    replicas: list[int] | None = field(
        default=None, metadata={"kafka_type": "int32", "nullable": "0+", "tag": 2}
    )
    removing_replicas: list[int] | None = field(
        default=None, metadata={"kafka_type": "int32", "nullable": "0+", "tag": 3}
    )
    adding_replicas: list[int] | None = field(
        default=None, metadata={"kafka_type": "int32", "nullable": "0+", "tag": 4}
    )
    #: -1: unchanged.
    leader_recovery_state: int = field(default=-1, metadata={"kafka_type": "int8", "tag": 5})
    directories: list[UUID] | None = field(
        default=None, metadata={"kafka_type": "uuid", "versions": "1+", "nullable": "1+", "tag": 8}
    )
    eligible_leader_replicas: list[int] | None = field(
        default=None, metadata={"kafka_type": "int32", "versions": "2+", "nullable": "2+", "tag": 6}
    )
    last_known_elr: list[int] | None = field(
        default=None, metadata={"kafka_type": "int32", "versions": "2+", "nullable": "2+", "tag": 7}
    )


@dataclass(slots=True, kw_only=True)
class FenceBrokerRecord(MetadataRecord):
    """A broker is fenced: older spelling of BrokerRegistrationChangeRecord, read but never written."""

    __api_key__: ClassVar[int] = 7
    __versions__: ClassVar[Versions] = Versions(0, 0)

    id: int = field(default=0, metadata={"kafka_type": "int32"})
    epoch: int = field(default=0, metadata={"kafka_type": "int64"})


@dataclass(slots=True, kw_only=True)
class UnfenceBrokerRecord(MetadataRecord):
    """A broker is unfenced: older spelling of BrokerRegistrationChangeRecord, read but never written."""

    __api_key__: ClassVar[int] = 8
    __versions__: ClassVar[Versions] = Versions(0, 0)

    id: int = field(default=0, metadata={"kafka_type": "int32"})
    epoch: int = field(default=0, metadata={"kafka_type": "int64"})


@dataclass(slots=True, kw_only=True)
class RemoveTopicRecord(MetadataRecord):
    """A topic, its partitions and its configurations are gone."""

    __api_key__: ClassVar[int] = 9
    __versions__: ClassVar[Versions] = Versions(0, 0)

    topic_id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})


@dataclass(slots=True, kw_only=True)
class DelegationTokenRecord(MetadataRecord):
    """A delegation token (KIP-48); timestamps are ms since 1970."""

    __api_key__: ClassVar[int] = 10
    __versions__: ClassVar[Versions] = Versions(0, 0)

    owner: str = field(default="", metadata={"kafka_type": "string"})
    requester: str = field(default="", metadata={"kafka_type": "string"})
    renewers: list[str] = field(default_factory=list, metadata={"kafka_type": "string"})
    issue_timestamp: int = field(default=0, metadata={"kafka_type": "int64"})
    max_timestamp: int = field(default=0, metadata={"kafka_type": "int64"})
    expiration_timestamp: int = field(default=0, metadata={"kafka_type": "int64"})
    token_id: str = field(default="", metadata={"kafka_type": "string"})


@dataclass(slots=True, kw_only=True)
class UserScramCredentialRecord(MetadataRecord):
    """A user's SCRAM credential (KIP-554); mechanism 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512."""

    __api_key__: ClassVar[int] = 11
    __versions__: ClassVar[Versions] = Versions(0, 0)

    name: str = field(default="", metadata={"kafka_type": "string"})
    mechanism: int = field(default=0, metadata={"kafka_type": "int8"})
    salt: bytes = field(default=b"", metadata={"kafka_type": "bytes"})
    stored_key: bytes = field(default=b"", metadata={"kafka_type": "bytes"})
    server_key: bytes = field(default=b"", metadata={"kafka_type": "bytes"})
    iterations: int = field(default=0, metadata={"kafka_type": "int32"})


@dataclass(slots=True, kw_only=True)
class FeatureLevelRecord(MetadataRecord):
    """A feature is finalized at this level; 0 is off (KIP-584)."""

    __api_key__: ClassVar[int] = 12
    __versions__: ClassVar[Versions] = Versions(0, 0)

    name: str = field(default="", metadata={"kafka_type": "string"})
    feature_level: int = field(default=0, metadata={"kafka_type": "int16"})


@dataclass(slots=True, kw_only=True)
class EntityData:
    """One part of a quota's subject, as ("user", "alice"); a null name is the default for all of that type."""

    entity_type: str = field(default="", metadata={"kafka_type": "string"})
    entity_name: str | None = field(default="", metadata={"kafka_type": "string", "nullable": "0+"})


@dataclass(slots=True, kw_only=True)
class ClientQuotaRecord(MetadataRecord):
    """One limit of one subject, or that it is removed (KIP-546)."""

    __api_key__: ClassVar[int] = 14
    __versions__: ClassVar[Versions] = Versions(0, 0)

    entity: list[EntityData] = field(default_factory=list)
    key: str = field(default="", metadata={"kafka_type": "string"})
    value: float = field(default=0.0, metadata={"kafka_type": "float64"})
    remove: bool = field(default=False, metadata={"kafka_type": "bool"})


@dataclass(slots=True, kw_only=True)
class ProducerIdsRecord(MetadataRecord):
    """A block of producer ids was given away; `next_producer_id` is the first that is still free."""

    __api_key__: ClassVar[int] = 15
    __versions__: ClassVar[Versions] = Versions(0, 0)

    broker_id: int = field(default=0, metadata={"kafka_type": "int32"})
    broker_epoch: int = field(default=-1, metadata={"kafka_type": "int64"})
    next_producer_id: int = field(default=0, metadata={"kafka_type": "int64"})


@dataclass(slots=True, kw_only=True)
class BrokerRegistrationChangeRecord(MetadataRecord):
    """What changes of a broker's registration; the epoch says of which one."""

    __api_key__: ClassVar[int] = 17
    __versions__: ClassVar[Versions] = Versions(0, 3)

    broker_id: int = field(default=0, metadata={"kafka_type": "int32"})
    broker_epoch: int = field(default=0, metadata={"kafka_type": "int64"})
    #: 1: fenced from here on; -1: unfenced; 0: unchanged.
    fenced: int = field(default=0, metadata={"kafka_type": "int8", "tag": 0})
    #: 1: in controlled shutdown from here on; 0: unchanged.
    in_controlled_shutdown: int = field(
        default=0, metadata={"kafka_type": "int8", "versions": "1+", "tag": 1}
    )
    #: The directories that are online; empty: unchanged.
    log_dirs: list[UUID] = field(
        default_factory=list, metadata={"kafka_type": "uuid", "versions": "2+", "tag": 2}
    )
    #: Null: unchanged.
    cordoned_log_dirs: list[UUID] | None = field(
        default=None, metadata={"kafka_type": "uuid", "versions": "3+", "nullable": "3+", "tag": 3}
    )


@dataclass(slots=True, kw_only=True)
class AccessControlEntryRecord(MetadataRecord):
    """An ACL entry; the numbers are those of the CreateAcls request."""

    __api_key__: ClassVar[int] = 18
    __versions__: ClassVar[Versions] = Versions(0, 0)

    id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})
    resource_type: int = field(default=0, metadata={"kafka_type": "int8"})
    resource_name: str = field(default="", metadata={"kafka_type": "string"})
    pattern_type: int = field(default=0, metadata={"kafka_type": "int8"})
    principal: str = field(default="", metadata={"kafka_type": "string"})
    host: str = field(default="", metadata={"kafka_type": "string"})
    operation: int = field(default=0, metadata={"kafka_type": "int8"})
    permission_type: int = field(default=0, metadata={"kafka_type": "int8"})


@dataclass(slots=True, kw_only=True)
class RemoveAccessControlEntryRecord(MetadataRecord):
    """An ACL entry is gone."""

    __api_key__: ClassVar[int] = 19
    __versions__: ClassVar[Versions] = Versions(0, 0)

    id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})


@dataclass(slots=True, kw_only=True)
class NoOpRecord(MetadataRecord):
    """Nothing: keeps the log moving, so that followers can tell an idle leader from a dead one (KIP-835)."""

    __api_key__: ClassVar[int] = 20
    __versions__: ClassVar[Versions] = Versions(0, 0)


@dataclass(slots=True, kw_only=True)
class ZkMigrationStateRecord(MetadataRecord):
    """Left over from the migration from ZooKeeper: 0 in a cluster that never was one."""

    __api_key__: ClassVar[int] = 21
    __versions__: ClassVar[Versions] = Versions(0, 0)

    zk_migration_state: int = field(default=0, metadata={"kafka_type": "int8"})


@dataclass(slots=True, kw_only=True)
class RemoveUserScramCredentialRecord(MetadataRecord):
    """A user's SCRAM credential is gone."""

    __api_key__: ClassVar[int] = 22
    __versions__: ClassVar[Versions] = Versions(0, 0)

    name: str = field(default="", metadata={"kafka_type": "string"})
    mechanism: int = field(default=0, metadata={"kafka_type": "int8"})


@dataclass(slots=True, kw_only=True)
class BeginTransactionRecord(MetadataRecord):
    """The records up to the matching end take effect together (KIP-868)."""

    __api_key__: ClassVar[int] = 23
    __versions__: ClassVar[Versions] = Versions(0, 0)

    name: str | None = field(default=None, metadata={"kafka_type": "string", "nullable": "0+", "tag": 0})


@dataclass(slots=True, kw_only=True)
class EndTransactionRecord(MetadataRecord):
    """The records since the matching begin take effect (KIP-868)."""

    __api_key__: ClassVar[int] = 24
    __versions__: ClassVar[Versions] = Versions(0, 0)


@dataclass(slots=True, kw_only=True)
class AbortTransactionRecord(MetadataRecord):
    """The records since the matching begin never happened (KIP-868)."""

    __api_key__: ClassVar[int] = 25
    __versions__: ClassVar[Versions] = Versions(0, 0)

    reason: str | None = field(default=None, metadata={"kafka_type": "string", "nullable": "0+", "tag": 0})


@dataclass(slots=True, kw_only=True)
class RemoveDelegationTokenRecord(MetadataRecord):
    """A delegation token is gone."""

    __api_key__: ClassVar[int] = 26
    __versions__: ClassVar[Versions] = Versions(0, 0)

    token_id: str = field(default="", metadata={"kafka_type": "string"})


@dataclass(slots=True, kw_only=True)
class ControllerEndpoint:
    """Where a controller listens."""

    name: str = field(default="", metadata={"kafka_type": "string"})
    host: str = field(default="", metadata={"kafka_type": "string"})
    port: int = field(default=0, metadata={"kafka_type": "uint16"})
    security_protocol: int = field(default=0, metadata={"kafka_type": "int16"})


@dataclass(slots=True, kw_only=True)
class ControllerFeature:
    """Levels of one feature that a controller can run at, both ends included."""

    name: str = field(default="", metadata={"kafka_type": "string"})
    min_supported_version: int = field(default=0, metadata={"kafka_type": "int16"})
    max_supported_version: int = field(default=0, metadata={"kafka_type": "int16"})


@dataclass(slots=True, kw_only=True)
class RegisterControllerRecord(MetadataRecord):
    """A controller and what it supports (KIP-919)."""

    __api_key__: ClassVar[int] = 27
    __versions__: ClassVar[Versions] = Versions(0, 0)

    controller_id: int = field(default=0, metadata={"kafka_type": "int32"})
    incarnation_id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})
    zk_migration_ready: bool = field(default=False, metadata={"kafka_type": "bool"})
    endpoints: list[ControllerEndpoint] = field(default_factory=list)
    features: list[ControllerFeature] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ClearElrRecord(MetadataRecord):
    """The ELR of a topic's partitions is emptied, of all topics' with an empty name (KIP-966)."""

    __api_key__: ClassVar[int] = 28
    __versions__: ClassVar[Versions] = Versions(0, 0)

    topic_name: str = field(default="", metadata={"kafka_type": "string"})


#: The classes by their number.
RECORD_CLASSES: Final[dict[int, type[MetadataRecord]]] = {
    cls.__api_key__: cls
    for cls in (
        RegisterBrokerRecord,
        UnregisterBrokerRecord,
        TopicRecord,
        PartitionRecord,
        ConfigRecord,
        PartitionChangeRecord,
        FenceBrokerRecord,
        UnfenceBrokerRecord,
        RemoveTopicRecord,
        DelegationTokenRecord,
        UserScramCredentialRecord,
        FeatureLevelRecord,
        ClientQuotaRecord,
        ProducerIdsRecord,
        BrokerRegistrationChangeRecord,
        AccessControlEntryRecord,
        RemoveAccessControlEntryRecord,
        NoOpRecord,
        ZkMigrationStateRecord,
        RemoveUserScramCredentialRecord,
        BeginTransactionRecord,
        EndTransactionRecord,
        AbortTransactionRecord,
        RemoveDelegationTokenRecord,
        RegisterControllerRecord,
        ClearElrRecord,
    )
}
