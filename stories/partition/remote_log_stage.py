"""Replicas of one tiered partition with the tasks of their RemoteLogManagers on a stage: as `replica_stage`, and

| command | meaning |
|---|---|
| `A writes segment a b` | A writes, and closes its active segment |
| `B replicates a segment` | B catches up, and closes its active segment |
| `the topic has k=v k=v` | configurations of the topic; at the start it has local.retention.ms=1000000 |
| `30 s pass`, `1 h pass` | the tasks run, every 30 s; the leader applies its local retention afterwards |
| `the store fails`, `refuses`, `answers` | its calls raise a retriable error, another error, none |
| `the store hangs for A` | A's next copy does not begin for four hours |
| `the store answers A late` | A's next copy is in the store at once, and its call returns after four hours |
| `the metadata fail`, `the metadata answer` | changes raise a retriable error |
| `A loses an acknowledgement` | A's next change of the metadata is stored, and A is not notified |
| `A reads no metadata`, `A reads the metadata` | |
| `A is limited to 10 bytes of custom metadata`, `the store returns 20 bytes of custom metadata` | |
| `show tiers` | the logs, what is lost, the copies, and the objects that no copy names |

What tasks do is shown as it happens: changes of copies, which are numbered, and of log start offsets. Fetches are
not shown. What was committed may be in either tier: it is lost if it is in neither, with the leader's epochs.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from inspect import currentframe
from itertools import chain, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from ottla.protocol.records.batch import batches
from ottla.protocol.records.record import records
from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.errors import RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.expiration import Expiration, Reason
from ottla.remote.log_manager import expiration_task
from ottla.remote.log_manager.deletions import CopyDeletions
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
)
from ottla.runtime import Pool
from ottla.storage.log import Log
from ottla.stories.partition import tier_rules, tier_state
from ottla.stories.partition.remote_tier import TIERED, RemoteTier
from ottla.stories.partition.replica_stage import ORDERS, ReplicaStage
from ottla.stories.partition.replicas import TOPIC_ID, ReplicaCluster
from ottla.stories.rules import Place, deciding, event
from ottla.stories.trace import Step

_PARTITION = TopicIdPartition(TOPIC_ID, ORDERS)
_SECONDS = {"ms": 0.001, "s": 1, "min": 60, "h": 3600}
_HANGS_S = 4 * 3600.0
_FAILURES = {
    "fails": RetriableRemoteStorageError("503"),
    "refuses": RemoteStorageError("403"),
    "answers": None,
    "fail": RetriableRemoteStorageError("no leader"),
    "answer": None,
}


class RemoteLogStage(ReplicaStage):
    """The stage of stories about one partition's remote log tasks: a log, a store, and the metadata."""

    #: No task goes on while a leader writes.
    before_a_write_s = 0

    def _clear(self) -> None:
        super()._clear()
        self.tier: RemoteTier
        self._folder: TemporaryDirectory[str] | None = None
        self._numbers: dict[RemoteLogSegmentId, int] = {}
        self._seen = 0
        self._log_starts: dict[str, int] = {}
        #: Why logs and copies were changed: the reason that the code has, and the place that has decided.
        self._log_start_causes: dict[str, tuple[str, Place]] = {}
        self._deletion_causes: dict[RemoteLogSegmentId, tuple[Reason | None, Place]] = {}
        self._reasons: dict[RemoteLogSegmentId, Reason] = {}

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        """Note why log start offsets move, and why copies are deleted, while the story is recorded."""
        with ExitStack() as hooks:
            hooks.enter_context(super()._hooks())
            if self.is_recorded:
                move, begin = Log.maybe_increment_log_start_offset, CopyDeletions.begin
                expire = vars(expiration_task)["expire"]  # that of a planted bug, if there is one

                def noted_move(log: Log, offset: int, *, reason: str = "") -> bool:
                    frame = currentframe()
                    assert frame is not None
                    has_moved = move(log, offset, reason=reason)
                    if has_moved:
                        name = next(each for each in self._up() if self.partition(each).log is log)
                        self._log_start_causes[name] = reason, deciding(frame.f_back)
                    return has_moved

                def noted_expire(*arguments: Any, **named: Any) -> Expiration:
                    found: Expiration = expire(*arguments, **named)
                    self._reasons |= {copy.segment_id: reason for copy, reason in found.deleted}
                    return found

                def noted_begin(
                    deletions: CopyDeletions, copy: RemoteLogSegmentMetadata
                ) -> Coroutine[Any, Any, RemoteLogSegmentMetadata]:
                    frame = currentframe()
                    assert frame is not None
                    place = deciding(frame.f_back)
                    is_expired = place.function.startswith(CopyDeletions.__module__)
                    reason = self._reasons.get(copy.segment_id) if is_expired else None
                    if reason is not None or not is_expired:
                        self._deletion_causes[copy.segment_id] = reason, place
                    return begin(deletions, copy)

                hooks.enter_context(patch.object(Log, "maybe_increment_log_start_offset", noted_move))
                hooks.enter_context(patch.object(expiration_task, "expire", noted_expire))
                hooks.enter_context(patch.object(CopyDeletions, "begin", noted_begin))
            yield

    def _make_cluster(self, *arguments: Any, **options: Any) -> ReplicaCluster:
        self._folder = TemporaryDirectory(prefix="remote-log-stage-")
        self.tier = RemoteTier(Path(self._folder.name))
        configs = {**TIERED, "local.retention.ms": "1000000"}
        return ReplicaCluster(*arguments, **options, tier=self.tier, configs=configs)

    def close(self) -> None:
        """End the play and remove the store."""
        super().close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def show(self, line: str) -> None:
        """Add a line to the output, unless it is of a Fetch."""
        _, _, what = line.partition(" ")
        if not what.startswith(("-> ", "<- ", "waits for a response")):
            super().show(line)

    # -- commands --------------------------------------------------------------------------------------

    async def _play(self, line: str) -> None:
        words = line.split()
        if words[-1] == "pass":
            await asyncio.sleep(int(words[0]) * _SECONDS[words[1]])
            self._retain()
            await self._settle()
        else:
            await super()._play(line)
        self._show_changes()

    async def _play_broker(self, words: list[str]) -> None:
        match words:
            case [name, "writes", "segment", *values]:
                for value in values:
                    self._write(name, value.split("+"))
                self._roll(name)
            case [name, "replicates", "a", "segment"]:
                await self._play_follower([name, "catches", "up"])
                self._roll(name)
            case [name, "rolls"]:
                self._roll(name)
            case ["the", "topic", "has", *configs]:
                self._alter(dict(config.split("=") for config in configs))
            case ["the", "store", *what]:
                self._set_store(what)
            case ["the", "metadata", state]:
                for own in self.tier.brokers.values():
                    own.metadata.failure = _FAILURES[state]
            case [name, "loses", "an", "acknowledgement"]:
                self.tier.brokers[self.names[name]].metadata.loses_acknowledgement = True
            case [name, "reads", which, "metadata"]:
                self.tier.brokers[self.names[name]].metadata.is_reading = which == "the"
            case ["show", "tiers"]:
                self._show_changes()
                self._show_tiers()
            case _:
                await super()._play_broker(words)

    def _set_store(self, words: list[str]) -> None:
        match words:
            case ["hangs", "for", name]:
                # The segment's files are read first, which takes no time before and after.
                delays = chain([0.0, 0.0, _HANGS_S], repeat(0.0))
                self.broker(name).runtime.pools[Pool.REMOTE_COPIES].blocking_s = lambda: next(delays)
            case ["answers", name, "late"]:
                delays = chain([0.0, 0.0, 0.0, _HANGS_S], repeat(0.0))
                self.broker(name).runtime.pools[Pool.REMOTE_COPIES].blocking_s = lambda: next(delays)
            case ["returns", size, "bytes", *_]:
                for own in self.tier.brokers.values():
                    own.store.custom_metadata = b"x" * int(size)
            case [state]:
                for own in self.tier.brokers.values():
                    own.store.failure = _FAILURES[state]

    def _roll(self, name: str) -> None:
        self.partition(name).log.roll(self.broker(name).runtime.now_ms())

    def _alter(self, configs: dict[str, str]) -> None:
        self.cluster.configs |= configs
        for name in self._up():
            self.partition(name).log.update_config(self.cluster.topic_config("orders"))
            self.tier.brokers[self.names[name]].on_role(self.partition(name))

    def _retain(self) -> None:
        for name in self._up():
            broker = self.broker(name)
            broker.partition(ORDERS).log.apply_retention(broker.runtime.now_ms())
            broker.replicas.notice_retention()

    # -- output ----------------------------------------------------------------------------------------

    def _show_changes(self) -> None:
        for change in self.tier.log.changes[self._seen :]:
            match change:
                case RemoteLogSegmentMetadata():
                    number = self._numbers.setdefault(change.segment_id, len(self._numbers) + 1)
                    what = f"copy {number} is {change.state.name}, {_range(change)}"
                    self._show_change(change, what)
                case RemoteLogSegmentMetadataUpdate():
                    number = self._numbers[change.segment_id]
                    self._show_change(change, f"copy {number} is {change.state.name}")
        self._seen = len(self.tier.log.changes)
        for name in self._up():
            start = self.partition(name).log.log_start_offset
            if self._log_starts.get(name, 0) != start:
                line = f"{name}: log start offset {start}"
                self.show(line)
                if (cause := self._log_start_causes.pop(name, None)) is not None and self.is_recorded:
                    self.events.append(event(name, line, *tier_rules.of_log_start(*cause)))
            self._log_starts[name] = start

    def _show_change(
        self, change: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate, what: str
    ) -> None:
        name = self.name_of(change.broker_id)
        line = f"{name}: {what}"
        self.show(line)
        if change.state is not RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            self.note_rule(name, line, tier_rules.STATES[change.state])
        elif (cause := self._deletion_causes.get(change.segment_id)) is not None:
            self.events.append(event(name, line, *tier_rules.of_deletion(*cause)))

    def observe(self, step: Step) -> None:
        """Write the replicas, the remote tier and the verdict into a step."""
        super().observe(step)
        if self._folder is not None:
            step.tier = tier_state.tier_of(
                self.tier.copies(),
                number_of=self._numbers.__getitem__,
                name_of=self.name_of,
                objects=(key for key, *_ in self.tier.store.store.list()),
                is_answering=all(own.store.failure is None for own in self.tier.brokers.values()),
            )

    def _show_tiers(self) -> None:
        self._show()
        for name in self._up():
            remote_end = self.partition(name).log.offsets.remote_end_offset
            self.show(f"{name} remote end {'unknown' if remote_end is None else remote_end}")
        for copy in self.tier.copies():
            self.show(f"copy {self._numbers[copy.segment_id]} of {_range(copy)} is {copy.state.name}")
        if unknown := self.tier.unknown_objects():
            self.show(f"{len(unknown)} objects without metadata")

    def _readable(self, name: str) -> dict[int, str]:
        found = super()._readable(name)
        log = self.partition(name).log
        for offset in range(log.log_start_offset, log.local_log_start_offset):
            if (value := self._remote_value(name, log, offset)) is not None:
                found[offset] = value
        return found

    def _remote_value(self, name: str, log: Log, offset: int) -> str | None:
        epoch = log.epoch_for_offset(offset)
        metadata = self.tier.brokers[self.names[name]].metadata
        copy = (
            None
            if epoch is None
            else metadata.remote_log_segment_metadata(_PARTITION, epoch=epoch, offset=offset)
        )
        if copy is None:
            return None
        stream = self.tier.store.fetch_log_segment(copy, start_position=0)
        data = stream.read()
        stream.close()
        values = {
            record.offset: (record.value or b"").decode()
            for _, batch in batches(memoryview(data))
            for record in records(batch)
        }
        return values.get(offset)


def _range(copy: RemoteLogSegmentMetadata) -> str:
    epochs = " ".join(f"e{epoch}@{start}" for epoch, start in copy.leader_epochs)
    return f"{copy.start_offset}-{copy.end_offset - 1} {epochs}"
