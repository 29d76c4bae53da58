"""The fast path of the Fetch codec: the same bytes and the same values as by the general one, or nothing."""

from dataclasses import fields, replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio_entities import EXAMPLES

from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.codec import encode_request
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.hot import fetch
from ottla.protocol.hot.fetch import NO_DIVERGENCE, NO_LEADER, NO_SNAPSHOT, NOT_REPORTED, FastRow, FetchRow
from ottla.protocol.local_log import LocalLogState
from ottla.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ReplicaState,
    SnapshotId,
)
from ottla.protocol.steps import at_once
from ottla.protocol.types import ZERO_UUID

many = settings(max_examples=EXAMPLES * 5, deadline=None, database=None)

HEAD_BYTES = 17
INDEXES = st.integers(0, 2**31 - 1)
EPOCHS = st.integers(-1, 2**31 - 1)
OFFSETS = st.integers(-1, 2**63 - 1)
SIZES = st.integers(0, 2**31 - 1)
LOCAL_LOGS = st.builds(LocalLogState, local_log_start_offset=OFFSETS)
RECORDS = st.binary(max_size=20) | st.sampled_from(
    (bytes(126), bytes(127), bytes(128), bytes(16382), bytes(16383))
)
VERSIONS = KAFKA_VERSIONS[ApiKey.FETCH]
NEW_VERSIONS = [version for version in VERSIONS if version >= fetch.FAST_REQUESTS_SINCE]
RESPONSE_VERSIONS = [version for version in VERSIONS if version >= fetch.FAST_RESPONSES_SINCE]


def mostly(fast, other):
    return st.integers(0, 20).flatmap(lambda number: st.just(fast) if number else other)


def sizes_around_a_byte(elements):
    """Few, or as many as a number of one byte holds, or a few more."""
    return st.lists(elements, max_size=3) | st.builds(
        lambda element, size: [element] * size, elements, st.sampled_from((125, 126, 127, 128))
    )


def topics_of(topic, rows):
    """A topic of many rows, or many topics."""
    few = st.lists(st.builds(topic, st.uuids(), sizes_around_a_byte(rows)), max_size=3)
    return few | sizes_around_a_byte(st.builds(topic, st.uuids(), st.lists(rows, max_size=1)))


ROWS = st.builds(
    FetchRow,
    INDEXES,
    EPOCHS,
    OFFSETS,
    EPOCHS,
    OFFSETS,
    SIZES,
    OFFSETS | st.just(NOT_REPORTED),
    mostly(None, LOCAL_LOGS),
)
#: Distinct partitions, as a follower names them.
PARTITIONS = st.lists(st.tuples(st.uuids(), sizes_around_a_byte(ROWS)), max_size=3).map(
    lambda topics: {
        (topic_id.bytes, index): row._replace(partition=index)
        for topic_id, rows in topics
        for index, row in enumerate(rows)
    }
)


def by_topic(rows):
    topics = {}
    for (topic_id, _), row in rows.items():
        topic = topics.setdefault(topic_id, FetchTopic(topic_id=UUID(bytes=topic_id)))
        topic.partitions.append(row.to_message())
    return list(topics.values())


@pytest.mark.parametrize("version", VERSIONS)
@given(
    rows=PARTITIONS,
    fields=st.fixed_dictionaries(
        {
            "replica_id": st.integers(0, 2**31 - 1),
            "replica_epoch": OFFSETS,
            "max_wait_ms": SIZES,
            "min_bytes": SIZES,
            "max_bytes": SIZES,
            "session_id": SIZES,
            "session_epoch": EPOCHS,
        }
    ),
)
@many
def test_the_fast_request_of_a_follower(version, rows, fields):
    fast = fetch.encode_fast_request(version, rows, **fields)
    if version not in NEW_VERSIONS or any(row.local_log is not None for row in rows.values()):
        assert fast is None
        return
    state = ReplicaState(replica_id=fields.pop("replica_id"), replica_epoch=fields.pop("replica_epoch"))
    general = FetchRequest(replica_state=state, topics=by_topic(rows), **fields)
    assert fast == encode_request(ApiKey.FETCH, version, general)


