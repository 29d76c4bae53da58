"""MetadataImage and MetadataDelta: the cluster's topics, brokers, configurations and features, from the metadata log.

The controller and every broker have an image and replay the same records into it, so images differ only in the
offset that they have reached. Nothing but a replay modifies an image:

    records in order --> MetadataImage.replay(record, delta) --> the image; and in `delta`, what changed

A topic's partitions and a broker's registration are immutable values that a change replaces: a reference to
one stays valid as of its time. The dictionaries themselves are modified in place: 100,000 partitions load in a
second, without a copy of the map for each step.

A record that contradicts the image (a change of a partition that does not exist) raises InvalidMetadata: the
log is corrupt or the image is wrong, and the node cannot continue safely.
Source: MetadataImage, MetadataDelta, TopicsImage, ClusterImage, PartitionRegistration of Kafka 4.3.1; KIP-631.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple
from uuid import UUID

from ottla.metadata import records as r
from ottla.protocol.errors import InvalidTopic
from ottla.protocol.kafka_uuid import to_text
from ottla.protocol.local_log import LocalLogs, local_logs_from
from ottla.protocol.topic_names import check_topic_name
from ottla.protocol.types import ZERO_UUID

#: In PartitionChangeRecord, the leader is unchanged; in both partition records, there is no leader.
LEADER_UNCHANGED: Final = -2
NO_LEADER: Final = -1

#: Reserved directory ids (KIP-858): of replicas from before directories had ids, of replicas
#: to which the broker has not assigned a directory yet, and of replicas in a lost directory.
DIRECTORY_MIGRATING: Final = ZERO_UUID
DIRECTORY_UNASSIGNED: Final = UUID(int=1)
DIRECTORY_LOST: Final = UUID(int=2)


#: Size of the cache of shared tuples; one more clears it.
MAX_SHARED_TUPLES: Final = 100_000

_new_tuple = tuple.__new__


class InvalidMetadata(RuntimeError):
    """The metadata log has invalid content; the node has to stop."""


class ConfigResourceType(IntEnum):
    """The type of a configured resource; the numbers are those of the records and requests."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """One configured resource. The BROKER with an empty name is the cluster-wide default of all brokers."""

    type: ConfigResourceType
    name: str


class LeaderRecoveryState(IntEnum):
    """Whether the leader is still recovering from an unclean election (KIP-704)."""

    RECOVERED = 0
    RECOVERING = 1


class Endpoint(NamedTuple):
    """A listener's address; `security_protocol` is Kafka's number (0 PLAINTEXT ... 3 SASL_SSL)."""

    host: str
    port: int
    security_protocol: int


class PartitionImage(NamedTuple):
    """One partition. Invariants: isr is a subset of replicas; isr and elr are disjoint; epochs never decrease."""

    #: The preferred leader is the first.
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int | None
    leader_epoch: int
    partition_epoch: int
    #: For each of `replicas`, the log directory that holds it (KIP-858).
    directories: tuple[UUID, ...] = ()
    #: Eligible leader replicas: not in the ISR, but with all committed records, so they may be elected (KIP-966).
    elr: tuple[int, ...] = ()
    #: The last leader, while there is no leader.
    last_known_elr: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    #: The local logs of replicas as leaders have reported them; a replica without one is unknown (draft KIP-1303).
    local_logs: LocalLogs = ()


@dataclass(slots=True)
class TopicImage:
    """One topic; its partitions are 0, 1, ... without gaps."""

    name: str
    topic_id: UUID
    partitions: dict[int, PartitionImage] = field(default_factory=dict)


class BrokerImage(NamedTuple):
    """A broker's registration; `epoch` is its broker epoch."""

    broker_id: int
    epoch: int
    incarnation_id: UUID
    #: By listener name, in the broker's order.
    endpoints: Mapping[str, Endpoint]
    rack: str | None
    is_fenced: bool
    in_controlled_shutdown: bool
    #: Feature -> supported levels, half-open.
    features: Mapping[str, range]
    #: The directories that are online.
    log_dirs: tuple[UUID, ...] = ()
    #: Cordoned directories, which take no new replicas (KIP-1066); None until the broker has reported them.
    cordoned_log_dirs: tuple[UUID, ...] | None = None

    @property
    def is_active(self) -> bool:
        """Whether the broker's replicas may lead and be in an ISR."""
        return not self.is_fenced and not self.in_controlled_shutdown


