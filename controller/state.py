"""The controller's state: all that its decisions depend on.

    image       the sum of the metadata log's records; changed by `replay`, and by nothing else
    offsets     offsets of the brokers' registrations in the log; changed by `replay`, too
    sessions    the last heartbeats of brokers: not in the log, restarted by a new active controller
    kraft       the quorum itself: its version and voters; the shell sets its Raft layer
    wall clock  the time of the present decision; the shell sets it
    parts       what frees the large containers of a decision in turns of the loop; the shell sets it

Handlers read all of it and return records; they change `sessions` only.

Users see kraft.version as a feature, but it is stored in control records of the log, not in metadata records
(KIP-853). So a decision about it is checked with the Raft layer, and the shell calls `upgrade` once the
decision is made.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from ottla.config.log_config import TOPIC_CONFIGS, LogConfig
from ottla.config.topic_configs import LEADER_PREFERENCE_CONFIGS
from ottla.controller.effective_configs import TopicDefaults, resolve
from ottla.controller.sessions import Sessions
from ottla.controller.settings import ConfigValidators, ControllerSettings
from ottla.metadata.features import DIRECTORIES_3_7_IV2
from ottla.metadata.image import (
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    BrokerImage,
    ConfigResourceType,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from ottla.metadata.leader_preference import LeaderPreference
from ottla.metadata.records import MetadataRecord, RegisterBrokerRecord, UnregisterBrokerRecord
from ottla.protocol.errors import InvalidUpdateVersion, StaleBrokerEpoch

if TYPE_CHECKING:
    from random import Random


ELR_FEATURE = "eligible.leader.replicas.version"


class KraftVersionLayer(Protocol):
    """The Raft layer, as far as UpdateFeatures needs it."""

    @property
    def version(self) -> int:
        """The finalized level of the feature kraft.version."""

    @property
    def voter_ids(self) -> frozenset[int]:
        """The ids of all voters."""

    def check_upgrade(self, level: int) -> None:
        """Whether the quorum can move to this version. Raises InvalidUpdateVersion; changes nothing."""

    def upgrade(self, level: int) -> None:
        """Append the control records of a version that `check_upgrade` has accepted."""


class FixedKraftVersion:
    """A quorum with a fixed version: the default of `ClusterState`, until the shell sets the real one."""

    def __init__(self, version: int = 0, voter_ids: frozenset[int] = frozenset()) -> None:
        self.version = version
        self.voter_ids = voter_ids

    def check_upgrade(self, level: int) -> None:
        """Raise InvalidUpdateVersion unless `level` is the current version."""
        if level != self.version:
            raise InvalidUpdateVersion(
                f"Invalid upgrade of kraft.version from version {self.version} to {level}"
            )

    def upgrade(self, level: int) -> None:
        """Do nothing: `check_upgrade` accepts only the current version."""


class ClusterState:
    """The state machine's state. `random` is the node's; `next_offset` is the offset of the next record."""

    def __init__(
        self,
        *,
        settings: ControllerSettings,
        validators: ConfigValidators,
        random: "Random",
        image: MetadataImage | None = None,
        next_offset: int = 0,
    ) -> None:
        """Begin with an image of everything before `next_offset`, which the state owns from here on."""
        self.settings = settings
        self.validators = validators
        self.random = random
        self.image = image or MetadataImage()
        self.sessions = Sessions(timeout_ms=settings.broker_session_timeout_ms)
        self.kraft: KraftVersionLayer = FixedKraftVersion()
        self.next_offset = next_offset
        #: For comparisons with timestamps of records, and nothing else: it may go back.
        self.wall_clock_ms = 0
        #: Makes a list to which a decision adds its containers of any size: `ottla.runtime.turns.FreedInTurns`.
        self.new_parts: Callable[[], list[Any]] = list
        # The offsets of earlier registrations are not known; the last offset is an upper bound.
        #: Broker id -> offset of its last RegisterBrokerRecord.
        self.registration_offsets = dict.fromkeys(self.image.brokers, next_offset - 1)
        self._topic_defaults: TopicDefaults | None = None
        #: Topic names with every '.' replaced by '_' -> the names that this results from.
        self.topics_with_collision_chars: dict[str, set[str]] = {}
        for name in self.image.topics_by_name:
            self.topics_with_collision_chars.setdefault(unify_collision_chars(name), set()).add(name)

    def replay(self, records: Iterable[MetadataRecord], base_offset: int) -> None:
        """Apply records at `base_offset` and the offsets that follow.

        Raises InvalidMetadata; records before the bad one stay applied.
        """
        delta = MetadataDelta()
        for offset, record in enumerate(records, start=base_offset):
            self.image.replay(record, delta)
            if type(record) is RegisterBrokerRecord:
                self.registration_offsets[record.broker_id] = offset
            elif type(record) is UnregisterBrokerRecord:
                self.registration_offsets.pop(record.broker_id, None)
                self.sessions.remove(record.broker_id)
            self.next_offset = offset + 1
        if any(each.type is ConfigResourceType.BROKER for each in delta.configs_changed):
            self._topic_defaults = None
        # Deleted topics first: a topic may have been created with the name of a deleted one.
        for topic in delta.topics_deleted.values():
            alike = self.topics_with_collision_chars[unify_collision_chars(topic.name)]
            alike.remove(topic.name)
            if not alike:
                del self.topics_with_collision_chars[unify_collision_chars(topic.name)]
        for topic_id in delta.topics_created:
            name = self.image.topics_by_id[topic_id].name
            self.topics_with_collision_chars.setdefault(unify_collision_chars(name), set()).add(name)

    # -- look-ups -----------------------------------------------------------------------------------

    @property
    def metadata_version(self) -> int:
        """The finalized metadata.version; there is one as soon as requests are served."""
        level = self.image.metadata_version
        assert level is not None, "no metadata.version has been replayed"
        return level

    @property
    def is_elr_enabled(self) -> bool:
        """Whether partitions have eligible leader replicas (KIP-966)."""
        return self.image.features.get(ELR_FEATURE, 0) > 0

    def is_active(self, broker_id: int) -> bool:
        """Whether the broker is registered, unfenced and not about to leave."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def check_broker_epoch(self, broker_id: int, broker_epoch: int) -> BrokerImage:
        """The broker's registration. Raises StaleBrokerEpoch if `broker_epoch` is not the current one."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            raise StaleBrokerEpoch(f"No broker registration found for broker id {broker_id}")
        if broker.epoch != broker_epoch:
            raise StaleBrokerEpoch(
                f"Expected broker epoch {broker.epoch}, but got broker epoch {broker_epoch}"
            )
        return broker

    def partitions(self) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
        """All partitions. Events that concern a broker scan them; there is no index by broker to maintain.

        Cost: a scan of 100,000 partitions takes 10 to 20 ms in turns of the loop (`scanned`), once per broker that is
        fenced or unfenced; deciding and replaying the changes of the 10,000 that it was in sync for takes 25 ms.
        """
        for topic in self.image.topics_by_id.values():
            for index, partition in topic.partitions.items():
                yield topic, index, partition

    def default_directory(self, broker_id: int) -> UUID:
        """The directory of a new replica on this broker, as far as the controller knows it (KIP-858)."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            return DIRECTORY_UNASSIGNED
        if not broker.log_dirs or self.metadata_version < DIRECTORIES_3_7_IV2:
            return DIRECTORY_MIGRATING
        return broker.log_dirs[0] if len(broker.log_dirs) == 1 else DIRECTORY_UNASSIGNED

    # -- configurations ------------------------------------------------------------------------------

    def topic_setting(self, topic_name: str, key: str) -> str:
        """The effective value for a topic, as text."""
        return resolve(key, self.image.topic_config(topic_name), self.topic_defaults).value or ""

    @property
    def topic_defaults(self) -> TopicDefaults:
        """Effective values for topics without overrides; cached, since an election reads them for each partition."""
        if self._topic_defaults is None:
            settings = self.settings
            self._topic_defaults = TopicDefaults(
                self.image, node_id=settings.node_id, static=settings.static_configs
            )
        return self._topic_defaults

    def min_insync_replicas(self, topic: TopicImage, *, configured: str | None = None) -> int:
        """The topic's min.insync.replicas, or `configured` in its place; at most as many as it has replicas."""
        wanted = int(configured or self.topic_setting(topic.name, "min.insync.replicas"))
        first = topic.partitions.get(0)
        return wanted if first is None else min(wanted, len(first.replicas))

    def is_unclean_election_enabled(self, topic: TopicImage) -> bool:
        """Whether the topic allows unclean elections, which may lose records."""
        return self.topic_setting(topic.name, "unclean.leader.election.enable").strip().lower() == "true"

    def leader_preference(self, topic: TopicImage) -> LeaderPreference:
        """The rules by which elections of the topic take local logs into account (draft KIP-1303)."""
        keys = ("remote.storage.enable", *LEADER_PREFERENCE_CONFIGS)
        config = LogConfig.from_values(
            {key: TOPIC_CONFIGS[key].parse(self.topic_setting(topic.name, key)) for key in keys}
        )
        return config.leader_preference

    def brokers(self) -> list[BrokerImage]:
        """All registered brokers, by id."""
        return [broker for _, broker in sorted(self.image.brokers.items())]


def unify_collision_chars(name: str) -> str:
    """The name as metrics show it, where '.' and '_' are not distinguished.

    >>> unify_collision_chars("a.b") == unify_collision_chars("a_b")
    True
    """
    return name.replace(".", "_")
