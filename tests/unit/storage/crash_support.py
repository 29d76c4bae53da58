"""A story of a broker's logs on a faulty disk, drawn from a seed: work, crash, recovery, and again.

What must hold is in `crash_model`.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from uuid import UUID

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.records.batch import batches
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.control import ControlRecordType
from ottla.protocol.records.record import Record
from ottla.protocol.records.record import records as parse_records
from ottla.protocol.types import TopicPartition
from ottla.storage import leader_epoch_cache
from ottla.storage.log import AppendOrigin, Log
from ottla.storage.manager.log_manager import LogManager
from ottla.storage.remote_restart import RemoteState
from ottla.storage.verify import verify
from ottla.stories.partition.faulty_files import RANDOM_LOSSES, FaultyFiles, Killed, Loss
from tests.unit.storage.crash_model import (
    EVERYTHING,
    Batch,
    Checks,
    Copy,
    Model,
    observe,
    observe_batches,
    produced,
)
from tests.unit.storage.storage_support import NOW_MS, marker

ROOT = Path("/data")
TOPIC_ID = UUID(int=7)
#: The partition of which closed segments are copied (KIP-405).
TIERED = TopicPartition("tiered", 0)
IDEMPOTENT = (1, 2)
TRANSACTIONAL = (11, 12)


class Story(Checks):
    """One broker's life; `checked` counts what was compared."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.files = FaultyFiles(random=Random(seed), now_ms=NOW_MS)
        self.now_ms = NOW_MS
        self.directories = [ROOT / name for name in ("a", "b")[: self.random.randint(1, 2)]]
        self.models = {TopicPartition("t", number): Model(config=self._config()) for number in range(3)}
        self.models[TIERED] = Model(config=self._tiered_config())
        self.history: list[str] = []
        self.manager = self.open()

    def _config(self) -> LogConfig:
        random = self.random
        policy = random.choice([("delete",), ("delete",), ("compact",), ("compact", "delete")])
        return LogConfig(
            segment_bytes=random.choice([700, 1100, 2000]),
            segment_index_bytes=random.choice([64, 10_000]),
            index_interval_bytes=random.choice([1, 150]),
            preallocate=random.random() < 0.2,
            cleanup_policy=policy,
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=random.choice([0, 100_000]),
            flush_messages=random.choice([1, 7, EVERYTHING, EVERYTHING]),
            flush_ms=random.choice([3000, EVERYTHING]),
            file_delete_delay_ms=random.choice([0, 30_000]),
            retention_bytes=random.choice([None, 4000]) if "delete" in policy else None,
            retention_ms=None,
        )

    def _tiered_config(self) -> LogConfig:
        return LogConfig(
            segment_bytes=self.random.choice([700, 1100]),
            index_interval_bytes=self.random.choice([1, 150]),
            flush_messages=self.random.choice([1, 7, EVERYTHING]),
            file_delete_delay_ms=self.random.choice([0, 30_000]),
            retention_ms=None,
            remote_storage_enable=True,
            local_retention_bytes=self.random.choice([0, 1500]),
        )

    # -- work --------------------------------------------------------------------------------------

    def open(self) -> LogManager:
        """Open the logs, as a new process does first."""
        manager = LogManager.open(
            self.directories,
            files=self.files,
            cluster_id="c",
            node_id=1,
            directory_id=lambda: UUID(int=self.random.getrandbits(128), version=4),
            random=self.random,
            now_ms=self.now_ms,
            topic_config=lambda topic: self.models[TIERED].config if topic == TIERED.topic else LogConfig(),
        )
        for topic_partition, model in self.models.items():
            if (log := manager.get(topic_partition)) is not None:
                log.update_config(model.config)
        return manager

    def log(self, topic_partition: TopicPartition) -> Log | None:
        """The partition's log, if its directory serves."""
        if (log := self.manager.get(topic_partition)) is not None:
            return log
        if any(it.directory.name == str(topic_partition) for it in self._offline_logs):
            return None
        try:
            model = self.models[topic_partition]
            was_created, model.is_created = model.is_created, True
            return self.manager.get_or_create(
                topic_partition,
                topic_id=TOPIC_ID,
                config=model.config,
                now_ms=self.now_ms,
                is_new=not was_created,
            )
        except KafkaStorageError:
            return None

    def work(self, steps: int) -> None:
        """Random steps, until the process dies. Failing disks take directories offline, and that is all."""
        self._logs: dict[TopicPartition, Log] = dict(self.manager.logs)
        self._offline_logs: list[Log] = []
        try:
            for _ in range(steps):
                self.step()
        except Killed:
            self.history.append("killed")
            self.note(is_dead=True)

    def step(self) -> None:
        """One thing that a broker does."""
        random = self.random
        topic_partition = random.choice(list(self.models))
        before = self.manager.get(topic_partition)
        log = self.log(topic_partition)
        if log is None:
            return
        self._logs[topic_partition] = log
        self.models[topic_partition].is_created = True
        model = self.models[topic_partition]
        what = random.choices(
            [self.append, self.abort_or_commit, self.replicate, self.upkeep, self.flush, self.delete_before,
             self.truncate, self.truncate_fully, self.clean, self.roll, self.lead, self.stop_and_start, self.again,
             self.copy, self.rebuild],
            [30, 8, 3, 10, 3, 3, 3, 1, 5, 3, 2, 1, 2, *((8, 2) if log.is_tiered else (0, 0))],
        )[0]  # fmt: skip
        self.history.append(f"{topic_partition} {what.__name__} at {log.log_end_offset}")
        try:
            what(log, model)
            if log.is_writable and log.flusher.is_due and random.random() < 0.9:
                log.flush()
        except KafkaStorageError:
            assert log.directory.parent in self.manager.offline_dirs or before is None
            self._offline_logs = [
                it for it in self._logs.values() if it.directory.parent in self.manager.offline_dirs
            ]
        self.note()

    def note(self, *, is_dead: bool = False) -> None:
        """Record flushed ends and starts as the logs report them, perhaps in the middle of the process's last
        step."""
        for topic_partition, log in self._logs.items():
            model = self.models[topic_partition]
            model.flushed_to = max(model.flushed_to, log.recovery_point)
            # Retention has taken a segment before it says so.
            first = 0 if log.is_tiered else log.segments.first.base_offset
            model.start = max(model.start, log.log_start_offset, first)
            if log.segments.first.base_offset > 0:
                model.has_lost_its_beginning = True
            if log.is_writable and not is_dead:
                assert (
                    log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset
                )
                assert log.recovery_point <= log.log_end_offset

    def append(self, log: Log, model: Model) -> None:
        random = self.random
        producer_id = random.choice([-1, *IDEMPOTENT, *TRANSACTIONAL])
        fields = {}
        if producer_id >= 0:
            known = log.producers.producers.get(producer_id)
            # No producer begins again in the same epoch, whatever the log has forgotten of it.
            epoch = max(known.epoch, 0) if known else model.producer_epochs.get(producer_id, -1) + 1
            sequence = known.last_sequence + 1 if known and known.last_sequence is not None else 0
            if producer_id in IDEMPOTENT and random.random() < 0.1:
                epoch, sequence = epoch + 1, 0
            model.producer_epochs[producer_id] = epoch
            fields = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
        is_transactional = producer_id in TRANSACTIONAL
        self.now_ms += random.choice([0, 0, 10, 500])
        base = log.log_end_offset
        # Time is not in order, and keys come again.
        records = tuple(
            (base + at, self.now_ms + random.randint(-3000, 3000), b"k%d" % random.randrange(6),
             None if random.random() < 0.1 else b"v%d" % random.getrandbits(32) * random.randrange(1, 9))
            for at in range(random.choice([1, 1, 2, 5]))
        )  # fmt: skip
        data = produced(records, is_transactional=is_transactional, **fields)
        batch = Batch(base, base + len(records) - 1, model.epoch, producer_id, fields.get("producer_epoch", -1),
                      fields.get("base_sequence", -1), is_transactional, None, records)  # fmt: skip
        model.send(batch)
        # As a Produce: the fast path, unless the batch or the log is one for the general path.
        first_offset = log.fast.append_as_leader(
            memoryview(data), leader_epoch=model.epoch, now_ms=self.now_ms
        )
        if first_offset is None:
            info = log.append_as_leader(data, leader_epoch=model.epoch, now_ms=self.now_ms)
            first_offset = info.first_offset
            assert info.last_offset == batch.last
        assert first_offset == batch.base
        model.appended(batch)
        if random.random() < 0.7:
            log.update_high_watermark(log.log_end_offset)

    def again(self, log: Log, model: Model) -> None:
        """A producer that sends its last batch once more."""
        sent = [
            it
            for it in model.batches
            if it.producer_id in IDEMPOTENT and len(it.records) == it.last - it.base + 1
        ]
        if sent:
            last = sent[-1]
            known = log.producers.producers.get(last.producer_id)
            if known and known.batches and known.batches[-1].last_offset == last.last:
                data = produced(
                    last.records,
                    producer_id=last.producer_id,
                    producer_epoch=last.producer_epoch,
                    base_sequence=last.base_sequence,
                )
                info = log.append_as_leader(data, leader_epoch=model.epoch, now_ms=self.now_ms)
                assert info.is_duplicate
                assert info.first_offset == last.base

    def abort_or_commit(self, log: Log, model: Model) -> None:
        open_ones = [it for it in log.producers.producers.values() if it.transaction_first_offset is not None]
        if not open_ones:
            return
        producer = self.random.choice(open_ones)
        commit = self.random.random() < 0.5
        data = marker(
            producer_id=producer.producer_id, epoch=producer.epoch, commit=commit, timestamp=self.now_ms
        )
        base = log.log_end_offset
        (record,) = parse_records(memoryview(data))
        kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
        batch = Batch(base, base, model.epoch, producer.producer_id, producer.epoch, -1, True, kind,
                      ((base, record.timestamp, record.key, record.value),))  # fmt: skip
        model.send(batch)
        log.append_as_leader(
            data, leader_epoch=model.epoch, now_ms=self.now_ms, origin=AppendOrigin.COORDINATOR
        )
        model.appended(batch)
        log.update_high_watermark(log.log_end_offset)

    def replicate(self, log: Log, model: Model) -> None:
        """Two batches of a leader, at once."""
        base = log.log_end_offset
        made = []
        data = b""
        for _ in range(2):
            record = (base, self.now_ms, b"k%d" % self.random.randrange(6), b"from the leader %d" % base)
            made.append(Batch(base, base, model.epoch, -1, -1, -1, False, None, (record,)))
            data += build_batch([Record(*record)], base_offset=base, leader_epoch=model.epoch)
            base += 1
        for batch in made:
            model.send(batch)
        log.append_as_follower(data, leader_epoch=model.epoch, now_ms=self.now_ms)
        for batch in made:
            model.appended(batch)

    def upkeep(self, log: Log, model: Model) -> None:
        self.now_ms += self.random.choice([1000, 5000, 61_000, 301_000])
        self.files.now_ms = self.now_ms
        for job in self.manager.maintain(self.now_ms):
            job.complete()

    def flush(self, log: Log, model: Model) -> None:
        log.flush()
        assert log.recovery_point == log.log_end_offset

    def delete_before(self, log: Log, model: Model) -> None:
        offset = self.random.randint(log.log_start_offset, log.high_watermark)
        log.maybe_increment_log_start_offset(offset)

    def truncate(self, log: Log, model: Model) -> None:
        bases = [it.base for it in model.batches if it.base >= log.local_log_start_offset]
        if bases:
            offset = self.random.choice(bases)
            model.truncate(offset)
            # A crash may come between the jobs; the truncation may be given up after some, or come without any.
            for _ in range(self.random.choice([0, 1, 2, 9])):
                if (job := log.truncation.next_job(offset, now_ms=self.now_ms)) is not None:
                    job.complete()
            if self.random.random() < 0.9:
                log.truncate_to(offset, now_ms=self.now_ms)
            log.truncation.discard()
            model.epoch += 1

    def truncate_fully(self, log: Log, model: Model) -> None:
        offset = log.log_end_offset + self.random.randint(-5, 5)
        if offset > 0:
            model.truncate(0)
            log.truncate_fully_and_start_at(offset, now_ms=self.now_ms)
            model.flushed_to = model.appended_to = offset
            model.start = offset
            model.epoch += 1

    def copy(self, log: Log, model: Model) -> None:
        """The leader's copy task; it may be killed at any time, but the store never is."""
        if log.offsets.remote_end_offset is None:
            # A crash may take a log start, but not the copies that were made from it on: nothing before them is copied.
            first = min((it.base for it in model.own_copies()), default=0)
            log.maybe_increment_log_start_offset(min(first, log.high_watermark))
            log.update_remote_end_offset(max((it.end for it in model.own_copies()), default=0))
        pending = log.offsets.earliest_pending_upload_offset
        assert pending is not None
        for segment in log.segments_to_copy(pending)[: self.random.choice([1, 9])]:
            if segment.snapshot_job is not None:
                segment.snapshot_job.complete()
            snapshot = self.files.read(segment.producer_snapshot)
            assert segment.is_current(log)
            # Not the model's batches: a truncation may have been given up.
            copied = observe_batches(batches(memoryview(self.files.read(segment.log_segment))))
            model.copies.append(
                Copy(
                    segment.base_offset,
                    segment.end_offset,
                    tuple(copied),
                    segment.leader_epoch_checkpoint,
                    snapshot,
                )
            )
            log.update_remote_end_offset(segment.end_offset)

    def rebuild(self, log: Log, model: Model) -> None:
        """A follower continues where a copy ends."""
        ends = [it for it in model.own_copies() if it.end >= log.log_start_offset]
        if not ends:
            return
        copy = self.random.choice(ends)
        state = RemoteState.of(
            offset=copy.end,
            log_start_offset=log.log_start_offset,
            leader_epochs=leader_epoch_cache.decode(copy.epochs),
            producer_snapshot=copy.producer_snapshot,
        )
        for _ in range(self.random.choice([0, 1, 2])):
            if (job := log.remote_restart.next_job(state)) is not None:
                job.complete()
        if self.random.random() < 0.8:
            model.truncate(copy.end)
            log.restart_from_remote(state, now_ms=self.now_ms)
            model.epoch += 1
        log.remote_restart.discard()

    def clean(self, log: Log, model: Model) -> None:
        for topic_partition, it in self.manager.logs.items():
            dirty = self.models[topic_partition]
            dirty.compacted_to = max(dirty.compacted_to, it.segments.active.base_offset)
        for _ in range(3):
            if (job := self.manager.clean_one(self.now_ms)) is None:
                break
            job.complete()

    def roll(self, log: Log, model: Model) -> None:
        log.roll(self.now_ms)

    def lead(self, log: Log, model: Model) -> None:
        model.epoch += 1
        log.assign_epoch(model.epoch, start_offset=log.log_end_offset)

    def stop_and_start(self, log: Log, model: Model) -> None:
        """A clean stop; after it, not even a loss of all that is not flushed may matter."""
        if self.manager.offline_dirs:
            return
        self.manager.shutdown(self.now_ms, broker_epoch=5)
        if self.manager.offline_dirs:
            self.files.die()
            raise Killed
        before = {topic_partition: observe_closed(log) for topic_partition, log in self._logs.items()}
        for it in self.models.values():
            it.flushed_to = it.appended_to = EVERYTHING
        self.files = self.files_after(Loss.ANYTHING)
        self.restart(is_clean=True)
        for topic_partition, expected in before.items():
            found = self.manager.get(topic_partition)
            assert found is not None
            start, end = expected
            assert found.log_start_offset == start, (topic_partition, expected)
            # Offsets that compaction has emptied at the end of a log are forgotten by a truncation, as in Kafka.
            assert found.log_end_offset == end or found.config.is_compacted, (topic_partition, expected)

    # -- crash and recovery ------------------------------------------------------------------------

    def random_loss(self) -> Loss:
        """A swap of compacted segments is renames in one order: of a disk that keeps the last of them without the
        first ones (no file system with a journal does) it expects too much. A clean stop has to stand that, too.
        """
        loss = self.random.choice(RANDOM_LOSSES)
        is_compacting = any(it.config.is_compacted for it in self.models.values())
        return Loss.PAGES if loss is Loss.ANYTHING and is_compacting else loss

    def files_after(self, loss: Loss) -> FaultyFiles:
        """The disk after the crash, with the faults that were not injected gone."""
        self.logs_with_lost_pages |= self.files.directories_with_lost_pages
        return self.files.after_crash(self.random, loss)

    def restart(self, *, is_clean: bool = False, loss: Loss = Loss.ANYTHING) -> None:
        """Open what a crash left, check it, open it again, and go on from there."""
        self.manager = self.open()
        if not is_clean and self.manager.was_clean:
            # Killed in the last moment of a clean stop.
            assert self.history[-2:][0] == "killed", self.history[-2:]
        assert self.manager.was_clean or not is_clean
        assert not self.manager.offline_dirs
        for topic_partition, model in self.models.items():
            self.check(topic_partition, model, loss)
        self.verify()
        first = self.everything()
        if not is_clean:
            # Stopped at once, as uncleanly: nothing may change any more.
            self.files = self.files.after_crash(self.random, Loss.NOTHING)
            self.manager = self.open()
            second = self.everything()
            assert first == second, [(a, b) for a, b in zip(first, second, strict=True) if a != b]
        self._logs = dict(self.manager.logs)
        self._offline_logs = []

    def verify(self) -> None:
        """`ottla verify-log` finds nothing wrong in what recovery has left."""
        for directory in self.directories:
            errors = [
                str(it) for it in verify(directory, self.files) if it.is_error and self.must_be_right(it.path)
            ]
            assert not errors, errors

    def must_be_right(self, path: Path) -> bool:
        """The files that must be right, without those that are written again when due, or that recovery
        cannot know."""
        if path.name.endswith("-checkpoint") or path.name == "partition.metadata":
            return False
        log = next((it for it in self.manager.logs.values() if path.is_relative_to(it.directory)), None)
        if log is None:
            return True
        bounds = (
            [(0, log.log_start_offset)]
            + [(it.base, it.last + 1) for it in observe(log)]
            + [(log.log_end_offset,) * 2]
        )
        is_whole = all(end == base for (_, end), (base, _) in pairwise(bounds))
        return log.log_start_offset == 0 and not log.config.is_compacted and is_whole

    def everything(self) -> list[tuple[object, ...]]:
        """The content that another recovery must not change."""
        rows = []
        for topic_partition, log in sorted(self.manager.logs.items()):
            log.update_high_watermark(log.log_end_offset)
            # Of producers without a batch from the log start on, a snapshot may say more than the log, or less.
            seen = {it.producer_id for it in observe(log)}
            rows.append(
                (topic_partition, observe(log), log.log_start_offset, log.log_end_offset,
                 log.checkpoints.recovery_point_to_write(), log.leader_epochs.entries, log.last_stable_offset,
                 tuple(it.base_offset for it in log.segments), log.reader.aborted_transactions(0, EVERYTHING),
                 {number: (it.epoch, it.last_sequence, it.transaction_first_offset is None)
                  for number, it in log.producers.producers.items() if number in seen})
            )  # fmt: skip
        return rows


def observe_closed(log: Log) -> tuple[int, int]:
    """Record the start and the end of a log that is closed."""
    return log.log_start_offset, log.log_end_offset
