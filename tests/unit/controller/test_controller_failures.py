"""The controller's shell when something fails: what it must not open, and what of its decisions is forgotten.

About KIP-500.
"""

import asyncio
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from controller_shell import Shell, create, follow, join, lose_the_leadership

from ottla.controller.api import CONTROLLER_APIS
from ottla.controller.controller import InvalidMetadata
from ottla.controller.metadata_log import new_batches, quorum_state, snapshots
from ottla.controller.metadata_log.log import MetadataLog
from ottla.controller.metadata_log.log_cleaning import MAX_BATCH_BYTES
from ottla.controller.metadata_log.new_batches import MAX_RECORDS_PER_BATCH
from ottla.controller.raft.machine import Raft
from ottla.controller.raft.types import Address
from ottla.controller.result import Result
from ottla.metadata import records as r
from ottla.metadata.frame import encode_record
from ottla.metadata.image import ConfigResourceType, MetadataImage
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import (
    ErrorCode,
    NotController,
    RecordListTooLarge,
)
from ottla.protocol.messages import alter_client_quotas as quotas
from ottla.protocol.messages.alter_client_quotas import AlterClientQuotasRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.storage.appending import AppendOrigin
from ottla.storage.files import Files


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


# -- what must not be opened ---------------------------------------------------------------------------


def append(log_dir: Path, *values: bytes | None) -> None:
    """Put records of these bytes at the end of the log."""
    log = MetadataLog.open(log_dir, files=Files(), random=Random(1), now_ms=0)
    rows = simple_records([(None, value) for value in values], timestamp=0, base_offset=log.end_offset)
    batch = build_batch(rows, base_offset=log.end_offset)
    epoch = log.last_epoch  # one that goes back would be no batch of a sound log
    log._log.append_as_leader(batch, leader_epoch=epoch, now_ms=0, origin=AppendOrigin.RAFT_LEADER)
    log.close()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"\x01\x1d\x00\x00", "offset 6: metadata record of type 29, version 0"),
        (b"\x01\x03\x07\x00", "offset 6: metadata record of type 3, version 7"),
        (b"\x01", "no complete frame"),
        (None, "offset 6: a metadata record of 0 bytes has no complete frame"),
        (b"\x01\x18\x00\x00", "a metadata transaction ends at offset 6, but none has begun"),
        (b"\x01\x09\x00" + b"\x07" * 16 + b"\x00", "which does not exist"),
    ],
)
async def test_unknown_records_end_the_controller(shell: Shell, value: bytes | None, said: str):
    await shell.live_once()
    append(shell.log_dir, value)
    with pytest.raises(InvalidMetadata, match=said):
        await shell.start()


async def test_a_metadata_version_of_the_future(shell: Shell):
    await shell.live_once()
    append(shell.log_dir, b"\x01\x0c\x00\x11metadata.version\x00\x22\x00")
    with pytest.raises(InvalidMetadata, match="is 34; this software supports 7 to 33"):
        await shell.start()


# KIP-868
async def test_a_transaction_that_was_left_open_never_happened(shell: Shell):
    await shell.live_once()
    topic = b"\x01\x02\x00\x02t" + b"\x07" * 16 + b"\x00"
    append(shell.log_dir, b"\x01\x17\x00\x00", topic)
    await shell.start()
    assert follow(shell).image.topics_by_name == {}
    await shell.stop()
    append(shell.log_dir, topic)
    await shell.start()
    assert set(follow(shell).image.topics_by_name) == {"t"}
    await shell.stop()


async def test_an_incomplete_bootstrap_is_repeated(shell: Shell):
    await shell.live_once()
    path = shell.log_dir / "__cluster_metadata-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:91])  # LeaderChange alone
    append(shell.log_dir, b"\x01\x17\x00\x00")  # and a transaction's begin
    await shell.start()
    assert follow(shell).image.metadata_version == 33
    await shell.stop()
    await shell.start()
    assert follow(shell).image.metadata_version == 33
    await shell.stop()


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"leaderId":1,"leaderEpoch":"x","votedId":-1,"data_version":0}', '{"data_version":7}'],
)
async def test_a_quorum_state_that_makes_no_sense(shell: Shell, text: str):
    await shell.live_once()
    (shell.log_dir / "__cluster_metadata-0" / quorum_state.FILE_NAME).write_text(text)
    with pytest.raises(InvalidMetadata, match="quorum-state cannot be read"):
        await shell.start()


async def test_other_voters(shell: Shell):
    await shell.live_once()
    path = shell.log_dir / "__cluster_metadata-0" / quorum_state.FILE_NAME
    path.write_text(path.read_text().replace('[{"voterId":1}]', '[{"voterId":1},{"voterId":2}]'))
    with pytest.raises(InvalidMetadata, match=r"names the other voters \[2\]"):
        await shell.start()