class ControllerImage(NamedTuple):
    """A controller's registration (KIP-919)."""

    controller_id: int
    incarnation_id: UUID
    endpoints: Mapping[str, Endpoint]
    features: Mapping[str, range]


#: A quota's entity: (type, name) pairs in the order of their types; a None name is that type's default.
QuotaEntity = tuple[tuple[str, str | None], ...]


@dataclass(slots=True)
class MetadataDelta:
    """The changes that some records make to an image. A topic that they create and delete does not appear."""

    topics_created: set[UUID] = field(default_factory=set)
    #: As they were when they were deleted.
    topics_deleted: dict[UUID, TopicImage] = field(default_factory=dict)
    #: Topic id -> partitions that are new or different, those of new topics included.
    partitions_changed: dict[UUID, set[int]] = field(default_factory=dict)
    #: Includes the configurations that were deleted with their topic.
    configs_changed: set[ConfigResource] = field(default_factory=set)
    #: Registered, changed or unregistered.
    brokers_changed: set[int] = field(default_factory=set)
    controllers_changed: set[int] = field(default_factory=set)
    features_changed: set[str] = field(default_factory=set)
    quotas_changed: set[QuotaEntity] = field(default_factory=set)
    acls_changed: set[UUID] = field(default_factory=set)
    #: (user, mechanism).
    scram_credentials_changed: set[tuple[str, int]] = field(default_factory=set)
    delegation_tokens_changed: set[str] = field(default_factory=set)

    def partition_changed(self, topic_id: UUID, index: int) -> None:
        """A partition is new or different."""
        try:
            self.partitions_changed[topic_id].add(index)
        except KeyError:
            self.partitions_changed[topic_id] = {index}


