"""The controller's shell: when changes are on the disk, when they are acknowledged, and what a restart finds.

About KIP-500.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from controller_shell import Shell, create, follow, join

from ottla.controller.api import CONTROLLER_APIS
from ottla.controller.features import DEFAULT_LEVELS
from ottla.controller.formatting import bootstrap_records
from ottla.controller.metadata_log import snapshots
from ottla.controller.raft.types import Address, ReplicaKey, VersionRange
from ottla.controller.raft.voters import Voter, VoterSet
from ottla.metadata import records as r
from ottla.metadata.image import ConfigResource, ConfigResourceType
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.codec import encode_response
from ottla.protocol.errors import (
    ErrorCode,
    NotController,
    UnsupportedVersion,
)
from ottla.protocol.messages import request_class
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.storage.files import Files
from ottla.stories.elections.machine import directory


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


async def test_a_new_cluster(shell: Shell):
    controller = await shell.start()
    follower = follow(shell)
    assert follower.image.features == {"metadata.version": 33, "eligible.leader.replicas.version": 1}
    default = ConfigResource(ConfigResourceType.BROKER, "")
    assert follower.image.configs == {default: {"min.insync.replicas": "1"}}
    assert (controller.epoch, follower.end_offset) == (1, 6)
    await shell.stop()
    names = {path.name for path in shell.log_dir.iterdir()}
    assert names == {"__cluster_metadata-0", "bootstrap.checkpoint"}
    log_dir = shell.log_dir / "__cluster_metadata-0"
    assert (log_dir / "partition.metadata").read_text() == "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
    assert (log_dir / "quorum-state").read_text() == (
        '{"clusterId":"","leaderId":1,"leaderEpoch":1,"votedId":-1,"appliedOffset":0,'
        '"currentVoters":[{"voterId":1}],"data_version":0}'
    )
    (bootstrap,) = snapshots.read(shell.log_dir / "bootstrap.checkpoint", Files())
    assert bootstrap == [
        r.FeatureLevelRecord(name="metadata.version", feature_level=33),
        r.FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1),
    ]


async def test_voters_are_in_the_log_where_they_have_addresses(tmp_path: Path):
    shell = Shell(tmp_path)
    shell.endpoints = {"CONTROLLER": Address("127.0.0.1", 9093)}
    me = Voter(ReplicaKey(1, directory(1)), shell.endpoints, VersionRange(0, 1))
    metadata = tmp_path / "__cluster_metadata-0"
    metadata.mkdir()
    snapshots.write_voters(metadata, VoterSet({1: me}).to_record(), Files(), now_ms=0)
    # It counts as used: no records are written for it, as if nothing had been formatted.
    snapshots.write_bootstrap(tmp_path, bootstrap_records(DEFAULT_LEVELS), Files(), now_ms=0)
    await shell.start()
    await shell.stop()
    assert '"data_version":1' in (metadata / "quorum-state").read_text()
    # Later without an address: the log has the voters.
    shell.endpoints = {}
    controller = await shell.start()
    assert controller.epoch == 2
    await shell.stop()
    assert '"data_version":1' in (metadata / "quorum-state").read_text()


async def test_a_restart_finds_everything(shell: Shell):
    controller = await shell.start()
    live = follow(shell)
    await join(controller)
    assert (await create(controller, "t", 3)).topics[0].error_code == ErrorCode.none
    await create(controller, "u")
    await shell.stop()
    again = await shell.start()
    assert again.epoch == 2
    late = follow(shell)
    for name in ("topics_by_id", "brokers", "configs", "features", "next_producer_id"):
        assert getattr(late.image, name) == getattr(live.image, name) == getattr(again.image, name), name
    # The broker's process was ours: its successor need not wait for the old session to end.
    await join(again, incarnation=2)
    await shell.stop()


async def test_what_the_image_lacks_is_built_by_the_new_active_controller(shell: Shell):
    shell.settings["hosts_broker"] = False
    controller = await shell.start()
    await join(controller)
    await create(controller, "a.b")
    await shell.stop()
    again = await shell.start()
    assert (await create(again, "a_b")).topics[0].error_code == ErrorCode.invalid_topic_exception
    # The offset of the registration is not known: a broker that has read the log as of this controller's
    # activation has read it.
    (broker,) = again.image.brokers.values()
    for behind, is_caught_up in ((2, False), (1, True)):
        offset = shell.quorum.applied_offset - behind
        beat = BrokerHeartbeatRequest(broker_id=1, broker_epoch=broker.epoch, current_metadata_offset=offset)
        response = await again.request(ApiKey.BROKER_HEARTBEAT, beat)
        assert response.is_caught_up == is_caught_up, behind
    await shell.stop()


async def test_a_standby_controllers_image_is_not_the_active_ones(shell: Shell):
    controller = await shell.start()
    follower = follow(shell)
    before = set(follower.image.topics_by_name)
    await join(controller)
    request = asyncio.ensure_future(create(controller, "t"))
    await asyncio.sleep(0)
    assert "t" in controller.image.topics_by_name  # decided, not acknowledged
    assert set(follower.image.topics_by_name) == before
    await request
    assert "t" in follower.image.topics_by_name
    assert controller.image.topics_by_name["t"] is not follower.image.topics_by_name["t"]
    await shell.stop()


async def test_subscribers_know_before_the_requester(shell: Shell):
    controller = await shell.start()
    follower = follow(shell)
    await join(controller)
    await create(controller, "t")
    assert "t" in follower.image.topics_by_name
    assert follower.end_offset == controller.committed_offset
    await shell.stop()


async def test_no_change_is_acknowledged_before_its_flush_and_many_share_one(shell: Shell):
    controller = await shell.start()
    follower = follow(shell)
    await join(controller)
    event = asyncio.Event()
    shell.blocked.append(event)
    flushes = shell.flushes
    requests = [asyncio.ensure_future(create(controller, f"t{index}")) for index in range(20)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert not any(request.done() for request in requests)
    assert follower.image.topics_by_name == {}
    # What is decided next already sees it, and what reads only waits for it, too.
    refused = asyncio.ensure_future(create(controller, "t0"))
    await asyncio.sleep(0)
    assert not refused.done()
    event.set()
    responses = await asyncio.gather(*requests, refused)
    codes = [response.topics[0].error_code for response in responses]
    assert codes == [ErrorCode.none] * 20 + [ErrorCode.topic_already_exists]
    assert len(follower.image.topics_by_name) == 20
    assert shell.flushes - flushes <= 2
    await shell.stop()


async def test_a_subscriber_that_fails_ends_the_node_when_the_others_know_what_is_committed(
    shell: Shell, caplog: pytest.LogCaptureFixture
):
    """It has followed a part of the log, and nothing would heal that; Raft went on, and it stayed behind."""
    controller = await shell.start()
    before, fails, after = follow(shell), follow(shell), follow(shell)
    await join(controller)

    def on_commit(records: Sequence[r.MetadataRecord], base_offset: int, end_offset: int) -> None:
        raise ValueError("a bug")

    fails.on_commit = on_commit
    assert (await create(controller, "t")).topics[0].error_code == 0
    assert before.image.topics_by_name.keys() == after.image.topics_by_name.keys() == {"t"}
    assert "ValueError: a bug" in caplog.text
    (failure,) = shell.failures
    assert "on_commit cannot apply the metadata log at offset" in str(failure)
    assert shell.quorum.has_failed
    await shell.stop()


async def test_requests_are_refused_while_too_many_wait_to_be_committed(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
):
    """A disk that does not answer: a request that timed out is repeated, and waits for the same flush."""
    controller = await shell.start()
    await join(controller)
    monkeypatch.setattr("ottla.controller.controller.MAX_DEFERRED_RESPONSES", 3)
    event = asyncio.Event()
    shell.blocked.append(event)
    requests = [asyncio.ensure_future(create(controller, f"t{index}")) for index in range(3)]
    await asyncio.sleep(0)
    requests[0].cancel()
    with pytest.raises(NotController, match="Too many"):
        await create(controller, "u")
    shell.blocked.clear()
    event.set()
    await asyncio.gather(*requests[1:])
    assert (await create(controller, "u")).topics[0].error_code == 0
    assert set(controller.image.topics_by_name) == {"t0", "t1", "t2", "u"}
    await shell.stop()


async def test_a_request_that_is_given_up_is_carried_out_nevertheless(shell: Shell):
    controller = await shell.start()
    await join(controller)
    event = asyncio.Event()
    shell.blocked.append(event)
    given_up = asyncio.ensure_future(create(controller, "t"))
    await asyncio.sleep(0)
    given_up.cancel()
    event.set()
    await create(controller, "u")
    assert set(controller.image.topics_by_name) == {"t", "u"}
    await shell.stop()


@pytest.mark.logs("the metadata log cannot be processed any further; this node stops")
async def test_a_disk_that_fails_ends_the_controller(shell: Shell):
    controller = await shell.start()
    follower = follow(shell)
    await join(controller)
    shell.error = OSError(5, "I/O error")
    with pytest.raises(NotController):
        await create(controller, "t")
    with pytest.raises(NotController):
        await create(controller, "u")
    assert shell.failures == [shell.error]
    assert follower.image.topics_by_name == {}


async def test_refusals_of_whole_requests(shell: Shell):
    controller = shell.open()
    with pytest.raises(NotController):
        await create(controller, "early")
    await shell.quorum.start()
    with pytest.raises(UnsupportedVersion):
        await controller.request(ApiKey.METADATA, MetadataRequest())
    too_much = await create(controller, "t", 10_001)
    assert [row.error_code for row in too_much.topics] == [ErrorCode.policy_violation]
    stale = BrokerHeartbeatRequest(broker_id=5, broker_epoch=1)
    answer = await controller.request(ApiKey.BROKER_HEARTBEAT, stale)
    assert answer.error_code == ErrorCode.stale_broker_epoch
    await shell.stop()


@pytest.mark.parametrize("api_key", CONTROLLER_APIS, ids=lambda key: ApiKey(key).name)
async def test_empty_requests_are_answered_and_change_nothing(shell: Shell, api_key: int):
    """CVE-2026-83525 was such a request: a list without elements must not stop the controller."""
    controller = await shell.start()
    await join(controller)
    end_offset, image = shell.quorum.end_offset, controller.image.copy()
    response = await controller.request(api_key, request_class(api_key)())
    assert getattr(response, "error_code", 0) != ErrorCode.unknown_server_error
    assert controller.is_active
    assert encode_response(api_key, KAFKA_VERSIONS[ApiKey(api_key)].stop - 1, response)
    if api_key != ApiKey.CONTROLLER_REGISTRATION:  # which names controller 0, without listeners
        assert controller.image == image
    assert shell.quorum.end_offset - end_offset <= 1
    await shell.stop()


# KIP-631
@pytest.mark.logs("its session has expired")
async def test_silent_brokers_are_fenced(shell: Shell):
    controller = await shell.start()
    follower = follow(shell)
    await join(controller)
    await create(controller, "t")
    shell.seconds += 8.9
    await shell.ring()
    assert not controller.image.brokers[1].is_fenced
    shell.seconds += 0.1
    await shell.ring()
    await create(controller, "t")  # behind it
    assert follower.image.brokers[1].is_fenced
    assert follower.image.topics_by_name["t"].partitions[0].leader is None
    await shell.stop()


async def test_decisions_see_the_wall_clock(shell: Shell):
    """The age of a replica's local records is measured against it (draft KIP-1303)."""
    controller = await shell.start()
    await join(controller)
    assert controller._active is not None
    assert controller._active.state.wall_clock_ms == shell.now_ms()
    await shell.stop()


async def test_a_thousand_partitions(shell: Shell):
    controller = await shell.start()
    await join(controller)
    response = await create(controller, "t", 1000)
    assert response.topics[0].num_partitions == 1000
    await shell.stop()
