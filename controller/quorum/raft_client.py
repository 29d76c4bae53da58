"""The metadata quorum on this node: the interface of Raft for the node, its controller and its listeners.

A process has one quorum, whatever its roles: a controller's is a voter, a broker's an observer. All listeners receive
the same notifications in the same order: each committed batch once, a snapshot that replaces everything, and changes
of the leader (`ottla.controller.quorum.listener_dispatch`). `ottla.controller.quorum.driver` runs the state
machine, and waits for the disk and for other nodes.

Source: RaftClient, KafkaRaftClient and KafkaRaftManager of Kafka 4.3.1; KIP-595, KIP-630.
"""

from collections.abc import Callable
from pathlib import Path

from ottla.controller.metadata_log import quorum_state
from ottla.controller.metadata_log.log import MetadataLog
from ottla.controller.metadata_log.log_cleaning import MetadataLogSettings
from ottla.controller.metadata_log.new_batches import NewBatch
from ottla.controller.quorum.driver import RaftDriver, SendRequest
from ottla.controller.quorum.election_times import ElectionTimes
from ottla.controller.quorum.listener_dispatch import ListenerDispatcher
from ottla.controller.quorum.listeners import Listeners, QuorumListener
from ottla.controller.quorum.log_progress import LogProgress
from ottla.controller.quorum.maintenance import MetadataLogMaintenance
from ottla.controller.raft.machine import Raft
from ottla.controller.raft.messages import QuorumRequest
from ottla.controller.raft.roles import Candidate, Follower, Leader
from ottla.controller.raft.types import Address, LeaderAndEpoch, RaftSettings, ReplicaKey
from ottla.controller.raft.voters import VoterSet
from ottla.metadata.image import InvalidMetadata, MetadataImage
from ottla.protocol.errors import KafkaError, NotController
from ottla.protocol.schema import Response
from ottla.runtime import Pool, Runtime
from ottla.runtime.windows import IdleRatio
from ottla.storage.files import Files