REQUESTS = st.builds(
    FetchRequest,
    session_epoch=EPOCHS,
    replica_state=st.builds(ReplicaState, replica_id=st.integers(-3, 3), replica_epoch=st.integers(-1, 3)),
    cluster_id=mostly(None, st.just("cluster")),
    rack_id=st.sampled_from(("", "", "a", "r" * 300)),
    topics=topics_of(
        lambda topic_id, rows: FetchTopic(topic_id=topic_id, partitions=rows),
        st.builds(
            lambda row, directory: replace(row.to_message(), replica_directory_id=directory),
            ROWS,
            mostly(ZERO_UUID, st.uuids()),
        ),
    ),
    forgotten_topics_data=mostly([], st.just([ForgottenTopic(partitions=[1])])),
)


def is_fast_request(version, request):
    rows = [row for topic in request.topics for row in topic.partitions]
    return not (
        request.forgotten_topics_data
        or len(request.rack_id) > 200
        or any(row.local_log is not None or (version >= 17 and row.replica_directory_id.int) for row in rows)
    )


@pytest.mark.parametrize("version", NEW_VERSIONS)
@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=4),
    change=st.none() | st.tuples(st.integers(0, 2**16), st.integers(0, 255)),
    end=st.none() | st.integers(-3, 2),
)
@many
def test_the_fast_requests_of_a_session(version, requests, change, end):
    """The decoder returns nothing, or the result of the general codec, whatever the bytes behind the session
    id are."""
    decoder = fetch.IncrementalRequests(version)
    assert decoder.size_bytes == HEAD_BYTES
    for number, message in enumerate(requests):
        request = replace(message, max_wait_ms=500, min_bytes=1, max_bytes=2**20, session_id=77)
        body = bytearray(encode_request(ApiKey.FETCH, version, request))
        is_whole = number < len(requests) - 1 or (change is None and end is None)
        if not is_whole and change is not None:
            body[HEAD_BYTES + change[0] % (len(body) - HEAD_BYTES)] = change[1]
        if not is_whole and end is not None:
            body = body[:end] if end < 0 else body + bytes(end)
        found = decoder.decode(memoryview(body))
        if found is None:
            assert not is_whole or not is_fast_request(version, request)
            continue
        general = fetch.decode(version, memoryview(body))
        assert found.session_epoch == general.session_epoch
        assert [(key, row.to_message()) for key, row in found.rows] == [
            ((topic.topic_id, row.partition), row) for topic in general.topics for row in topic.partitions
        ]
        assert general.forgotten_topics_data == []
        kept = {"topics": [], "session_epoch": 0}
        assert replace(found.request, **kept) == replace(general, **kept)


@pytest.mark.parametrize("version", NEW_VERSIONS)
@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=4),
    are_consumers=mostly(True, st.just(False)),
    change=st.none() | st.tuples(st.integers(0, 2**16), st.integers(0, 255)),
    end=st.none() | st.integers(-3, 2),
)
@many
def test_the_fast_requests_of_a_consumer_without_a_session(version, requests, are_consumers, change, end):
    """The fields behind the session epoch vary, as in the test above."""
    decoder = fetch.FullRequests(version)
    begin = decoder.size_bytes
    for number, message in enumerate(requests):
        request = replace(
            message, max_wait_ms=500, min_bytes=1, max_bytes=2**20, session_id=0, session_epoch=-1
        )
        if are_consumers:
            request.replica_state = ReplicaState()
            for row in (row for topic in request.topics for row in topic.partitions):
                row.high_watermark, row.local_log, row.replica_directory_id = NOT_REPORTED, None, ZERO_UUID
        body = bytearray(encode_request(ApiKey.FETCH, version, request))
        assert fetch.is_full(version, memoryview(body))
        is_whole = number < len(requests) - 1 or (change is None and end is None)
        if not is_whole and change is not None:
            body[begin + change[0] % (len(body) - begin)] = change[1]
        if not is_whole and end is not None:
            body = body[:end] if end < 0 else body + bytes(end)
        found = decoder.decode(memoryview(body))
        if found is None:
            assert not (is_whole and are_consumers and is_fast_request(version, request))
            continue
        general = fetch.decode(version, memoryview(body))
        assert [
            (topic_id, [fetch.decode_row(row).to_message() for row in rows])
            for topic_id, rows in found.topics
        ] == [(topic.topic_id, topic.partitions) for topic in general.topics]
        assert general.forgotten_topics_data == []
        assert general.replica_state.replica_id == -1
        assert replace(found.request, topics=[], session_epoch=-1) == replace(general, topics=[])