@dataclass(slots=True)
class MetadataImage:
    """The cluster as of some offset of the metadata log. Only `replay` modifies it."""

    topics_by_name: dict[str, TopicImage] = field(default_factory=dict)
    topics_by_id: dict[UUID, TopicImage] = field(default_factory=dict)
    brokers: dict[int, BrokerImage] = field(default_factory=dict)
    controllers: dict[int, ControllerImage] = field(default_factory=dict)
    #: Only resources with at least one configuration.
    configs: dict[ConfigResource, dict[str, str]] = field(default_factory=dict)
    #: Finalized levels above 0.
    features: dict[str, int] = field(default_factory=dict)
    #: The first producer id that is not allocated to a broker.
    next_producer_id: int = 0
    client_quotas: dict[QuotaEntity, dict[str, float]] = field(default_factory=dict)
    acls: dict[UUID, r.AccessControlEntryRecord] = field(default_factory=dict)
    scram_credentials: dict[tuple[str, int], r.UserScramCredentialRecord] = field(default_factory=dict)
    delegation_tokens: dict[str, r.DelegationTokenRecord] = field(default_factory=dict)
    #: Equal tuples of replicas and directories are kept once: thousands of partitions share a few.
    _shared: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict, compare=False, repr=False)

    def replay(self, record: r.MetadataRecord, delta: MetadataDelta) -> None:
        """Apply one committed record and note in `delta` what it changed. Raises InvalidMetadata."""
        try:
            apply = _REPLAY[type(record)]
        except KeyError:
            raise InvalidMetadata(f"{type(record).__name__} cannot be replayed") from None
        apply(self, record, delta)

    def replay_all(self, records: Iterable[r.MetadataRecord]) -> MetadataDelta:
        """Apply records in order; returns what they changed together. Raises InvalidMetadata."""
        delta = MetadataDelta()
        replay = self.replay
        for record in records:
            replay(record, delta)
        return delta

    def copy(self) -> "MetadataImage":
        """A copy of the image, for another thread to read while this one is modified.

        Partitions, registrations and records are immutable and shared. Cost: 10 ms for 100,000 partitions in
        1,000 topics.
        """
        topics = [
            TopicImage(topic.name, topic.topic_id, topic.partitions.copy())
            for topic in self.topics_by_id.values()
        ]
        return MetadataImage(
            topics_by_name={topic.name: topic for topic in topics},
            topics_by_id={topic.topic_id: topic for topic in topics},
            brokers=self.brokers.copy(),
            controllers=self.controllers.copy(),
            configs={resource: configs.copy() for resource, configs in self.configs.items()},
            features=self.features.copy(),
            next_producer_id=self.next_producer_id,
            client_quotas={entity: quotas.copy() for entity, quotas in self.client_quotas.items()},
            acls=self.acls.copy(),
            scram_credentials=self.scram_credentials.copy(),
            delegation_tokens=self.delegation_tokens.copy(),
            _shared=self._shared.copy(),
        )

    # -- look-ups that several parts need -----------------------------------------------------------

    def config(self, resource: ConfigResource) -> Mapping[str, str]:
        """A resource's own configurations; empty if it has none."""
        return self.configs.get(resource, _NOTHING)

    def topic_config(self, name: str) -> Mapping[str, str]:
        """The configuration overrides of a topic, by key; empty if it has none."""
        return self.configs.get(ConfigResource(ConfigResourceType.TOPIC, name), _NOTHING)

    def partition(self, topic_id: UUID, index: int) -> PartitionImage | None:
        """A partition by its topic's id."""
        topic = self.topics_by_id.get(topic_id)
        return None if topic is None else topic.partitions.get(index)

    @property
    def metadata_version(self) -> int | None:
        """The finalized level of metadata.version; None before the first record."""
        return self.features.get(METADATA_VERSION)

    # -- topics --------------------------------------------------------------------------------------

    def _topic(self, record: r.TopicRecord, delta: MetadataDelta) -> None:
        if record.name in self.topics_by_name or record.topic_id in self.topics_by_id:
            raise InvalidMetadata(f"topic {record.name} ({to_text(record.topic_id)}) is created twice")
        try:
            check_topic_name(record.name)  # brokers make folders of this name
        except InvalidTopic as error:
            raise InvalidMetadata(str(error)) from error
        topic = TopicImage(record.name, record.topic_id)
        self.topics_by_name[record.name] = self.topics_by_id[record.topic_id] = topic
        delta.topics_created.add(record.topic_id)

    def _partition(self, record: r.PartitionRecord, delta: MetadataDelta) -> None:
        topic = self._topic_of(record)
        share = self._share
        replicas = share(record.replicas)
        # Positional, because a NamedTuple's own constructor takes twice as long; a start creates all partitions.
        values = (
            replicas,
            share(record.isr),
            None if record.leader == NO_LEADER else record.leader,
            record.leader_epoch,
            record.partition_epoch,
            share(record.directories) or (DIRECTORY_MIGRATING,) * len(replicas),
            share(record.eligible_leader_replicas) if record.eligible_leader_replicas else (),
            share(record.last_known_elr) if record.last_known_elr else (),
            share(record.adding_replicas) if record.adding_replicas else (),
            share(record.removing_replicas) if record.removing_replicas else (),
            _recovery_state(record.leader_recovery_state),
            local_logs_from(record.local_logs) if record.local_logs else (),
        )
        topic.partitions[record.partition_id] = _new_tuple(PartitionImage, values)
        delta.partition_changed(record.topic_id, record.partition_id)

    def _partition_change(self, record: r.PartitionChangeRecord, delta: MetadataDelta) -> None:
        topic = self._topic_of(record)
        if (partition := topic.partitions.get(record.partition_id)) is None:
            raise InvalidMetadata(f"{topic.name}-{record.partition_id} is changed, but does not exist")
        topic.partitions[record.partition_id] = self.merged(partition, record)
        delta.partition_changed(record.topic_id, record.partition_id)

    def merged(self, partition: PartitionImage, record: r.PartitionChangeRecord) -> PartitionImage:
        """The partition after the change.

        Invariant: each change increments the partition epoch; each one that names a leader, even the same one or none,
        increments the leader epoch (KIP-101, KIP-631).
        """
        share = self._share
        (
            replicas, isr, leader, leader_epoch, partition_epoch, directories,
            elr, last_known_elr, adding_replicas, removing_replicas, leader_recovery_state, local_logs,
        ) = partition  # fmt: skip
        if record.leader != LEADER_UNCHANGED:
            leader = None if record.leader == NO_LEADER else record.leader
            leader_epoch += 1
        if record.leader_recovery_state != -1:
            leader_recovery_state = _recovery_state(record.leader_recovery_state)
        if record.isr is not None:
            isr = share(record.isr)
        if record.eligible_leader_replicas is not None:
            elr = share(record.eligible_leader_replicas)
        if record.last_known_elr is not None:
            last_known_elr = share(record.last_known_elr)
        if record.adding_replicas is not None:
            adding_replicas = share(record.adding_replicas)
        if record.removing_replicas is not None:
            removing_replicas = share(record.removing_replicas)
        if record.replicas is not None:
            replicas = share(record.replicas)
            if set(directories) == {DIRECTORY_MIGRATING}:
                # Below 3.7-IV2 no record names directories, but each replica must have one.
                directories = share((DIRECTORY_MIGRATING,) * len(replicas))
        if record.directories is not None:
            directories = share(record.directories)
        if record.local_logs is not None:
            local_logs = local_logs_from(record.local_logs)
        values = (
            replicas, isr, leader, leader_epoch, partition_epoch + 1, directories,
            elr, last_known_elr, adding_replicas, removing_replicas, leader_recovery_state, local_logs,
        )  # fmt: skip
        return _new_tuple(PartitionImage, values)

    def _remove_topic(self, record: r.RemoveTopicRecord, delta: MetadataDelta) -> None:
        topic = self._topic_of(record)
        del self.topics_by_id[topic.topic_id], self.topics_by_name[topic.name]
        resource = ConfigResource(ConfigResourceType.TOPIC, topic.name)
        if self.configs.pop(resource, None) is not None:
            delta.configs_changed.add(resource)
        delta.partitions_changed.pop(topic.topic_id, None)
        if topic.topic_id in delta.topics_created:
            delta.topics_created.remove(topic.topic_id)
        else:
            delta.topics_deleted[topic.topic_id] = topic

    def _clear_elr(self, record: r.ClearElrRecord, delta: MetadataDelta) -> None:
        if not record.topic_name:
            topics = list(self.topics_by_name.values())
        elif (topic := self.topics_by_name.get(record.topic_name)) is not None:
            topics = [topic]
        else:
            raise InvalidMetadata(f"the ELR of topic {record.topic_name} is cleared, but it does not exist")
        for topic in topics:
            for index, partition in topic.partitions.items():
                if partition.elr or partition.last_known_elr:
                    topic.partitions[index] = partition._replace(
                        elr=(), last_known_elr=(), partition_epoch=partition.partition_epoch + 1
                    )
                    delta.partition_changed(topic.topic_id, index)

    def _topic_of(
        self, record: "r.PartitionRecord | r.PartitionChangeRecord | r.RemoveTopicRecord"
    ) -> TopicImage:
        topic = self.topics_by_id.get(record.topic_id)
        if topic is None:
            raise InvalidMetadata(
                f"{type(record).__name__} of topic {to_text(record.topic_id)}, which does not exist"
            )
        return topic

    def _share(self, values: Collection[Any]) -> tuple[Any, ...]:
        if not values:
            return ()
        shared = tuple(values)
        if len(self._shared) >= MAX_SHARED_TUPLES:
            self._shared.clear()
        return self._shared.setdefault(shared, shared)

    # -- nodes ---------------------------------------------------------------------------------------

    def _register_broker(self, record: r.RegisterBrokerRecord, delta: MetadataDelta) -> None:
        self.brokers[record.broker_id] = BrokerImage(
            broker_id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record.endpoints),
            rack=record.rack,
            is_fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            features=_features(record.features),
            log_dirs=tuple(record.log_dirs),
            cordoned_log_dirs=None if record.cordoned_log_dirs is None else tuple(record.cordoned_log_dirs),
        )
        delta.brokers_changed.add(record.broker_id)

    def _unregister_broker(self, record: r.UnregisterBrokerRecord, delta: MetadataDelta) -> None:
        self._broker_of(record.broker_id, record.broker_epoch)
        del self.brokers[record.broker_id]
        delta.brokers_changed.add(record.broker_id)

    def _fence_broker(self, record: r.FenceBrokerRecord, delta: MetadataDelta) -> None:
        self._change_broker(self._broker_of(record.id, record.epoch), {"is_fenced": True}, delta)

    def _unfence_broker(self, record: r.UnfenceBrokerRecord, delta: MetadataDelta) -> None:
        self._change_broker(self._broker_of(record.id, record.epoch), {"is_fenced": False}, delta)

    def _broker_registration_change(
        self, record: r.BrokerRegistrationChangeRecord, delta: MetadataDelta
    ) -> None:
        broker = self._broker_of(record.broker_id, record.broker_epoch)
        if record.fenced not in (-1, 0, 1) or record.in_controlled_shutdown not in (0, 1):
            raise InvalidMetadata(f"a registration of broker {broker.broker_id} changes to an unknown state")
        changes: dict[str, Any] = {}
        if record.fenced:
            changes["is_fenced"] = record.fenced == 1
        if record.in_controlled_shutdown:
            changes["in_controlled_shutdown"] = True
        if record.log_dirs:
            changes["log_dirs"] = tuple(record.log_dirs)
        if record.cordoned_log_dirs is not None:
            changes["cordoned_log_dirs"] = tuple(record.cordoned_log_dirs)
        self._change_broker(broker, changes, delta)

    def _change_broker(self, broker: BrokerImage, changes: dict[str, Any], delta: MetadataDelta) -> None:
        self.brokers[broker.broker_id] = broker._replace(**changes)
        delta.brokers_changed.add(broker.broker_id)

    def _broker_of(self, broker_id: int, epoch: int) -> BrokerImage:
        broker = self.brokers.get(broker_id)
        if broker is None or broker.epoch != epoch:
            raise InvalidMetadata(f"broker {broker_id} has no registration of epoch {epoch}")
        return broker

    def _register_controller(self, record: r.RegisterControllerRecord, delta: MetadataDelta) -> None:
        self.controllers[record.controller_id] = ControllerImage(
            controller_id=record.controller_id,
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record.endpoints),
            features=_features(record.features),
        )
        delta.controllers_changed.add(record.controller_id)

    def _unregister_controller(self, record: r.UnregisterControllerRecord, delta: MetadataDelta) -> None:
        if self.controllers.pop(record.controller_id, None) is None:
            raise InvalidMetadata(f"controller {record.controller_id} has no registration to remove")
        delta.controllers_changed.add(record.controller_id)

    # -- everything else -----------------------------------------------------------------------------

    def _config(self, record: r.ConfigRecord, delta: MetadataDelta) -> None:
        try:
            resource = ConfigResource(ConfigResourceType(record.resource_type), record.resource_name)
        except ValueError:
            raise InvalidMetadata(f"a configuration of resource type {record.resource_type}") from None
        if record.value is not None:
            self.configs.setdefault(resource, {})[record.name] = record.value
        elif (configs := self.configs.get(resource)) is not None:
            configs.pop(record.name, None)
            if not configs:
                del self.configs[resource]
        delta.configs_changed.add(resource)

    def _feature_level(self, record: r.FeatureLevelRecord, delta: MetadataDelta) -> None:
        if record.name == _KRAFT_VERSION:
            return  # older software wrote it here, too; only the control record is in effect (KAFKA-18979)
        if record.feature_level == 0:
            self.features.pop(record.name, None)
        else:
            self.features[record.name] = record.feature_level
        delta.features_changed.add(record.name)

    def _producer_ids(self, record: r.ProducerIdsRecord, delta: MetadataDelta) -> None:
        if record.next_producer_id <= self.next_producer_id:
            raise InvalidMetadata(
                f"producer ids go back from {self.next_producer_id} to {record.next_producer_id}"
            )
        self.next_producer_id = record.next_producer_id

    def _client_quota(self, record: r.ClientQuotaRecord, delta: MetadataDelta) -> None:
        entity = tuple(sorted((part.entity_type, part.entity_name) for part in record.entity))
        if not record.remove:
            self.client_quotas.setdefault(entity, {})[record.key] = record.value
        elif (quotas := self.client_quotas.get(entity)) is not None:
            quotas.pop(record.key, None)
            if not quotas:
                del self.client_quotas[entity]
        delta.quotas_changed.add(entity)

    def _access_control_entry(self, record: r.AccessControlEntryRecord, delta: MetadataDelta) -> None:
        self.acls[record.id] = record
        delta.acls_changed.add(record.id)

    def _remove_access_control_entry(
        self, record: r.RemoveAccessControlEntryRecord, delta: MetadataDelta
    ) -> None:
        if self.acls.pop(record.id, None) is None:
            raise InvalidMetadata(f"ACL {to_text(record.id)} is removed, but does not exist")
        delta.acls_changed.add(record.id)

    def _scram_credential(self, record: r.UserScramCredentialRecord, delta: MetadataDelta) -> None:
        self.scram_credentials[record.name, record.mechanism] = record
        delta.scram_credentials_changed.add((record.name, record.mechanism))

    def _remove_scram_credential(
        self, record: r.RemoveUserScramCredentialRecord, delta: MetadataDelta
    ) -> None:
        if self.scram_credentials.pop((record.name, record.mechanism), None) is None:
            raise InvalidMetadata(f"the SCRAM credential of {record.name} is removed, but does not exist")
        delta.scram_credentials_changed.add((record.name, record.mechanism))

    def _delegation_token(self, record: r.DelegationTokenRecord, delta: MetadataDelta) -> None:
        self.delegation_tokens[record.token_id] = record
        delta.delegation_tokens_changed.add(record.token_id)

    def _remove_delegation_token(self, record: r.RemoveDelegationTokenRecord, delta: MetadataDelta) -> None:
        self.delegation_tokens.pop(record.token_id, None)
        delta.delegation_tokens_changed.add(record.token_id)

    def _nothing(self, record: r.MetadataRecord, delta: MetadataDelta) -> None:
        """Ignore the record: NoOp, the ZooKeeper migration state.

        Metadata transactions are resolved before `replay`.
        """