async def test_an_epoch_is_never_used_twice(shell: Shell):
    await shell.live_once()
    path = shell.log_dir / "__cluster_metadata-0" / quorum_state.FILE_NAME
    path.write_text(path.read_text().replace('"leaderEpoch":1', '"leaderEpoch":41'))
    controller = await shell.start()
    assert controller.epoch == 42
    await shell.stop()
    path.unlink()  # then the log knows
    controller = await shell.start()
    assert controller.epoch == 43
    await shell.stop()


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
async def test_a_damaged_bootstrap_checkpoint(shell: Shell, damage: str):
    await shell.live_once()
    path = shell.log_dir / "bootstrap.checkpoint"
    data = bytearray(path.read_bytes())
    for child in (shell.log_dir / "__cluster_metadata-0").iterdir():
        child.unlink()
    data[150] ^= damage == "flipped"
    path.write_bytes(data[: {"cut": 220, "flipped": len(data), "empty": 0}[damage]])
    with pytest.raises(InvalidMetadata, match=r"bootstrap\.checkpoint"):
        await shell.start()


async def test_a_directory_that_was_formatted_with_other_levels(shell: Shell):
    levels = [r.FeatureLevelRecord(name="metadata.version", feature_level=21)]
    snapshots.write_bootstrap(shell.log_dir, levels, Files(), now_ms=0)
    await shell.start()
    assert follow(shell).image.features == {"metadata.version": 21}
    assert follow(shell).image.configs == {}
    await shell.stop()


async def test_a_directory_that_kafka_4_4_has_formatted(shell: Shell):
    """The first records are in the metadata log's first snapshot, and `bootstrap.checkpoint` is not there."""
    levels = [r.FeatureLevelRecord(name="metadata.version", feature_level=33)]
    levels.append(r.FeatureLevelRecord(name="group.version", feature_level=1))
    first = shell.log_dir / "__cluster_metadata-0" / snapshots.FIRST_CHECKPOINT_FILE
    first.parent.mkdir(parents=True)
    snapshots.write_bootstrap(first.parent, levels, Files(), now_ms=0)
    (first.parent / snapshots.BOOTSTRAP_FILE).rename(first)
    await shell.start()
    assert follow(shell).image.features == {"metadata.version": 33, "group.version": 1}
    assert not (shell.log_dir / snapshots.BOOTSTRAP_FILE).exists()
    await shell.stop()
    await shell.start()
    assert follow(shell).image.features == {"metadata.version": 33, "group.version": 1}
    await shell.stop()


async def test_damage_after_a_clean_stop_is_refused(shell: Shell):
    """Cutting the log there, as after a crash, would lose topics whose creation was acknowledged."""
    controller = await shell.start()
    await join(controller)
    await create(controller, "t")
    await shell.stop()
    path = shell.log_dir / "__cluster_metadata-0" / "00000000000000000000.log"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(InvalidMetadata, match="damaged at offset"):
        await shell.start(is_clean=True)


@pytest.mark.logs("are not valid batches, truncated")
async def test_a_torn_write_loses_a_whole_decision(shell: Shell):
    controller = await shell.start()
    await join(controller)
    await create(controller, "t", 5)
    await shell.stop()
    path = shell.log_dir / "__cluster_metadata-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-7])
    controller = await shell.start()
    assert follow(shell).image.topics_by_name == {}
    assert set(controller.image.brokers) == {1}
    await shell.stop()


# -- ceasing to lead -----------------------------------------------------------------------------------


async def test_a_change_that_times_out_may_still_be_committed(shell: Shell):
    controller = await shell.start()
    follower = follow(shell)
    await join(controller)
    event = asyncio.Event()
    shell.blocked.append(event)
    slow = CreateTopicsRequest(
        timeout_ms=10, topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
    )
    answer = await controller.request(ApiKey.CREATE_TOPICS, slow)
    assert answer.topics[0].error_code == ErrorCode.request_timed_out
    event.set()
    await create(controller, "u")
    assert set(follower.image.topics_by_name) == {"t", "u"}
    await shell.stop()


async def test_what_was_not_committed_is_forgotten(shell: Shell):
    controller = await shell.start()
    follower = follow(shell)
    await join(controller)
    await create(controller, "t")
    shell.blocked.append(asyncio.Event())  # the disk takes nothing more
    lost = asyncio.ensure_future(create(controller, "u"))
    await asyncio.sleep(0)
    assert set(controller.image.topics_by_name) == {"t", "u"}
    await lose_the_leadership(shell)
    with pytest.raises(NotController):
        await lost
    with pytest.raises(NotController, match="appears to be node 2"):
        await create(controller, "v")
    assert not controller.is_active
    assert controller.image == follower.image
    assert set(controller.image.topics_by_name) == {"t"}
    shell.quorum._driver._worker.cancel()


