"""Replicas of one tiered partition on a stage: as `replica_stage`, with a remote tier.

| command | meaning |
|---|---|
| `A rolls` | A closes its active segment |
| `A copies` | A, which leads, copies its closed segments to the remote tier; all brokers have their metadata |
| `A loses its disk` | while it is stopped; it comes back with an empty one |
| `A keeps 3 on` | local retention removes A's segments before offset 3 |
| `the remote tier fails`, `hangs`, `answers` | reads of indexes raise, do not return for an hour, work again |
| `the metadata is late`, `is there` | brokers have not read the metadata of all copies; they have |
| `A forgets`, `learns what is tiered` | as after a start, until A's task has run |
| `fetch last-tiered-offset`, `local-log-start` | follower.fetch.last.tiered.offset.enable is set, is not (KIP-1023) |
| `leaders serve ListOffsets v10` | which does not have the earliest pending upload offset |
| `show tiers` | the logs, and the copies |

`A keeps` applies A's own retention, with a limit in bytes. What was committed may be in either tier:
it counts as lost if it is in neither, with the leader's epochs.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from ottla.broker.replicas.follower_replica import FollowerReplica
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.records.batch import batches
from ottla.protocol.records.record import records
from ottla.remote.errors import RetriableRemoteStorageError
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition
from ottla.replication.replica_selector import LocalAwareRackReplicaSelector
from ottla.runtime import Pool
from ottla.storage.log import Log
from ottla.storage.remote_restart import RemoteState
from ottla.stories.partition import tier_rules, tier_state
from ottla.stories.partition.replica_stage import ORDERS, ReplicaStage
from ottla.stories.partition.replicas import TOPIC_ID
from ottla.stories.partition.tiered_replicas import TieredCluster
from ottla.stories.stage import BadCommand
from ottla.stories.trace import Step

_PARTITION = TopicIdPartition(TOPIC_ID, ORDERS)
_RESTART = FollowerReplica.restart_from_remote


class TieredStage(ReplicaStage):
    """The stage of stories about replicas with a remote tier."""

    cluster: TieredCluster
    #: Reads of the remote tier take a while.
    consumers_wait_ms = 500

    def _clear(self) -> None:
        super()._clear()
        self._names_of_copies: dict[Any, str] = {}
        self._is_answering = True

    def __call__(self, line: str) -> list[str]:
        """Play a line of the story; the lines of its output."""
        stage = self

        def restart(replica: FollowerReplica, state: RemoteState, **named: Any) -> None:
            name = next(each for each in stage.names if stage.partition(each).follower is replica)
            epochs = " ".join(f"e{epoch}@{start}" for epoch, start in state.leader_epochs)
            line = f"{name} restarts at {state.offset} after the remote tier: {epochs}"
            stage.show(line)
            stage.note_rule(name, line, tier_rules.RESTART)
            _RESTART(replica, state, **named)

        with patch.object(FollowerReplica, "restart_from_remote", restart):
            return super().__call__(line)

    def _make_cluster(self, *arguments: Any, **options: Any) -> TieredCluster:
        return TieredCluster(*arguments, selector=LocalAwareRackReplicaSelector(), **options)

    def close(self) -> None:
        """End the play and remove the store."""
        super().close()
        if hasattr(self, "cluster"):
            self.cluster.close()

    async def _play_broker(self, words: list[str]) -> None:
        match words:
            case [name, "rolls"]:
                self.partition(name).log.roll(self.broker(name).runtime.now_ms())
            case [name, "copies"]:
                for copy in self.cluster.copy_segments(self.broker(name), ORDERS):
                    self._names_of_copies[copy.segment_id] = name
                    line = f"{name} copies {_copy(copy)}"
                    self.show(line)
                    self.note_rule(name, line, tier_rules.COPY)
            case [name, "keeps", offset, "on"]:
                self.cluster.keep(self.broker(name), ORDERS, from_offset=int(offset))
                self.broker(name).replicas.notice_retention()
            case [name, "forgets", "what", "is", "tiered"]:
                self.partition(name).log.offsets.forget_remote_end()
            case [name, "learns", "what", "is", "tiered"]:
                self.cluster.learn_remote_end(self.broker(name), ORDERS)
            case [name, "loses", "its", "disk"]:
                broker = self.broker(name)
                assert not broker.is_up, name
                broker.files = broker.new_disk()
            case ["show", "tiers"]:
                self._show()
                for copy in self.cluster.metadata.list_remote_log_segments(_PARTITION):
                    self.show(f"remote {_copy(copy)} by {self._names_of_copies[copy.segment_id]}")
            case _:
                if not self._set(words):
                    await super()._play_broker(words)

    def _set(self, words: list[str]) -> bool:
        """A command that is about all brokers; False if this is none."""
        match words:
            case ["the", "remote", "tier", state]:
                self._set_store(state)
            case ["the", "metadata", "is", state]:
                self.cluster.metadata.is_late = {"late": True, "there": False}[state]
            case ["fetch", "last-tiered-offset" | "local-log-start" as start]:
                self.cluster.prefers_last_tiered = start == "last-tiered-offset"
            case ["leaders", "serve", "ListOffsets", version]:
                self.served[ApiKey.LIST_OFFSETS] = int(version.removeprefix("v"))
            case _:
                return False
        return True

    def _set_store(self, state: str) -> None:
        def fail(*_: Any) -> None:
            raise RetriableRemoteStorageError("503")

        self._is_answering = state == "answers"
        match state:
            case "fails":
                self.cluster.store.on_fetch_index = fail
            case "hangs":
                self._delay_store(lambda: 3600.0)
            case "answers":
                self.cluster.store.on_fetch_index = lambda *_: None
                self._delay_store(None)
            case _:
                raise BadCommand.unknown()

    def _delay_store(self, blocking_s: Callable[[], float] | None) -> None:
        for name in self._up():
            self.broker(name).runtime.pools[Pool.REMOTE_AUXILIARY].blocking_s = blocking_s

    def observe(self, step: Step) -> None:
        """Write the replicas, the remote tier and the verdict into a step."""
        super().observe(step)
        if hasattr(self, "cluster"):
            copies = list(self.cluster.metadata.cache(_PARTITION).segments(None))
            step.tier = tier_state.tier_of(
                copies,
                number_of={copy.segment_id: n for n, copy in enumerate(copies, 1)}.__getitem__,
                name_of=self.name_of,
                objects=(key for key, *_ in self.cluster.store.store.list()),
                is_answering=self._is_answering,
            )

    def _copy_with(self, log: Log, offset: int) -> RemoteLogSegmentMetadata | None:
        epoch = log.epoch_for_offset(offset)
        if epoch is None or not log.log_start_offset <= offset < log.log_end_offset:
            return None
        # What is there, whether or not brokers have read it.
        return self.cluster.metadata.cache(_PARTITION).segment(epoch=epoch, offset=offset)

    def _values(self, copy: RemoteLogSegmentMetadata) -> dict[int, str]:
        stream = self.cluster.store.fetch_log_segment(copy, start_position=0)
        data = stream.read()
        stream.close()
        return {
            record.offset: (record.value or b"").decode()
            for _, batch in batches(memoryview(data))
            for record in records(batch)
        }

    def _readable(self, name: str) -> dict[int, str]:
        found = super()._readable(name)
        log = self.partition(name).log
        for offset in range(log.log_start_offset, log.local_log_start_offset):
            copy = self._copy_with(log, offset)
            if copy is not None:
                found[offset] = self._values(copy)[offset]
        return found


def _copy(copy: RemoteLogSegmentMetadata) -> str:
    epochs = " ".join(f"e{epoch}@{start}" for epoch, start in copy.leader_epochs)
    return f"seg-{copy.start_offset}-{copy.end_offset - 1} {epochs}"