METADATA_VERSION: Final = "metadata.version"
_KRAFT_VERSION: Final = "kraft.version"


_NOTHING: Final[Mapping[str, str]] = {}


def _recovery_state(number: int) -> LeaderRecoveryState:
    if number == 0:
        return LeaderRecoveryState.RECOVERED  # nearly always; the enumeration's own look-up costs 0.4 us
    try:
        return LeaderRecoveryState(number)
    except ValueError:
        raise InvalidMetadata(f"leader recovery state {number} is unknown") from None


def _endpoints(endpoints: Iterable[r.BrokerEndpoint | r.ControllerEndpoint]) -> dict[str, Endpoint]:
    return {each.name: Endpoint(each.host, each.port, each.security_protocol) for each in endpoints}


def _features(features: Iterable[r.BrokerFeature | r.ControllerFeature]) -> dict[str, range]:
    return {each.name: range(each.min_supported_version, each.max_supported_version + 1) for each in features}


_REPLAY: Final[dict[type[r.MetadataRecord], Callable[[MetadataImage, Any, MetadataDelta], None]]] = {
    r.RegisterBrokerRecord: MetadataImage._register_broker,
    r.UnregisterBrokerRecord: MetadataImage._unregister_broker,
    r.TopicRecord: MetadataImage._topic,
    r.PartitionRecord: MetadataImage._partition,
    r.ConfigRecord: MetadataImage._config,
    r.PartitionChangeRecord: MetadataImage._partition_change,
    r.FenceBrokerRecord: MetadataImage._fence_broker,
    r.UnfenceBrokerRecord: MetadataImage._unfence_broker,
    r.RemoveTopicRecord: MetadataImage._remove_topic,
    r.DelegationTokenRecord: MetadataImage._delegation_token,
    r.UserScramCredentialRecord: MetadataImage._scram_credential,
    r.FeatureLevelRecord: MetadataImage._feature_level,
    r.ClientQuotaRecord: MetadataImage._client_quota,
    r.ProducerIdsRecord: MetadataImage._producer_ids,
    r.BrokerRegistrationChangeRecord: MetadataImage._broker_registration_change,
    r.AccessControlEntryRecord: MetadataImage._access_control_entry,
    r.RemoveAccessControlEntryRecord: MetadataImage._remove_access_control_entry,
    r.NoOpRecord: MetadataImage._nothing,
    r.ZkMigrationStateRecord: MetadataImage._nothing,
    r.RemoveUserScramCredentialRecord: MetadataImage._remove_scram_credential,
    r.RemoveDelegationTokenRecord: MetadataImage._remove_delegation_token,
    r.RegisterControllerRecord: MetadataImage._register_controller,
    r.UnregisterControllerRecord: MetadataImage._unregister_controller,
    r.ClearElrRecord: MetadataImage._clear_elr,
}