def test_other_tagged_fields_of_the_same_size():
    row = FetchRow(1, 2, 3, 4, 5, 6, 7)
    body = encode_request(ApiKey.FETCH, 18, FetchRequest(topics=by_topic({(ZERO_UUID.bytes, 1): row})))
    assert fetch.IncrementalRequests(18).decode(memoryview(body)).rows == [((ZERO_UUID, 1), row)]
    another = body.replace(b"\1\1\x08", b"\1\2\x08")
    assert fetch.decode(18, memoryview(another)).topics[0].partitions[0].high_watermark == NOT_REPORTED
    assert fetch.IncrementalRequests(18).decode(memoryview(another)) is None
    assert fetch.decode(17, memoryview(body)).topics[0].partitions[0].high_watermark == NOT_REPORTED
    assert fetch.IncrementalRequests(17).decode(memoryview(body)) is None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("epoch", [-1, 0, 1, 2**31 - 1])
def test_what_may_be_followed_by_fast_requests(version, epoch):
    body = memoryview(encode_request(ApiKey.FETCH, version, FetchRequest(session_epoch=epoch)))
    assert fetch.is_incremental(version, body) == (version in NEW_VERSIONS and epoch > 0)
    assert not fetch.is_incremental(version, body[:20])
    assert fetch.is_full(version, body) == (version in NEW_VERSIONS and epoch == -1)
    assert not fetch.is_full(version, body[:20])
    in_session = memoryview(
        encode_request(ApiKey.FETCH, version, FetchRequest(session_id=7, session_epoch=epoch))
    )
    assert version < 7 or not fetch.is_full(version, in_session)


ANSWERS = st.builds(
    PartitionData,
    partition_index=INDEXES,
    error_code=mostly(0, st.integers(-1, 200)),
    high_watermark=OFFSETS,
    last_stable_offset=OFFSETS,
    log_start_offset=OFFSETS,
    diverging_epoch=mostly(NO_DIVERGENCE, st.builds(EpochEndOffset, epoch=EPOCHS)),
    current_leader=mostly(NO_LEADER, st.builds(LeaderIdAndEpoch, leader_epoch=EPOCHS)),
    snapshot_id=mostly(NO_SNAPSHOT, st.builds(SnapshotId, epoch=EPOCHS)),
    aborted_transactions=st.sampled_from((None, [])) | mostly([], st.just([AbortedTransaction()])),
    preferred_read_replica=mostly(-1, st.integers(-1, 9)),
    records=mostly(b"", RECORDS) | RECORDS | mostly(b"", st.none()),
)
ANSWERED = topics_of(lambda topic_id, rows: (topic_id, rows), ANSWERS)


def response_of(session_id, topics, **fields):
    return FetchResponse(
        session_id=session_id,
        responses=[FetchableTopicResponse(topic_id=topic_id, partitions=rows) for topic_id, rows in topics],
        **fields,
    )


def is_fast_answer(row):
    return (
        not row.error_code
        and row.diverging_epoch is NO_DIVERGENCE
        and row.current_leader is NO_LEADER
        and row.snapshot_id is NO_SNAPSHOT
        and not row.aborted_transactions
        and row.records is not None
    )


