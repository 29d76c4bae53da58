"""The records of `__cluster_metadata` (MetadataRecordType): the whole state of a KRaft cluster consists of these.

Kafka 4.4.0 has 27 types; the numbers 6, 13 and 16 belonged to types that were never released. The classes
have no version (see `ottla.protocol.schema`): the cluster's metadata.version determines the version that is
written (`ottla.controller.metadata_log.record_versions`), and all versions are read. In PartitionChangeRecord and
BrokerRegistrationChangeRecord, an omitted field means "unchanged".

On the wire each record is in a frame of its own, see `ottla.metadata.frame`.
Source: KIP-631 and the schemas of Kafka 4.4.0's metadata module.
"""

from dataclasses import field
from typing import ClassVar, Final
from uuid import UUID

from ottla.protocol.local_log import LOCAL_LOG_TAG, ReplicaLocalLog
from ottla.protocol.schema import Record, Versions
from ottla.protocol.schema_class import schema_class
from ottla.protocol.types import ZERO_UUID


class MetadataRecord(Record):
    """One entry of the metadata log; all versions of all of them have compact lengths and tagged fields."""

    __slots__ = ()
    __flexible_from__: ClassVar[int | None] = 0


@schema_class
class BrokerEndpoint:
    """A broker's listener; `security_protocol` is Kafka's number (0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL)."""

    name: str = field(default="", metadata={"kafka_type": "string"})
    host: str = field(default="", metadata={"kafka_type": "string"})
    port: int = field(default=0, metadata={"kafka_type": "uint16"})
    security_protocol: int = field(default=0, metadata={"kafka_type": "int16"})


@schema_class
class BrokerFeature:
    """Levels of one feature that a broker supports, both ends included (KIP-584)."""

    name: str = field(default="", metadata={"kafka_type": "string"})
    min_supported_version: int = field(default=0, metadata={"kafka_type": "int16"})
    max_supported_version: int = field(default=0, metadata={"kafka_type": "int16"})


@schema_class
class RegisterBrokerRecord(MetadataRecord):
    """A broker, or a new incarnation of one, is registered (KIP-631)."""

    __api_key__: ClassVar[int] = 0
    __versions__: ClassVar[Versions] = Versions(0, 4)

    broker_id: int = field(default=0, metadata={"kafka_type": "int32"})
    #: Always false: for the migration from ZooKeeper, which Kafka 4 does not have.
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
    #: Cordoned directories, which take no new replicas; null until the broker has reported them.
    cordoned_log_dirs: list[UUID] | None = field(
        default=None, metadata={"kafka_type": "uuid", "versions": "4+", "nullable": "4+", "tag": 1}
    )


@schema_class
class UnregisterBrokerRecord(MetadataRecord):
    """A broker is unregistered; its registration must have this epoch."""

    __api_key__: ClassVar[int] = 1
    __versions__: ClassVar[Versions] = Versions(0, 0)

    broker_id: int = field(default=0, metadata={"kafka_type": "int32"})
    broker_epoch: int = field(default=0, metadata={"kafka_type": "int64"})


@schema_class
class TopicRecord(MetadataRecord):
    """A topic is created; its configurations and partitions follow in the same batch."""

    __api_key__: ClassVar[int] = 2
    __versions__: ClassVar[Versions] = Versions(0, 0)

    name: str = field(default="", metadata={"kafka_type": "string"})
    topic_id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})


@schema_class
class PartitionRecord(MetadataRecord):
    """The complete state of a partition, which replaces any previous one."""

    __api_key__: ClassVar[int] = 3
    __versions__: ClassVar[Versions] = Versions(0, 2)

    partition_id: int = field(default=-1, metadata={"kafka_type": "int32"})
    topic_id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})
    #: The preferred leader is the first.
    replicas: list[int] = field(default_factory=list, metadata={"kafka_type": "int32"})
    isr: list[int] = field(default_factory=list, metadata={"kafka_type": "int32"})
    removing_replicas: list[int] = field(default_factory=list, metadata={"kafka_type": "int32"})
    adding_replicas: list[int] = field(default_factory=list, metadata={"kafka_type": "int32"})
    #: -1: no leader.
    leader: int = field(default=-1, metadata={"kafka_type": "int32"})
    #: 1 while the leader of an unclean election recovers (KIP-704), else 0.
    leader_recovery_state: int = field(default=0, metadata={"kafka_type": "int8", "tag": 0})
    leader_epoch: int = field(default=-1, metadata={"kafka_type": "int32"})
    partition_epoch: int = field(default=-1, metadata={"kafka_type": "int32"})
    #: One directory id for each of `replicas`, in the same order (KIP-858).
    directories: list[UUID] = field(default_factory=list, metadata={"kafka_type": "uuid", "versions": "1+"})
    #: Not in the ISR, but with all committed records, so eligible for election (KIP-966).
    eligible_leader_replicas: list[int] | None = field(
        default=None, metadata={"kafka_type": "int32", "versions": "2+", "nullable": "2+", "tag": 1}
    )
    #: The last leader, while there is no leader (KIP-966).
    last_known_elr: list[int] | None = field(
        default=None, metadata={"kafka_type": "int32", "versions": "2+", "nullable": "2+", "tag": 2}
    )
    #: The replicas whose local logs are known (draft KIP-1303); null: none.
    local_logs: list[ReplicaLocalLog] | None = field(
        default=None, metadata={"nullable": "0+", "tag": LOCAL_LOG_TAG}
    )