async def test_a_record_that_cannot_be_replayed_does_not_get_into_the_log(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    controller = await shell.start()
    follower = follow(shell)
    await join(controller)
    await create(controller, "t")
    api = CONTROLLER_APIS[ApiKey.DELETE_TOPICS]
    good = r.TopicRecord(name="half", topic_id=UUID(int=5_000))
    bad = r.RemoveTopicRecord(topic_id=UUID(int=6_000))
    broken = api._replace(decide=lambda *_: Result(response=None, records=[good, bad]))
    monkeypatch.setitem(CONTROLLER_APIS, ApiKey.DELETE_TOPICS, broken)
    end_offset = shell.quorum.end_offset
    with pytest.raises(InvalidMetadata, match="does not exist"):
        await controller.request(ApiKey.DELETE_TOPICS, DeleteTopicsRequest())
    assert "controller 1 resigns" in caplog.text
    assert shell.quorum.end_offset == end_offset
    assert controller.image == follower.image
    for _ in range(20):
        await asyncio.sleep(0)
    shell.seconds += 2
    shell.quorum._driver._queue.wakeup()
    for _ in range(20):
        await asyncio.sleep(0)
    assert controller.epoch == 3
    await create(controller, "u")
    assert set(follower.image.topics_by_name) == {"t", "u"}
    assert not shell.failures
    await shell.stop()


async def test_kraft_version_is_raised_by_raft(tmp_path: Path):
    shell = Shell(tmp_path)
    shell.endpoints = {"CONTROLLER": Address("127.0.0.1", 9093)}
    controller = await shell.start()
    assert shell.quorum.kraft_version == 0
    update = FeatureUpdateKey(feature="kraft.version", max_version_level=1, upgrade_type=1)
    request = UpdateFeaturesRequest(feature_updates=[update], validate_only=True)
    for is_dry in (True, False):
        request.validate_only = is_dry
        answer = await controller.request(ApiKey.UPDATE_FEATURES, request)
        assert answer.error_code == ErrorCode.none, answer
        assert shell.quorum.kraft_version == int(not is_dry)
    assert shell.quorum.applied_offset == shell.quorum.end_offset
    await shell.stop()
    controller = await shell.start()
    assert shell.quorum.kraft_version == 1
    assert list(shell.quorum.voters.ids) == [1]
    assert controller.is_active
    await shell.stop()


# KIP-835
async def test_a_single_voter_writes_nothing_while_nothing_happens(shell: Shell):
    await shell.start()
    end_offset = shell.quorum.end_offset
    for _, callback in list(shell.timers):
        callback()
    for _ in range(20):
        await asyncio.sleep(0)
    assert shell.quorum.end_offset == end_offset
    await shell.stop()


async def test_a_periodic_task_that_fails_comes_again_later(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    controller = await shell.start()
    await join(controller)

    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("ottla.controller.membership.brokers.expire_sessions.steps", fails)
    await shell.ring()
    assert "maybeFenceStaleBroker has failed" in caplog.text
    assert shell.timers[-1][0] == 300
    assert controller.is_active
    await shell.stop()


async def test_a_periodic_task_of_a_leader_that_is_none_any_more(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    controller = await shell.start()
    await join(controller)
    shell.seconds += 20
    monkeypatch.setattr(Raft, "is_leader_of", lambda self, epoch: False)
    count = len(shell.timers)
    await shell.ring()
    assert not controller.is_active
    assert len(shell.timers) == count
    assert "has failed" not in caplog.text
    await shell.stop()


async def test_a_decision_that_does_not_get_into_the_log_is_forgotten_without_a_look_at_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
):
    controller = await shell.start()
    await join(controller)
    await create(controller, "before")
    committed = controller.image.copy()

    def unreadable(*_: object) -> None:
        raise InvalidMetadata("rotten")

    monkeypatch.setattr(shell.quorum._log, "decoded_batches", unreadable)
    monkeypatch.setattr(Raft, "is_leader_of", lambda self, epoch: False)
    with pytest.raises(NotController):
        await create(controller, "t")
    assert not controller.is_active
    assert controller.image == committed
    assert not shell.failures
    await shell.stop()


async def test_a_decision_that_other_nodes_could_not_read_is_refused(shell: Shell):
    """Each record fits; but all of them have to be one batch, which is more than a Fetch may answer."""
    controller = await shell.start()
    await join(controller)
    before = controller.image.copy(), shell.quorum.end_offset
    request = AlterClientQuotasRequest(
        entries=[
            quotas.EntryData(
                entity=[quotas.EntityData(entity_type="user", entity_name=f"{number:03}{'x' * 30_000}")],
                ops=[quotas.OpData(key="producer_byte_rate", value=1.0)],
            )
            for number in range(300)
        ]
    )
    answer = await controller.request(ApiKey.ALTER_CLIENT_QUOTAS, request)
    assert {row.error_code for row in answer.entries} == {ErrorCode.record_list_too_large}
    assert (controller.image, shell.quorum.end_offset) == before
    del request.entries[200:]
    answer = await controller.request(ApiKey.ALTER_CLIENT_QUOTAS, request)
    assert {row.error_code for row in answer.entries} == {ErrorCode.none}
    await shell.stop()


@pytest.mark.parametrize(("count", "text_bytes"), [(300, 30_000), (15_000, 10)])
async def test_a_decision_is_cut_into_batches_that_other_nodes_can_read(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, count: int, text_bytes: int
):
    """By their bytes or their count."""
    controller = await shell.start()
    many = [
        r.ConfigRecord(
            resource_type=ConfigResourceType.GROUP, resource_name="g", name=f"k{n}", value="x" * text_bytes
        )
        for n in range(count)
    ]
    api = CONTROLLER_APIS[ApiKey.INCREMENTAL_ALTER_CONFIGS]
    decided = Result(response="done", records=many, is_atomic=False)
    monkeypatch.setitem(
        CONTROLLER_APIS, ApiKey.INCREMENTAL_ALTER_CONFIGS, api._replace(decide=lambda *_: decided)
    )
    begin = shell.quorum.end_offset
    assert await controller.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, None) == "done"
    chunks = list(shell.quorum._log.decoded_batches(begin, shell.quorum.end_offset))
    assert [record for chunk in chunks for record in chunk.records] == many
    assert len(chunks) == 2
    assert max(chunk.size_bytes for chunk in chunks) <= MAX_BATCH_BYTES
    assert max(len(chunk.records) for chunk in chunks) <= MAX_RECORDS_PER_BATCH
    await shell.stop()


async def test_each_record_is_encoded_once(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    """A topic of 1,000 partitions is one turn of the event loop."""
    controller = await shell.start()
    await join(controller)
    encoded = []

    def encode(record: r.MetadataRecord, version: int) -> bytes:
        encoded.append(record)
        return encode_record(record, version)

    monkeypatch.setattr(new_batches, "encode_record", encode)
    begin = shell.quorum.end_offset
    await create(controller, "t", 5)
    (chunk,) = shell.quorum._log.decoded_batches(begin, shell.quorum.end_offset)
    assert encoded == chunk.records
    await shell.stop()


async def test_a_record_that_no_batch_holds_is_refused(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    controller = await shell.start()
    api = CONTROLLER_APIS[ApiKey.DELETE_TOPICS]
    large = r.PartitionRecord(directories=[UUID(int=7)] * (MAX_BATCH_BYTES // 16))
    decided = Result(response=None, records=[large], is_atomic=False)
    monkeypatch.setitem(
        CONTROLLER_APIS,
        ApiKey.DELETE_TOPICS,
        api._replace(decide=lambda *_: decided),
    )
    end_offset = shell.quorum.end_offset
    answer = await controller.request(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topic_names=["t"]))
    assert answer.responses[0].error_code == RecordListTooLarge.code
    assert shell.quorum.end_offset == end_offset
    await shell.stop()


async def test_a_stop_lets_requests_in_flight_end(shell: Shell):
    controller = await shell.start()
    await join(controller)
    request = asyncio.ensure_future(create(controller, "t"))
    await asyncio.sleep(0)
    stopping = asyncio.ensure_future(shell.stop())
    await asyncio.sleep(0)
    with pytest.raises(NotController):
        await create(controller, "u")
    assert (await request).topics[0].error_code == ErrorCode.none
    await stopping


async def test_a_leader_that_has_resigned_before_it_is_notified(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
):
    controller = shell.open()
    monkeypatch.setattr(Raft, "is_leader_of", lambda self, epoch: False)
    await shell.quorum.start()
    assert not controller.is_active
    assert controller.image == MetadataImage()
    await shell.stop()


async def test_a_commit_after_the_stop_changes_nothing(shell: Shell):
    """The next leader may commit it before this node has left: it has replayed it already."""
    controller = await shell.start()
    await join(controller)
    shell.blocked.append(asyncio.Event())
    lost = asyncio.ensure_future(create(controller, "t"))
    await asyncio.sleep(0)
    controller.stop()
    await lose_the_leadership(shell)
    with pytest.raises(NotController):
        await lost
    (chunk,) = shell.quorum._log.decoded_batches(shell.quorum.applied_offset, shell.quorum.end_offset)
    shell.quorum._listeners.notify_commit(chunk)
    shell.quorum._driver._worker.cancel()