def as_read(row):
    """The same row, as it is read from a log."""
    if not is_fast_answer(row) or row.preferred_read_replica != -1:
        return row
    fields = (
        row.partition_index, row.high_watermark, row.last_stable_offset, row.log_start_offset,
        row.aborted_transactions, row.records,
    )  # fmt: skip
    return tuple.__new__(FastRow, fields)


def all_as_read(topics):
    return [(topic_id, list(map(as_read, rows))) for topic_id, rows in topics]


@given(row=ANSWERS)
@many
def test_a_fast_row_has_the_fields_of_a_general_one(row):
    read = as_read(row)
    assert all(getattr(read, field.name) == getattr(row, field.name) for field in fields(PartitionData))


@pytest.mark.parametrize("version", RESPONSE_VERSIONS)
@given(session_id=SIZES, topics=ANSWERED)
@many
def test_the_fast_response(version, session_id, topics):
    read = all_as_read(topics)
    fast = fetch.encode_fast_response(version, 7, session_id, read)
    rows = [row for _, rows in read for row in rows]
    assert (fast is not None) == (len(topics) < 127 and all(isinstance(row, FastRow) for row in rows))
    general = fetch.encode_response(version, 7, response_of(session_id, topics))
    in_steps = at_once(fetch.encode_response_in_steps(version, 7, response_of(session_id, topics)))
    assert b"".join(in_steps) == b"".join(general)
    assert b"".join(fetch.encode_response(version, 7, response_of(session_id, read))) == b"".join(general)
    if fast is not None:
        assert b"".join(fast) == b"".join(general)
        records = [row.records for row in rows if row.records]
        assert sum(any(buffer is each for buffer in fast) for each in records) == len(records)


def a_row(**fields):
    shared = {
        "diverging_epoch": NO_DIVERGENCE,
        "current_leader": NO_LEADER,
        "snapshot_id": NO_SNAPSHOT,
        "records": b"records",
    }
    return PartitionData(**(shared | fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"error_code": 6},
        {"diverging_epoch": EpochEndOffset(epoch=1, end_offset=2)},
        {"current_leader": LeaderIdAndEpoch(leader_id=1)},
        {"snapshot_id": SnapshotId(epoch=1)},
        {"aborted_transactions": [AbortedTransaction()]},
        {"records": None},
    ],
)
def test_unusual_rows(fields):
    topics = [(ZERO_UUID, [a_row(), a_row(**fields)])]
    assert fetch.encode_fast_response(18, 7, 1, all_as_read(topics)) is None
    general = b"".join(fetch.encode_response(18, 7, response_of(1, topics)))[5:]
    assert fetch.decode_fast_response(18, memoryview(general)) is None


@pytest.mark.parametrize("fields", [{}, {"aborted_transactions": None}, {"records": b""}])
def test_fast_rows(fields):
    topics = [(ZERO_UUID, [a_row(), a_row(**fields)])]
    fast = b"".join(fetch.encode_fast_response(18, 7, 1, all_as_read(topics)))
    assert fast == b"".join(fetch.encode_response(18, 7, response_of(1, topics)))
    assert len(fetch.decode_fast_response(18, memoryview(fast)[5:])[1]) == 2


def test_a_number_of_aborted_transactions():
    """The row is refused even where one without them could be read."""
    body = bytearray(b"".join(fetch.encode_fast_response(18, 7, 1, [(ZERO_UUID, [as_read(a_row())])]))[5:])
    aborted_at = 11 + 17 + 30
    assert body[aborted_at] == 1
    body[aborted_at] = 2
    assert fetch.decode_fast_response(18, memoryview(body)) is None


@pytest.mark.parametrize("fields", [{"error_code": 70}, {"node_endpoints": [NodeEndpoint()]}])
def test_unusual_responses(fields):
    general = b"".join(fetch.encode_response(18, 7, response_of(1, [], **fields)))[5:]
    assert fetch.decode_fast_response(18, memoryview(general)) is None