@schema_class
class ConfigRecord(MetadataRecord):
    """One configuration of one resource (2 topic, 4 broker, 16 client metrics, 32 group); null deletes it."""

    __api_key__: ClassVar[int] = 4
    __versions__: ClassVar[Versions] = Versions(0, 0)

    resource_type: int = field(default=0, metadata={"kafka_type": "int8"})
    resource_name: str = field(default="", metadata={"kafka_type": "string"})
    name: str = field(default="", metadata={"kafka_type": "string"})
    value: str | None = field(default="", metadata={"kafka_type": "string", "nullable": "0+"})


@schema_class
class PartitionChangeRecord(MetadataRecord):
    """A change of a partition; each field has a value that means "unchanged".

    The partition epoch grows by one with each such record, and the leader epoch with each that names a leader,
    the same one included (KIP-101).
    """

    __api_key__: ClassVar[int] = 5
    __versions__: ClassVar[Versions] = Versions(0, 2)

    partition_id: int = field(default=-1, metadata={"kafka_type": "int32"})
    topic_id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})
    #: Null: unchanged.
    isr: list[int] | None = field(default=None, metadata={"kafka_type": "int32", "nullable": "0+", "tag": 0})
    #: -2: unchanged; -1: no leader from here on.
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
    #: All replicas whose local logs are known from here on (draft KIP-1303); null: unchanged.
    local_logs: list[ReplicaLocalLog] | None = field(
        default=None, metadata={"nullable": "0+", "tag": LOCAL_LOG_TAG}
    )


@schema_class
class FenceBrokerRecord(MetadataRecord):
    """A broker is fenced: predecessor of BrokerRegistrationChangeRecord, read but never written."""

    __api_key__: ClassVar[int] = 7
    __versions__: ClassVar[Versions] = Versions(0, 0)

    id: int = field(default=0, metadata={"kafka_type": "int32"})
    epoch: int = field(default=0, metadata={"kafka_type": "int64"})


@schema_class
class UnfenceBrokerRecord(MetadataRecord):
    """A broker is unfenced: predecessor of BrokerRegistrationChangeRecord, read but never written."""

    __api_key__: ClassVar[int] = 8
    __versions__: ClassVar[Versions] = Versions(0, 0)

    id: int = field(default=0, metadata={"kafka_type": "int32"})
    epoch: int = field(default=0, metadata={"kafka_type": "int64"})


@schema_class
class RemoveTopicRecord(MetadataRecord):
    """A topic is deleted, with its partitions and configurations."""

    __api_key__: ClassVar[int] = 9
    __versions__: ClassVar[Versions] = Versions(0, 0)

    topic_id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})


@schema_class
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


@schema_class
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


@schema_class
class FeatureLevelRecord(MetadataRecord):
    """A feature is finalized at this level; 0 is off (KIP-584)."""

    __api_key__: ClassVar[int] = 12
    __versions__: ClassVar[Versions] = Versions(0, 0)

    name: str = field(default="", metadata={"kafka_type": "string"})
    feature_level: int = field(default=0, metadata={"kafka_type": "int16"})


@schema_class
class EntityData:
    """One part of a quota's entity, as ("user", "alice"); a null name is the default of that type."""

    entity_type: str = field(default="", metadata={"kafka_type": "string"})
    entity_name: str | None = field(default="", metadata={"kafka_type": "string", "nullable": "0+"})


@schema_class
class ClientQuotaRecord(MetadataRecord):
    """One quota of one entity is set or removed (KIP-546)."""

    __api_key__: ClassVar[int] = 14
    __versions__: ClassVar[Versions] = Versions(0, 0)

    entity: list[EntityData] = field(default_factory=list)
    key: str = field(default="", metadata={"kafka_type": "string"})
    value: float = field(default=0.0, metadata={"kafka_type": "float64"})
    remove: bool = field(default=False, metadata={"kafka_type": "bool"})


@schema_class
class ProducerIdsRecord(MetadataRecord):
    """A block of producer ids is allocated to a broker; `next_producer_id` is the first free one after it."""

    __api_key__: ClassVar[int] = 15
    __versions__: ClassVar[Versions] = Versions(0, 0)

    broker_id: int = field(default=0, metadata={"kafka_type": "int32"})
    broker_epoch: int = field(default=-1, metadata={"kafka_type": "int64"})
    next_producer_id: int = field(default=0, metadata={"kafka_type": "int64"})