class RaftClient:
    """The replica of the metadata log on this node, voter or observer. Created by `open`."""

    def __init__(
        self,
        *,
        raft: Raft,
        log: MetadataLog,
        settings: RaftSettings,
        files: Files,
        runtime: Runtime,
        send: SendRequest,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._raft = raft
        self._log = log
        self._settings = settings
        self._runtime = runtime
        self._listeners = Listeners()
        self._dispatcher = ListenerDispatcher(
            log,
            self._listeners,
            node_id=settings.node_id,
            epoch_start_offset=lambda: raft.epoch_start_offset,
            runtime=runtime,
        )
        self._maintenance = MetadataLogMaintenance(log, runtime=runtime)
        self._driver = RaftDriver(
            raft,
            log,
            files=files,
            runtime=runtime,
            dispatcher=self._dispatcher,
            maintenance=self._maintenance,
            send=send,
            on_failure=on_failure,
        )

    @classmethod
    def open(
        cls,
        log_dir: Path,
        *,
        settings: RaftSettings,
        files: Files,
        runtime: Runtime,
        send: SendRequest,
        on_failure: Callable[[BaseException], None] = lambda error: None,
        is_clean: bool = False,
        log_settings: MetadataLogSettings | None = None,
    ) -> "RaftClient":
        """Open the metadata log in this log directory, or create it. [any thread]

        `is_clean`: this directory was shut down cleanly; else the log's end is recovered.
        `on_failure` is called with the error that stops the node after `start`. Raises InvalidMetadata and OSError.
        """
        log = MetadataLog.open(
            log_dir,
            files=files,
            random=runtime.random,
            now_ms=runtime.now_ms(),
            is_clean=is_clean,
            settings=log_settings or MetadataLogSettings(),
        )
        election = quorum_state.read(log.directory, files)
        others = set() if election is None else set(election.voters) - {settings.node_id}
        if others and list(settings.static_voters) == [settings.node_id]:
            # Kafka does not check this. A node configured as the only voter must not lead alone with the log
            # directory of a larger quorum.
            raise InvalidMetadata(
                f"{log.directory / quorum_state.FILE_NAME} names the other voters {sorted(others)}, but node "
                f"{settings.node_id} is configured as the only voter."
            )
        return cls(
            raft=Raft(settings=settings, log=log, election=election, random=runtime.random),
            log=log,
            settings=settings,
            files=files,
            runtime=runtime,
            send=send,
            on_failure=on_failure,
        )

    async def start(self) -> None:
        """Start; returns once nothing is due any more.

        A single voter leads then, and its listeners were notified of all that it has written as the leader. Raises
        InvalidMetadata for records that are unknown or invalid, QuorumFailed and OSError.
        """
        await self._driver.start()

    async def stop(self) -> None:
        """Stop, and close the log; a leader first sends EndQuorumEpoch to the voters. Raises OSError."""
        await self._driver.stop()
        await self._runtime.run_blocking(self._log.close, pool=Pool.METADATA)

    # -- state -----------------------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        """The node id of this replica."""
        return self._settings.node_id

    @property
    def voters(self) -> VoterSet:
        """The voter set as of the end of the log."""
        return self._raft.voters

    @property
    def is_only_voter(self) -> bool:
        """Whether this node is the only voter."""
        return self._raft.voters.is_only_voter(self._settings.key)

    @property
    def kraft_version(self) -> int:
        """The finalized level of kraft.version, as of the end of the log."""
        return self._raft.kraft_version

    @property
    def leader(self) -> LeaderAndEpoch:
        """The leader as far as this node knows; if it is this node, its listeners may not be notified of that yet."""
        return self._dispatcher.leader

    @property
    def role_name(self) -> str:
        """The present role in Raft: unattached, follower, prospective, candidate, leader, resigned."""
        return type(self._raft.role).__name__.lower()

    @property
    def has_leader(self) -> bool:
        """Whether this node leads the quorum or follows its leader."""
        return isinstance(self._raft.role, Leader | Follower)

    @property
    def elections(self) -> ElectionTimes:
        """The times of the elections in which this node has stood."""
        return self._driver.elections

    @property
    def progress(self) -> LogProgress:
        """The records that this node appends and fetches, and the times of commits."""
        return self._driver.progress

    @property
    def idle(self) -> IdleRatio:
        """The part of the time in which Raft waits for events, neither deciding nor waiting for the disk."""
        return self._driver.idle

    @property
    def voted_id(self) -> int | None:
        """The node that this one has voted for in the present epoch; None: for none."""
        voted: ReplicaKey | None = getattr(self._raft.role, "voted", None)
        if isinstance(self._raft.role, Candidate | Leader):
            return self.node_id
        return None if voted is None else voted.id

    @property
    def unknown_voter_count(self) -> int:
        """The voters whose address this node does not know."""
        return sum(not each.endpoints for each in self._raft.voters.voters.values())

    @property
    def is_voter(self) -> bool:
        """Whether this node is a voter as of the end of its log."""
        return self._raft.is_voter

    @property
    def high_watermark(self) -> int | None:
        """The high watermark of the metadata log; None until this node learns it after its start."""
        return self._raft.high_watermark

    def leader_address(self) -> Address | None:
        """The leader's address on the controllers' listener; None if it is not known."""
        return self._raft.leader_address

    @property
    def end_offset(self) -> int:
        """The log end offset: where the next record is appended."""
        return self._log.end_offset

    @property
    def applied_offset(self) -> int:
        """Last applied offset, exclusive: the end of the last batch that listeners were notified of; committed."""
        return self._listeners.end_offset

    @property
    def applied_bytes(self) -> int:
        """Bytes of the log that listeners were notified of since the start, snapshots not counted."""
        return self._listeners.log_bytes

    @property
    def is_transaction_open(self) -> bool:
        """Whether records before `applied_offset` are not applied until their metadata transaction ends."""
        return self._listeners.is_transaction_open

    @property
    def has_failed(self) -> bool:
        """Whether the Raft replica has failed, so that this node has to stop."""
        return self._driver.failure is not None

    # -- the log's writers and readers -----------------------------------------------------------------

    def append(self, new: NewBatch, *, epoch: int) -> int:
        """Append a batch, not yet durable; returns its base offset. Only for the leader of `epoch`.

        Listeners are notified once it is committed. Raises NotController, also on an I/O error, which stops the node.
        """
        if not self._driver.is_running or not self._raft.is_leader_of(epoch):
            raise NotController("This node does not lead the metadata quorum any more.")
        try:
            batch = self._log.append(new, epoch=epoch, now_ms=self._runtime.now_ms())
        except (KafkaError, OSError) as error:
            self._driver.fail(error)
            raise NotController("The metadata log cannot be written.") from error
        self._dispatcher.appended(batch)
        self._driver.appended()
        return batch.base_offset

    def resign(self, epoch: int) -> None:
        """Resign the leadership of this epoch; ignored if this node does not lead it."""
        self._driver.enqueue(lambda now_ms: self._raft.resign(now_ms, epoch))

    def upgrade_kraft_version(self, level: int, *, epoch: int, validate_only: bool = False) -> None:
        """Append the control records of a higher kraft.version. Raises NotController, InvalidUpdateVersion."""
        # The records are in the log at once, as after `append`.
        self._driver.decide_now(
            lambda now_ms: self._raft.upgrade_kraft_version(
                now_ms, epoch=epoch, version=level, validate_only=validate_only
            )
        )

    async def handle(self, request: QuorumRequest, *, listener_name: str | None = None) -> Response:
        """Handle another node's request about the quorum: Vote, Fetch, DescribeQuorum, AddRaftVoter, ...

        `listener_name`: the listener that received it; None: the first. A Fetch without new records waits up to its
        `max_wait_ms`. Raises NotController when this node stops meanwhile, or has too many requests.
        """
        return await self._driver.receive(request, listener_name=listener_name)

    def subscribe(self, listener: QuorumListener) -> None:
        """Register a listener; listeners are called in the order of registration. Only before `start`."""
        assert not self._driver.is_started, "each listener is notified of the whole log"
        self._listeners.add(listener)

    def write_snapshot(self, copy: Callable[[], MetadataImage]) -> bool:
        """Begin to write the image that `copy` returns as the snapshot before `applied_offset`; whether it was begun.

        False if a snapshot is being written or exists already, or while a metadata transaction is open: its records
        are before `applied_offset`, but not in the image. Raises InvalidMetadata and OSError.
        """
        if not self._driver.is_running or self.is_transaction_open:
            return False
        last_offset = self.applied_offset - 1
        voters = self._raft.voters_at(last_offset)
        return self._maintenance.begin_snapshot(
            self.applied_offset,
            copy,
            kraft_version=self._raft.kraft_version_at(last_offset),
            voters=None if voters is None else voters.to_record(),
        )
