"""One node: the Raft machine with its real log and files on a disk that can lose what was not flushed.

It is driven as `ottla.controller.quorum.driver` drives it: one event at a time, its effects in order,
each before the next; what arrives meanwhile waits. Only time, disk and network are simulated.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from raft_events import MS, Events
from raft_network import Exchange, Network

from ottla.controller.metadata_log import quorum_state, snapshots
from ottla.controller.metadata_log.log import MetadataLog
from ottla.controller.metadata_log.log_cleaning import MetadataLogSettings
from ottla.controller.metadata_log.new_batches import batches_of
from ottla.controller.metadata_log.snapshot_writer import SnapshotWriter
from ottla.controller.raft.effects import (
    Committed,
    Effect,
    Fatal,
    Flush,
    Freeze,
    LeaderChanged,
    Persist,
    Reply,
    Send,
    SnapshotLoaded,
    Stopped,
)
from ottla.controller.raft.machine import Raft
from ottla.controller.raft.roles import Leader
from ottla.controller.raft.types import NEVER_MS, Address, OffsetAndEpoch, RaftSettings
from ottla.metadata import records as r
from ottla.metadata.frame import decode_record
from ottla.metadata.image import ConfigResource, ConfigResourceType, MetadataImage
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from ottla.protocol.messages.vote import VoteRequest
from ottla.protocol.messages.voters_record import VotersRecord
from ottla.protocol.records.batch import batches
from ottla.protocol.records.record import records as records_of
from ottla.stories.partition.faulty_files import FaultyFiles, Loss

LOG_DIR = Path("/disk")
LISTENER = "CONTROLLER"
CLUSTER = "raft-simulation"
VALUE = ConfigResource(ConfigResourceType.BROKER, "")
#: Small, so that logs roll and are cleaned all the time.
LOG_SETTINGS = MetadataLogSettings(log_segment_bytes=4096, max_retention_bytes=6000, max_retention_ms=None)


@dataclass(slots=True)
class Disk:
    """A disk, with the time that it takes to make something durable."""

    max_delay_ms: float = 1.0


class Broken(AssertionError):
    """A property does not hold."""


class Node:
    """A replica: voter or observer, running or not; what it has on disk, and its clock."""

    def __init__(
        self, id: int, *, events: Events, network: Network, random: Random, judge: Any, clock_rate: float
    ) -> None:
        self.id = id
        self.address = Address(f"node-{id}", 9000 + id)
        self.events = events
        self.network = network
        self.random = random
        self.judge = judge
        self.clock_rate = clock_rate
        self.disk = Disk()
        #: Of an observer that is a broker: it never votes.
        self.can_become_voter = True
        self.auto_join = False
        self.static_voters: dict[int, Address] = {}
        self.bootstrap_servers: tuple[Address, ...] = ()
        self.incarnation = 0
        self.directory_number = 0
        self.is_running = False
        self.files = self._new_disk()
        #: What is on the disk for certain; kept while the node is down.
        self.durable_end = 0
        self.answers: dict[Any, Callable[[Any], None]] = {}
        network.nodes[self.address] = self

    # -- life ----------------------------------------------------------------------------------------------

    def _new_disk(self) -> FaultyFiles:
        files = FaultyFiles(random=self.random)
        files.make_dir(LOG_DIR)
        files.fsync_path(Path("/"))
        return files

    @property
    def directory_id(self) -> UUID:
        """The directory id of this disk."""
        return UUID(int=self.id * 1000 + 100 + self.directory_number)

    @property
    def directory(self) -> Path:
        """The directory of the log."""
        return LOG_DIR / "__cluster_metadata-0"

    def format(self, voters: VotersRecord) -> None:
        """The first voters of a quorum of kraft.version 1."""
        self.files.make_dir(self.directory)
        self.files.fsync_dir(LOG_DIR)
        snapshots.write_voters(self.directory, voters, self.files, now_ms=0)

    def lose_disk(self) -> None:
        """It comes back with an empty one."""
        assert not self.is_running
        self.directory_number += 1
        self.files = self._new_disk()
        self.durable_end = 0
        self.events.note("disk of", self.id, "is lost")

    def start(self) -> None:
        """Open the log, resume."""
        assert not self.is_running, self.id
        self.incarnation += 1
        self.is_running = True
        self.is_busy = False
        self.inbox: deque[tuple[int, Callable[[int], list[Effect]]]] = deque()
        self.timer_at: int | None = None
        self.is_append_queued = False
        self.writer: SnapshotWriter | None = None
        self.answers.clear()
        self.log = MetadataLog.open(
            LOG_DIR, files=self.files, random=self.random, now_ms=self.now_ms, settings=LOG_SETTINGS
        )
        election = quorum_state.read(self.directory, self.files)
        settings = RaftSettings(
            node_id=self.id,
            directory_id=self.directory_id,
            cluster_id=CLUSTER,
            listener_name=LISTENER,
            endpoints={LISTENER: self.address} if self.can_become_voter else {},
            static_voters=self.static_voters,
            bootstrap_servers=self.bootstrap_servers,
            can_become_voter=self.can_become_voter,
            auto_join_enable=self.auto_join,
            fetch_max_bytes=2048,
            fetch_snapshot_max_bytes=200,
        )
        self.raft = Raft(settings=settings, log=self.log, election=election, random=self.random)
        self.image = MetadataImage()
        self.applied = 0
        self.leader = self.raft.leader_and_epoch
        self.events.note("start", self.id, self.log.log_start_offset, self.log.end, election)
        snapshot = self.log.latest_snapshot
        if snapshot is not None and snapshot.offset > 0:
            self._load(snapshot)
        self._carry_out(deque(self.raft.start(self.now_ms)))
        self._go_on()

    def crash(self, loss: Loss) -> None:
        """The process ends, and perhaps the power."""
        assert self.is_running
        self.durable_end = self.durable_now
        self.is_running = False
        self.incarnation += 1  # messages in flight are not for the next one
        self.files = self.files.after_crash(self.random, loss)
        self.events.note("crash", self.id, loss.name)

    @property
    def durable_now(self) -> int:
        """Everything before it survives the power."""
        if not self.is_running:
            return self.durable_end
        snapshot = self.log.latest_snapshot
        return max(self.log._log.recovery_point, 0 if snapshot is None else snapshot.offset)

    # -- time ----------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """The time by the node's own clock."""
        return 1_000_000 + int(self.events.now / MS * self.clock_rate)

    def global_delay(self, local_ms: float) -> int:
        """The duration of one of the node's milliseconds."""
        return ceil(local_ms * MS / self.clock_rate)

    def _set_timer(self) -> None:
        deadline_ms = self.raft.next_deadline_ms
        if deadline_ms >= NEVER_MS:
            return
        at = max(self.events.now + 1, ceil((deadline_ms - 1_000_000) / self.clock_rate * MS))
        if self.timer_at is not None and self.events.now < self.timer_at <= at:
            return
        self.timer_at = at
        incarnation = self.incarnation

        def ring() -> None:
            if self.is_running and self.incarnation == incarnation:
                if self.timer_at == self.events.now:
                    self.timer_at = None
                self._go_on()

        self.events.at(at, ring)

    # -- what comes ----------------------------------------------------------------------------------------

    def receive(self, message: Any, exchange: Exchange) -> None:
        """Process a request of another node."""
        if isinstance(message, ApiVersionsRequest):
            feature = SupportedFeatureKey(name="kraft.version", min_version=0, max_version=1)
            self.network.reply(exchange, ApiVersionsResponse(supported_features=[feature]))
            return
        self.enqueue(lambda now_ms: self.raft.receive(now_ms, message, (exchange, message)))

    def ask(self, message: Any, then: Callable[[Any], None]) -> None:
        """A request from outside of the quorum."""
        self.enqueue(lambda now_ms: self.raft.receive(now_ms, message, then))

    def answered(self, send: Send, response: Any, why: str) -> None:
        """A request has ended."""
        if self.is_running:
            self.enqueue(lambda now_ms: self.raft.answered(now_ms, send, response))

    def append(self, value: int) -> None:
        """The state machine above has decided something, as the leader of its epoch."""
        epoch = self.raft.leader_and_epoch.epoch
        if not self.raft.is_leader_of(epoch):
            return
        records: list[r.MetadataRecord] = []
        if self.raft.high_watermark is None or self.applied <= self.raft.epoch_start_offset:
            return  # Kafka's controller is active only when it knows all that was committed before
        if self.image.metadata_version is None:
            records.append(r.FeatureLevelRecord(name="metadata.version", feature_level=30))
        records.append(
            r.ConfigRecord(resource_type=VALUE.type, resource_name="", name="value", value=str(value))
        )
        (batch,) = batches_of(records, metadata_version=30)
        self.log.append(batch, epoch=epoch, now_ms=self.now_ms)
        if not self.is_append_queued:
            self.is_append_queued = True
            self.enqueue(self._appended)

    def _appended(self, now_ms: int) -> list[Effect]:
        self.is_append_queued = False
        return self.raft.appended(now_ms, self.log.end.offset)

    # -- one event after the other -------------------------------------------------------------------------

    def enqueue(self, decide: Callable[[int], list[Effect]]) -> None:
        """Something for the machine to see."""
        self.inbox.append((self.now_ms, decide))
        self._go_on()

    def _go_on(self) -> None:
        while self.is_running and not self.is_busy:
            deadline_ms = self.raft.next_deadline_ms
            if self.inbox and self.inbox[0][0] <= deadline_ms:
                decide = self.inbox.popleft()[1]
            elif deadline_ms <= self.now_ms:
                decide = self.raft.tick
            elif self.inbox:
                decide = self.inbox.popleft()[1]
            else:
                self._set_timer()
                return
            self._carry_out(deque(decide(self.now_ms)))
            if not self.is_busy:
                self.judge.after(self)

    def _carry_out(self, effects: deque[Effect]) -> None:
        while effects:
            effect = effects.popleft()
            match effect:
                case Persist() | Flush() | Freeze():
                    delay = int(self.random.random() ** 3 * self.disk.max_delay_ms * MS)
                    if delay:
                        self._wait(delay, effect, effects)
                        return
                    self._make_durable(effect)
                case Send():
                    self.network.request(self, effect)
                case Reply():
                    self._reply(effect)
                case Committed():
                    self.judge.commits(self, effect.high_watermark)
                    self._commit(effect.high_watermark)
                case LeaderChanged():
                    self.leader = effect.leader
                    self.events.note("leader", self.id, effect.leader)
                    self.judge.leader_changed(self, effect.leader)
                case SnapshotLoaded():
                    self.judge.snapshot_loaded(self)
                    self._load(effect.snapshot)
                case Stopped():
                    raise Broken(f"node {self.id} has stopped without being asked to")
                case Fatal():
                    raise Broken(f"node {self.id} cannot go on: {effect.reason}")

    def _wait(self, delay: int, effect: Persist | Flush | Freeze, effects: deque[Effect]) -> None:
        self.is_busy = True
        incarnation = self.incarnation

        def done() -> None:
            if self.is_running and self.incarnation == incarnation:
                self.is_busy = False
                self._make_durable(effect)
                self._carry_out(effects)
                if not self.is_busy:
                    self.judge.after(self)
                    self._go_on()

        self.events.after(delay, done)

    def _make_durable(self, effect: Persist | Flush | Freeze) -> None:
        if isinstance(effect, Persist):
            quorum_state.write(self.directory, effect.state, self.files)
            self.events.note("persist", self.id, effect.state)
            self.judge.persisted(self, effect.state)
        elif isinstance(effect, Freeze):
            failure: KafkaError | None = None
            try:
                effect.download.freeze()
            except KafkaError as error:
                failure = error
            self.inbox.appendleft((0, lambda now_ms: self.raft.frozen(now_ms, failure)))
        else:
            end_offset = effect.end_offset
            self.log.flush(end_offset)
            self.inbox.appendleft((0, lambda now_ms: self.raft.flushed(now_ms, end_offset)))

    def _reply(self, effect: Reply) -> None:
        if not isinstance(effect.token, tuple):
            assert callable(effect.token)
            effect.token(effect.response)
            return
        exchange, request = effect.token
        if isinstance(request, VoteRequest):
            self.judge.voted(self, request, effect.response)
        self.network.reply(exchange, effect.response)

    # -- what is committed -----------------------------------------------------------------------------------

    def _commit(self, high_watermark: int) -> None:
        self.events.note("commit", self.id, high_watermark)
        if self.applied > high_watermark:
            raise Broken(f"MonotonicHighWatermark: {self.id} {self.applied} -> {high_watermark}")
        while self.applied < high_watermark:
            data = self.log.read(self.applied, max_bytes=2048)
            for header, batch in batches(memoryview(data)):
                if header.base_offset >= high_watermark:
                    break
                rows = [] if header.is_control else [row.value for row in records_of(batch)]
                for value in rows:
                    self.image.replay_all([decode_record(value)])
                self.judge.committed(self, header, self.value)
                self.applied = header.next_offset
        if self.applied != high_watermark:
            raise Broken(
                f"ConsistentCommittedData: {self.id} {high_watermark} is within a batch, {self.applied=}"
            )

    @property
    def value(self) -> str | None:
        """The state machine's state."""
        return self.image.config(VALUE).get("value")

    def _load(self, snapshot: OffsetAndEpoch) -> None:
        self.image = MetadataImage()
        for chunk in self.log.snapshot_records(snapshot):
            self.image.replay_all(chunk)
        self.applied = snapshot.offset
        self.events.note("load", self.id, snapshot, self.value)
        self.judge.loaded(self, snapshot)

    # -- snapshots -------------------------------------------------------------------------------------------

    def begin_snapshot(self) -> None:
        """Write a snapshot of all applied records in another thread, so that the node may die in between."""
        if self.writer is not None or self.image.metadata_version is None:
            return
        self.writer = self.log.create_snapshot(self.applied)
        if self.writer is None:
            return
        last = self.applied - 1
        voters = self.raft.voters_at(last)
        image, kraft_version = self.image.copy(), self.raft.kraft_version_at(last)
        incarnation, writer = self.incarnation, self.writer

        def write() -> None:
            if self.is_running and self.incarnation == incarnation:
                record = None if voters is None else voters.to_record()
                writer.write(image, kraft_version=kraft_version, voters=record, now_ms=self.now_ms)
                self.log.snapshot_written(writer)
                self.writer = None
                self.events.note("snapshot", self.id, writer.snapshot)
                self.log.clean(self.now_ms)
                if job := self.log.removals_due(self.now_ms):
                    job.run()

        self.events.after(int(self.random.uniform(0, 20) * MS), write)

    @property
    def has_voted(self) -> bool:
        """Whether it has voted in an epoch whose leader it does not know yet."""
        return self.is_running and getattr(self.raft.role, "voted", None) is not None and not self.is_leader

    @property
    def is_leader(self) -> bool:
        """Whether it leads, as it thinks."""
        return self.is_running and isinstance(self.raft.role, Leader)
