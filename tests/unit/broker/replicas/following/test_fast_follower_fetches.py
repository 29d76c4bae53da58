"""A follower's Fetch by layouts and by the general codec: the same requests, and the same answers."""

from unittest.mock import patch
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replica_fetcher_support import at, end, replicating, write

from ottla.broker.replicas.following.leader_endpoint import FetcherSettings, LeaderEndpoint, _decode_fetch
from ottla.protocol.errors import ErrorCode, MalformedMessage
from ottla.protocol.hot import fetch as codec
from ottla.protocol.hot.fetch import NO_DIVERGENCE, NO_LEADER, NO_SNAPSHOT, FetchRow
from ottla.protocol.local_log import LocalLogState
from ottla.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from ottla.replication.follower import Divergence, Records
from ottla.replication.follower_session import SessionRequest
from tests.harness.waiting import until

VERSIONS = range(13, 19)
TOPICS = [UUID(int=number) for number in (1, 2, 300)]
KEYS = st.tuples(st.sampled_from([topic.bytes for topic in TOPICS]), st.integers(0, 5))
NUMBERS = st.integers(-1, 2**31 - 1)


def nothing(*_, **__):
    return None


@given(
    version=st.sampled_from(VERSIONS),
    rows=st.dictionaries(
        KEYS,
        st.builds(
            FetchRow,
            *[NUMBERS] * 7,
            st.none() | st.none() | st.none() | st.builds(LocalLogState, local_log_bytes=NUMBERS),
        ),
    ),
    forgotten=st.just([]) | st.lists(KEYS, max_size=3),
    session=st.tuples(NUMBERS, NUMBERS),
    wait_max_ms=st.integers(0, 500),
)
@settings(deadline=None)
def test_requests(version, rows, forgotten, session, wait_max_ms):
    endpoint = LeaderEndpoint(
        None,
        leader_id=1,
        address=lambda: None,
        broker_epoch=lambda: 7,
        settings=FetcherSettings(node_id=2),
    )
    rows = {key: row._replace(partition=key[1]) for key, row in rows.items()}
    request = SessionRequest(*session, rows, forgotten)
    fast = endpoint._encode_fetch(request, wait_max_ms, version)
    with patch.object(codec, "encode_fast_request", nothing):
        assert endpoint._encode_fetch(request, wait_max_ms, version) == fast


ROWS = st.builds(
    PartitionData,
    partition_index=st.integers(0, 5),
    error_code=st.sampled_from((0,) * 9 + (-1, 1, 6, 74, 109, 9999)),
    high_watermark=NUMBERS,
    log_start_offset=NUMBERS,
    diverging_epoch=st.sampled_from((NO_DIVERGENCE,) * 9 + (EpochEndOffset(epoch=3, end_offset=7),)),
    current_leader=st.sampled_from((NO_LEADER,) * 9 + (LeaderIdAndEpoch(leader_id=3, leader_epoch=7),)),
    snapshot_id=st.just(NO_SNAPSHOT),
    aborted_transactions=st.sampled_from((None, None, None, [], [AbortedTransaction()])),
    records=st.binary(max_size=300) | st.none(),
)


@given(
    version=st.sampled_from(VERSIONS),
    response=st.builds(
        FetchResponse,
        session_id=NUMBERS,
        error_code=st.sampled_from((0,) * 9 + (70, 71, 9999)),
        responses=st.lists(
            st.builds(
                FetchableTopicResponse,
                topic_id=st.sampled_from(TOPICS),
                partitions=st.lists(ROWS, max_size=3),
            ),
            max_size=3,
        ),
        node_endpoints=st.sampled_from(([],) * 9 + ([NodeEndpoint()],)),
    ),
    change=st.none() | st.tuples(st.integers(0, 2**16), st.integers(0, 255)),
)
@settings(deadline=None)
def test_responses(version, response, change):
    body = bytearray(b"".join(codec.encode_response(version, 7, response))[5:])
    if change is not None:
        body[change[0] % len(body)] = change[1]

    def answer():
        try:
            return _decode_fetch(version, memoryview(body))
        except MalformedMessage:
            return "malformed"

    fast = answer()
    with patch.object(codec, "decode_fast_response", nothing):
        assert answer() == fast


def test_what_becomes_of_a_row():
    rows = [
        PartitionData(partition_index=0, high_watermark=7, log_start_offset=3, records=b"records"),
        PartitionData(partition_index=1, diverging_epoch=EpochEndOffset(epoch=3, end_offset=7)),
        PartitionData(partition_index=2, error_code=ErrorCode.fenced_leader_epoch),
        PartitionData(partition_index=3, error_code=9999),
    ]
    response = FetchResponse(session_id=5, responses=[FetchableTopicResponse(partitions=rows)])
    body = b"".join(codec.encode_response(18, 7, response))[5:]
    assert _decode_fetch(18, memoryview(body)) == (
        ErrorCode.none,
        5,
        [
            ((bytes(16), 0), Records(records=b"records", high_watermark=7, log_start_offset=3)),
            ((bytes(16), 1), Divergence(epoch=3, end_offset=7)),
            ((bytes(16), 2), ErrorCode.fenced_leader_epoch),
            ((bytes(16), 3), ErrorCode.unknown_server_error),
        ],
    )


def lags(follower) -> list[int | None]:
    """The lags of all partitions that the broker follows."""
    return [each.follower.lag for fetcher in follower.fetchers._fetchers.values() for each in fetcher._states]


@pytest.mark.parametrize("partitions", [1, 6, 130])
def test_the_fast_path_is_taken(simulation, monkeypatch, partitions):
    """Leader and follower take it: within a session, neither reads nor writes a Fetch by the general codec."""

    async def story():
        async with replicating(simulation, partitions) as cluster:
            leader, follower = cluster.brokers.values()
            await until(lambda: lags(follower) == [0] * partitions)  # many logs are created in several turns
            for count in (1, 2):
                for index in range(partitions):
                    write(leader, index, b"value")
                await until(
                    lambda count=count: all(end(follower, index) == count for index in range(partitions))
                )
            for name in ("decode", "decode_response", "encode_response"):
                monkeypatch.setattr(codec, name, None)
            monkeypatch.setattr("ottla.broker.replicas.following.leader_endpoint.encode_request", None)
            for index in range(partitions):
                write(leader, index, b"third", b"fourth")
            await until(
                lambda: all(
                    follower.partition(at(index)).log.high_watermark == 4 for index in range(partitions)
                )
            )
            monkeypatch.undo()

    simulation.run(story())