@pytest.mark.parametrize("size", [2**14 - 2, 2**14 - 1, 2**21 - 2, 2**21 - 1, 2**28 // 100])
def test_large_records(size):
    records = memoryview(bytes(size))
    topics = [(ZERO_UUID, [a_row(records=records)])]
    fast = fetch.encode_fast_response(18, 7, 1, all_as_read(topics))
    assert fast[1] is records
    data = b"".join(fast)
    assert data == b"".join(fetch.encode_response(18, 7, response_of(1, topics)))
    _, ((_, (found, _, _)),) = fetch.decode_fast_response(18, memoryview(data)[5:])
    assert len(found) == size
    assert found.obj is data


@pytest.mark.parametrize("version", [version for version in VERSIONS if version not in RESPONSE_VERSIONS])
def test_a_response_in_an_old_version_is_none(version):
    assert fetch.encode_fast_response(version, 7, 1, []) is None
    assert fetch.decode_fast_response(version, memoryview(bytes(12))) is None


@pytest.mark.parametrize("version", RESPONSE_VERSIONS)
@given(
    session_id=SIZES,
    topics=ANSWERED,
    error_code=mostly(0, st.integers(-1, 200)),
    endpoints=mostly([], st.just([NodeEndpoint()])),
    change=st.none() | st.tuples(st.integers(0, 2**16), st.integers(0, 255)),
    end=st.none() | st.integers(-3, 2),
)
@many
def test_the_fast_response_of_a_leader(version, session_id, topics, error_code, endpoints, change, end):
    """The decoder returns nothing, or the result of the general codec, whatever the bytes are."""
    response = response_of(session_id, topics, error_code=error_code, node_endpoints=endpoints)
    body = bytearray(b"".join(fetch.encode_response(version, 7, response))[5:])
    if change is not None:
        body[change[0] % len(body)] = change[1]
    if end is not None:
        body = body[:end] if end < 0 else body + bytes(end)
    found = fetch.decode_fast_response(version, memoryview(body))
    if found is None:
        if change is None and end is None and not error_code and not (version >= 16 and endpoints):
            rows = [row for _, rows in topics for row in rows]
            assert not all(map(is_fast_answer, rows)) or len(topics) >= 127
        return
    general = fetch.decode_response(version, memoryview(body))
    assert general.error_code == 0
    assert found[0] == general.session_id
    assert [(key, hw, start, bytes(records)) for key, (records, hw, start) in found[1]] == [
        (
            (topic.topic_id.bytes, row.partition_index),
            row.high_watermark,
            row.log_start_offset,
            bytes(row.records),
        )
        for topic in general.responses
        for row in topic.partitions
    ]
    for topic in general.responses:
        for row in topic.partitions:
            assert (row.error_code, row.diverging_epoch.epoch) == (0, -1)


@given(data=st.binary(max_size=100))
@settings(many, max_examples=EXAMPLES * 20)
def test_garbage(data):
    body = memoryview(data)
    if fetch.IncrementalRequests(18).decode(body) is not None:
        fetch.decode(18, body)
    if fetch.FullRequests(18).decode(body) is not None:
        fetch.decode(18, body)
    if fetch.decode_fast_response(18, body) is not None:
        fetch.decode_response(18, body)
    elif len(data) < 12:
        with pytest.raises(MalformedMessage):
            fetch.decode_response(18, body)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("count", [0, 1, 3, 200])
def test_a_response_in_steps_is_the_one_at_once(version, count):
    """Names before version 13, and lengths of one and of two bytes."""
    topics = [
        FetchableTopicResponse(
            topic=f"t{number}",
            topic_id=UUID(int=number + 1),
            partitions=[PartitionData(partition_index=number, high_watermark=5, records=bytes(number))],
        )
        for number in range(count)
    ]
    response = FetchResponse(
        error_code=0,
        session_id=8,
        responses=topics,
        node_endpoints=[NodeEndpoint(node_id=3, host="h", port=1)] if version >= 16 else [],
    )
    general = b"".join(fetch.encode_response(version, 9, response))
    assert b"".join(at_once(fetch.encode_response_in_steps(version, 9, response))) == general