@schema_class
class BrokerRegistrationChangeRecord(MetadataRecord):
    """A change of the broker registration with this epoch."""

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


@schema_class
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


@schema_class
class RemoveAccessControlEntryRecord(MetadataRecord):
    """An ACL entry is deleted."""

    __api_key__: ClassVar[int] = 19
    __versions__: ClassVar[Versions] = Versions(0, 0)

    id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})


@schema_class
class NoOpRecord(MetadataRecord):
    """No change: the log advances even if idle, so that followers can detect a failed leader (KIP-835)."""

    __api_key__: ClassVar[int] = 20
    __versions__: ClassVar[Versions] = Versions(0, 0)


@schema_class
class ZkMigrationStateRecord(MetadataRecord):
    """State of the migration from ZooKeeper: 0 in a cluster that never used ZooKeeper."""

    __api_key__: ClassVar[int] = 21
    __versions__: ClassVar[Versions] = Versions(0, 0)

    zk_migration_state: int = field(default=0, metadata={"kafka_type": "int8"})


@schema_class
class RemoveUserScramCredentialRecord(MetadataRecord):
    """A user's SCRAM credential is deleted."""

    __api_key__: ClassVar[int] = 22
    __versions__: ClassVar[Versions] = Versions(0, 0)

    name: str = field(default="", metadata={"kafka_type": "string"})
    mechanism: int = field(default=0, metadata={"kafka_type": "int8"})


@schema_class
class BeginTransactionRecord(MetadataRecord):
    """The records up to the matching end take effect together (KIP-868)."""

    __api_key__: ClassVar[int] = 23
    __versions__: ClassVar[Versions] = Versions(0, 0)

    name: str | None = field(default=None, metadata={"kafka_type": "string", "nullable": "0+", "tag": 0})


@schema_class
class EndTransactionRecord(MetadataRecord):
    """The records since the matching begin take effect (KIP-868)."""

    __api_key__: ClassVar[int] = 24
    __versions__: ClassVar[Versions] = Versions(0, 0)


@schema_class
class AbortTransactionRecord(MetadataRecord):
    """The records since the matching begin are discarded (KIP-868)."""

    __api_key__: ClassVar[int] = 25
    __versions__: ClassVar[Versions] = Versions(0, 0)

    reason: str | None = field(default=None, metadata={"kafka_type": "string", "nullable": "0+", "tag": 0})


@schema_class
class RemoveDelegationTokenRecord(MetadataRecord):
    """A delegation token is deleted."""

    __api_key__: ClassVar[int] = 26
    __versions__: ClassVar[Versions] = Versions(0, 0)

    token_id: str = field(default="", metadata={"kafka_type": "string"})


@schema_class
class ControllerEndpoint:
    """A listener of a controller: its name, address and security protocol."""

    name: str = field(default="", metadata={"kafka_type": "string"})
    host: str = field(default="", metadata={"kafka_type": "string"})
    port: int = field(default=0, metadata={"kafka_type": "uint16"})
    security_protocol: int = field(default=0, metadata={"kafka_type": "int16"})


@schema_class
class ControllerFeature:
    """Levels of one feature that a controller supports, both ends included."""

    name: str = field(default="", metadata={"kafka_type": "string"})
    min_supported_version: int = field(default=0, metadata={"kafka_type": "int16"})
    max_supported_version: int = field(default=0, metadata={"kafka_type": "int16"})


@schema_class
class RegisterControllerRecord(MetadataRecord):
    """A controller is registered, with its listeners and features (KIP-919)."""

    __api_key__: ClassVar[int] = 27
    __versions__: ClassVar[Versions] = Versions(0, 0)

    controller_id: int = field(default=0, metadata={"kafka_type": "int32"})
    incarnation_id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})
    zk_migration_ready: bool = field(default=False, metadata={"kafka_type": "bool"})
    endpoints: list[ControllerEndpoint] = field(default_factory=list)
    features: list[ControllerFeature] = field(default_factory=list)


@schema_class
class ClearElrRecord(MetadataRecord):
    """The ELR of a topic's partitions is cleared; an empty name means all topics (KIP-966)."""

    __api_key__: ClassVar[int] = 28
    __versions__: ClassVar[Versions] = Versions(0, 0)

    topic_name: str = field(default="", metadata={"kafka_type": "string"})


@schema_class
class UnregisterControllerRecord(MetadataRecord):
    """A controller's registration is removed, of a controller that will not return."""

    __api_key__: ClassVar[int] = 29
    __versions__: ClassVar[Versions] = Versions(0, 0)

    controller_id: int = field(default=0, metadata={"kafka_type": "int32"})


#: The classes by record type.
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
        UnregisterControllerRecord,
    )
}
