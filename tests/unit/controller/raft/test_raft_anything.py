"""Any requests and responses in any order: nothing raises, every request has its response, and nothing goes
back."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raft_support import elected

from ottla.controller.raft.effects import Committed, Fatal, LeaderChanged, Persist
from ottla.controller.raft.types import TOPIC, TOPIC_ID, ElectionState
from ottla.protocol.messages import begin_quorum_epoch as begin
from ottla.protocol.messages import describe_quorum as describe
from ottla.protocol.messages import end_quorum_epoch as end
from ottla.protocol.messages import fetch, vote
from ottla.protocol.messages import fetch_snapshot as snapshot
from ottla.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from ottla.protocol.messages.add_raft_voter import Listener as AddedListener
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from ottla.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from ottla.protocol.messages.update_raft_voter import (
    CurrentLeader,
    KRaftVersionFeature,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from ottla.protocol.messages.update_raft_voter import Listener as UpdatedListener
from ottla.stories.quorum.raft_replicas import (
    CLUSTER_ID,
    LISTENER,
    MemoryLog,
    Replica,
    address,
    directory,
    dynamic_log,
)
from ottla.stories.quorum.raft_replicas import settings as raft_settings

pytestmark = pytest.mark.logs("")

IDS = st.sampled_from([-1, 0, 1, 2, 3, 9, 2**31 - 1, -(2**31)])
EPOCHS = st.integers(-1, 6) | st.sampled_from([2**31 - 1, 2**31 - 2, -(2**31)])
OFFSETS = st.integers(-1, 6) | st.sampled_from([2**63 - 1, -(2**63)])
CLUSTERS = st.sampled_from([CLUSTER_ID, None, "other"])
DIRECTORIES = st.sampled_from([directory(id) for id in (-1000, 1, 2, 3, 9)])
NAMES = st.sampled_from([TOPIC, TOPIC, TOPIC, "t"])
ERRORS = st.sampled_from([0, 0, 0, 6, 8, 35, 42, 74, 76, 98, 99, 104, 125, -1, 7_777])
BYTES = st.binary(max_size=70)


def log_of(*epochs: int) -> MemoryLog:
    log = MemoryLog()
    for epoch in epochs:
        log.append(f"{epoch}", epoch=epoch)
    return log


RECORDS = st.sampled_from(
    [log_of(*epochs).read(at, max_bytes=9_999) for epochs in [(1,), (1, 1, 2), (3, 4)] for at in (0, 1)]
)


def listed(topic: Callable[..., Any], row: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """The requested partitions: mostly our partition alone."""
    rows = st.one_of(*[row.map(lambda each: [each])] * 5, st.just([]), st.lists(row, max_size=3))
    topics = rows.map(lambda found: topic(partitions=found))
    return st.one_of(*[topics.map(lambda each: [each])] * 5, st.just([]), st.lists(topics, max_size=2))


def listeners(cls: type) -> st.SearchStrategy[list[Any]]:
    return st.sampled_from(
        [[], [cls(name=LISTENER, host="h", port=1)], [cls(name="OTHER", host="h", port=1)]]
    )


def named(cls: type) -> Callable[..., Any]:
    return lambda partitions: cls(topic_name=TOPIC, partitions=partitions)


def fetched(cls: type) -> Callable[..., Any]:
    return lambda partitions: cls(topic_id=TOPIC_ID, partitions=partitions)


REQUESTS = st.one_of(
    st.builds(
        vote.VoteRequest,
        cluster_id=CLUSTERS,
        voter_id=IDS,
        topics=listed(
            named(vote.TopicData),
            st.builds(
                vote.PartitionData,
                replica_epoch=EPOCHS,
                replica_id=IDS,
                replica_directory_id=DIRECTORIES,
                voter_directory_id=DIRECTORIES,
                last_offset_epoch=EPOCHS,
                last_offset=OFFSETS,
                pre_vote=st.booleans(),
            ),
        ),
    ),
    st.builds(
        begin.BeginQuorumEpochRequest,
        cluster_id=CLUSTERS,
        voter_id=IDS,
        topics=listed(
            named(begin.TopicData),
            st.builds(
                begin.PartitionData, voter_directory_id=DIRECTORIES, leader_id=IDS, leader_epoch=EPOCHS
            ),
        ),
        leader_endpoints=listeners(begin.LeaderEndpoint),
    ),
    st.builds(
        end.EndQuorumEpochRequest,
        cluster_id=CLUSTERS,
        topics=listed(
            named(end.TopicData),
            st.builds(
                end.PartitionData,
                leader_id=IDS,
                leader_epoch=EPOCHS,
                preferred_successors=st.lists(IDS, max_size=3),
                preferred_candidates=st.lists(
                    st.builds(end.ReplicaInfo, candidate_id=IDS, candidate_directory_id=DIRECTORIES),
                    max_size=3,
                ),
            ),
        ),
        leader_endpoints=listeners(end.LeaderEndpoint),
    ),
    st.builds(
        fetch.FetchRequest,
        cluster_id=CLUSTERS,
        replica_state=st.builds(fetch.ReplicaState, replica_id=IDS),
        max_wait_ms=st.sampled_from([-1, 0, 500]),
        max_bytes=st.sampled_from([-1, 0, 1, 1_000]),
        topics=listed(
            fetched(fetch.FetchTopic),
            st.builds(
                fetch.FetchPartition,
                current_leader_epoch=EPOCHS,
                fetch_offset=OFFSETS,
                last_fetched_epoch=EPOCHS,
                replica_directory_id=DIRECTORIES,
                high_watermark=OFFSETS,
            ),
        ),
    ),
    st.builds(
        snapshot.FetchSnapshotRequest,
        cluster_id=CLUSTERS,
        replica_id=IDS,
        max_bytes=st.sampled_from([-1, 0, 1, 1_000]),
        topics=listed(
            lambda partitions: snapshot.TopicSnapshot(name=TOPIC, partitions=partitions),
            st.builds(
                snapshot.PartitionSnapshot,
                current_leader_epoch=EPOCHS,
                snapshot_id=st.builds(snapshot.SnapshotId, end_offset=OFFSETS, epoch=EPOCHS),
                position=OFFSETS,
                replica_directory_id=DIRECTORIES,
            ),
        ),
    ),
    st.builds(
        describe.DescribeQuorumRequest,
        topics=listed(named(describe.TopicData), st.builds(describe.PartitionData)),
    ),
    st.builds(
        AddRaftVoterRequest,
        cluster_id=CLUSTERS,
        voter_id=IDS,
        voter_directory_id=DIRECTORIES,
        listeners=listeners(AddedListener),
        ack_when_committed=st.booleans(),
    ),
    st.builds(RemoveRaftVoterRequest, cluster_id=CLUSTERS, voter_id=IDS, voter_directory_id=DIRECTORIES),
    st.builds(
        UpdateRaftVoterRequest,
        cluster_id=CLUSTERS,
        current_leader_epoch=EPOCHS,
        voter_id=IDS,
        voter_directory_id=DIRECTORIES,
        listeners=listeners(UpdatedListener),
        k_raft_version_feature=st.builds(
            KRaftVersionFeature,
            min_supported_version=st.integers(-1, 2),
            max_supported_version=st.integers(-1, 2),
        ),
    ),
)


def endpoints(cls: type) -> st.SearchStrategy[list[Any]]:
    return st.sampled_from([[], [cls(node_id=2, host="h", port=1)], [cls(node_id=9, host="h", port=1)]])


def about(cls: type) -> st.SearchStrategy[Any]:
    return st.builds(cls, leader_id=IDS, leader_epoch=EPOCHS)


ANSWERS: dict[type, st.SearchStrategy[Any]] = {
    vote.VoteRequest: st.builds(
        vote.VoteResponse,
        error_code=ERRORS,
        topics=listed(
            named(vote.TopicDataResponse),
            st.builds(
                vote.PartitionDataResponse,
                error_code=ERRORS,
                leader_id=IDS,
                leader_epoch=EPOCHS,
                vote_granted=st.booleans(),
            ),
        ),
        node_endpoints=endpoints(vote.NodeEndpoint),
    ),
    begin.BeginQuorumEpochRequest: st.builds(
        begin.BeginQuorumEpochResponse,
        error_code=ERRORS,
        topics=listed(
            named(begin.TopicDataResponse),
            st.builds(begin.PartitionDataResponse, error_code=ERRORS, leader_id=IDS, leader_epoch=EPOCHS),
        ),
        node_endpoints=endpoints(begin.NodeEndpoint),
    ),
    end.EndQuorumEpochRequest: st.builds(
        end.EndQuorumEpochResponse,
        error_code=ERRORS,
        topics=listed(
            named(end.TopicDataResponse),
            st.builds(end.PartitionDataResponse, error_code=ERRORS, leader_id=IDS, leader_epoch=EPOCHS),
        ),
        node_endpoints=endpoints(end.NodeEndpoint),
    ),
    fetch.FetchRequest: st.builds(
        fetch.FetchResponse,
        error_code=ERRORS,
        responses=listed(
            fetched(fetch.FetchableTopicResponse),
            st.builds(
                fetch.PartitionData,
                error_code=ERRORS,
                high_watermark=OFFSETS,
                records=st.none() | BYTES | RECORDS,
                current_leader=about(fetch.LeaderIdAndEpoch),
                diverging_epoch=st.just(fetch.EpochEndOffset())
                | st.builds(fetch.EpochEndOffset, epoch=EPOCHS, end_offset=OFFSETS),
                snapshot_id=st.just(fetch.SnapshotId())
                | st.builds(fetch.SnapshotId, epoch=EPOCHS, end_offset=OFFSETS),
            ),
        ),
        node_endpoints=endpoints(fetch.NodeEndpoint),
    ),
    snapshot.FetchSnapshotRequest: st.builds(
        snapshot.FetchSnapshotResponse,
        error_code=ERRORS,
        topics=listed(
            lambda partitions: snapshot.TopicSnapshotResponse(name=TOPIC, partitions=partitions),
            st.builds(
                snapshot.PartitionSnapshotResponse,
                error_code=ERRORS,
                snapshot_id=st.builds(snapshot.SnapshotId, end_offset=OFFSETS, epoch=EPOCHS),
                current_leader=about(snapshot.LeaderIdAndEpoch),
                size=OFFSETS,
                position=OFFSETS,
                unaligned_records=BYTES,
            ),
        ),
    ),
    ApiVersionsRequest: st.builds(
        ApiVersionsResponse,
        error_code=ERRORS,
        supported_features=st.lists(
            st.builds(
                SupportedFeatureKey,
                name=st.just("kraft.version"),
                min_version=st.integers(0, 2),
                max_version=st.integers(0, 2),
            ),
            max_size=1,
        ),
    ),
    AddRaftVoterRequest: st.builds(AddRaftVoterResponse, error_code=ERRORS),
    RemoveRaftVoterRequest: st.builds(RemoveRaftVoterResponse, error_code=ERRORS),
    UpdateRaftVoterRequest: st.builds(
        UpdateRaftVoterResponse,
        error_code=ERRORS,
        current_leader=st.builds(
            CurrentLeader,
            leader_id=IDS,
            leader_epoch=EPOCHS,
            host=st.sampled_from(["", "h"]),
            port=st.just(1),
        ),
    ),
}


def follower(voters: tuple[int, ...] = (1, 2, 3), **others: Any) -> Replica:
    election = ElectionState(leader_epoch=1, leader_id=2, kraft_version=1)
    settings = raft_settings(1, (), bootstrap_servers=(address(2), address(9)), **others)
    return Replica(settings, log=dynamic_log(*voters), election=election)


STARTS: dict[str, Callable[[], Replica]] = {
    "unattached": lambda: Replica(raft_settings(1)),
    "candidate": lambda: Replica(
        raft_settings(1), election=ElectionState(leader_epoch=1, leader_id=None, voted_id=1, kraft_version=0)
    ),
    "resigned": lambda: Replica(
        raft_settings(1), election=ElectionState(leader_epoch=1, leader_id=1, kraft_version=0)
    ),
    "follower": lambda: follower(),
    "joining": lambda: follower((2, 3), auto_join_enable=True),
    "leader": lambda: elected(),
    "leader of dynamic voters": lambda: elected(voters=(), log=dynamic_log(1, 2, 3)),
    "only voter": lambda: Replica(raft_settings(1, ()), log=dynamic_log(1)),
    "broker": lambda: Replica(raft_settings(9, can_become_voter=False)),
}


@pytest.mark.parametrize("start", STARTS)
@settings(max_examples=40)
@given(data=st.data())
def test_anything(start: str, data: st.DataObject) -> None:
    replica = STARTS[start]()
    asked = 0
    for _ in range(12):
        match data.draw(st.sampled_from(["ask", "ask", "answer", "answer", "nothing", "time"])):
            case "ask":
                asked += 1
                replica.do(replica.raft.receive(replica.now_ms, data.draw(REQUESTS), asked))
            case "answer" if replica.sends:
                sent = data.draw(st.sampled_from(replica.sends))
                replica.answer(sent, data.draw(ANSWERS[type(sent.message)]))
            case "nothing" if replica.sends:
                replica.answer(data.draw(st.sampled_from(replica.sends)), None)
            case _:
                replica.pass_time(data.draw(st.sampled_from([1, 20, 500, 3_000])))
    if not replica.of(Fatal):
        replica.pass_time(3_000)  # no response is delayed for longer
        assert len(replica.replies) == asked
    offsets = [each.high_watermark for each in replica.of(Committed)]
    assert offsets == sorted(set(offsets))
    states = [each.state for each in replica.of(Persist)]
    assert [each.leader_epoch for each in states] == sorted(each.leader_epoch for each in states)
    for before, after in itertools.pairwise(states):
        if before.leader_epoch == after.leader_epoch:
            assert before.voted_id in (None, after.voted_id) or after.leader_id == 1
            assert before.leader_id in (None, after.leader_id)
    reported = [each.leader for each in replica.of(LeaderChanged)]
    assert [each.epoch for each in reported] == sorted(each.epoch for each in reported)
    assert all(before != after for before, after in itertools.pairwise(reported))
