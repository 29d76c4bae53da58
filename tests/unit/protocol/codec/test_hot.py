"""The hot codecs give what the plain ones give, and never copy records."""

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio_entities import EXAMPLES, draw, kio_encode, kio_request, kio_response, to_ours

from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.codec import encode_request, encode_response
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.framing import encode_response_header
from ottla.protocol.hot import fetch, produce
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

many = settings(max_examples=EXAMPLES * 5, deadline=None, database=None)


@pytest.mark.parametrize("version", KAFKA_VERSIONS[ApiKey.PRODUCE])
@given(rng=st.randoms(use_true_random=True))
@many
def test_produce(version, rng):
    request = draw(kio_request(ApiKey.PRODUCE, version), rng)
    assert produce.decode(version, memoryview(kio_encode(request))) == to_ours(request, ProduceRequest)
    response = draw(kio_response(ApiKey.PRODUCE, version), rng)
    assert produce.encode_response(version, to_ours(response, ProduceResponse)) == kio_encode(response)


@pytest.mark.parametrize("version", KAFKA_VERSIONS[ApiKey.FETCH])
@given(rng=st.randoms(use_true_random=True))
@many
def test_fetch(version, rng):
    request = draw(kio_request(ApiKey.FETCH, version), rng)
    assert fetch.decode(version, memoryview(kio_encode(request))) == to_ours(request, FetchRequest)
    response = draw(kio_response(ApiKey.FETCH, version), rng)
    ours, theirs = to_ours(response, FetchResponse), kio_encode(response)
    assert (
        b"".join(fetch.encode_response(version, 5, ours))
        == encode_response_header(ApiKey.FETCH, version, 5) + theirs
    )
    assert fetch.decode_response(version, memoryview(theirs)) == ours


@pytest.mark.parametrize("version", KAFKA_VERSIONS[ApiKey.PRODUCE])
def test_produced_records_are_slices_of_the_frame(version):
    data = PartitionProduceData(records=b"records")
    request = ProduceRequest(topic_data=[TopicProduceData(partition_data=[data])])
    frame = bytearray(encode_request(ApiKey.PRODUCE, version, request))
    (partition,) = produce.decode(version, memoryview(frame)).topic_data[0].partition_data
    assert bytes(partition.records) == b"records"
    partition.records[:3] = b"REC"
    assert b"RECords" in frame


NAMES = st.text("topic-é", max_size=70)
INDEXES = st.integers(0, 2**31 - 1)
OFFSETS = st.integers(-1, 2**63 - 1)


def sizes_around_a_byte(elements):
    """Few, or as many as a length of one byte holds, or a few more."""
    return st.lists(elements, max_size=3) | st.builds(
        lambda element, size: [element] * size, elements, st.sampled_from((125, 126, 127, 128))
    )


@pytest.mark.parametrize("version", KAFKA_VERSIONS[ApiKey.PRODUCE])
@given(
    topics=sizes_around_a_byte(
        st.tuples(
            NAMES | st.just("t" * 249),
            st.uuids(),
            sizes_around_a_byte(
                st.builds(produce.AppendedRow, INDEXES, st.just(0), OFFSETS, OFFSETS, OFFSETS)
            ),
        )
    )
)
@many
def test_the_fast_response_to_a_produce(version, topics):
    by_id = version >= 13
    general = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=name,
                topic_id=topic_id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=row.partition,
                        base_offset=row.base_offset,
                        log_append_time_ms=row.log_append_time_ms,
                        log_start_offset=row.log_start_offset,
                    )
                    for row in rows
                ],
            )
            for name, topic_id, rows in topics
        ]
    )
    fast = [(topic_id if by_id else name, rows) for name, topic_id, rows in topics]
    expected = encode_response_header(ApiKey.PRODUCE, version, 7) + produce.encode_response(version, general)
    assert produce.encode_appended(version, 7, fast) == expected


RECORDS = st.binary(max_size=20) | st.sampled_from(
    (bytes(126), bytes(127), bytes(128), bytes(16383), bytes(16384))
)


def topics_of(version, body):
    """The topics as the general codec reads them."""
    request = produce.decode(version, body)
    return [
        (
            topic.topic_id if version >= 13 else topic.name,
            [
                (row.index, None if row.records is None else bytes(row.records))
                for row in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]


@pytest.mark.parametrize("version", KAFKA_VERSIONS[ApiKey.PRODUCE])
@given(
    topics=sizes_around_a_byte(
        st.builds(
            TopicProduceData,
            name=NAMES | st.just("t" * 249),
            topic_id=st.uuids(),
            partition_data=sizes_around_a_byte(
                st.builds(PartitionProduceData, index=INDEXES, records=RECORDS | st.none())
            ),
        )
    ),
    is_repeated=st.booleans(),
    change=st.none() | st.tuples(st.integers(0, 2**16), st.integers(0, 255)),
    end=st.none() | st.integers(-3, 2),
)
@settings(many, max_examples=EXAMPLES * 10)
def test_the_fast_request_of_a_produce(version, topics, is_repeated, change, end):
    """Whatever its bytes and those of the request before are, the decoder returns nothing, or the topics that
    the general codec reads.
    """
    data = bytearray(encode_request(ApiKey.PRODUCE, version, ProduceRequest(topic_data=topics)))
    before = 7 if version >= 9 else 8  # no transactional id, acks, timeout
    assert before <= len(data)
    decoder = produce.TopicsDecoder(version, before)
    if is_repeated:
        decoder.decode(memoryview(bytes(data)))
    if change is not None and before < len(data):
        data[before + change[0] % (len(data) - before)] = change[1]
    if end is not None:
        data = data[:end] if end < 0 else data + bytes(end)
    found = decoder.decode(memoryview(data))
    if found is not None:
        assert [
            (key, [(index, bytes(records)) for index, records in rows]) for key, rows in found
        ] == topics_of(version, memoryview(data))
    elif change is None and end is None:
        rows = [row for topic in topics for row in topic.partition_data]
        names = [topic.name.encode() for topic in topics]
        assert (
            any(row.records is None for row in rows)
            or any(len(name) >= 127 for name in names)
            or len(rows) + len(names) > produce._MOST_READ_AT_ONCE
        )


@pytest.mark.parametrize("version", KAFKA_VERSIONS[ApiKey.PRODUCE])
@pytest.mark.parametrize(("topics_count", "rows_count"), [(1, 999), (300, 2), (1, 1000), (17000, 1)])
def test_many_topics_and_rows_of_a_fast_produce(version, topics_count, rows_count):
    rows = [PartitionProduceData(index=index, records=b"records") for index in range(rows_count)]
    topics = [
        TopicProduceData(name=f"topic-{number}", topic_id=UUID(int=number + 1), partition_data=rows)
        for number in range(topics_count)
    ]
    body = memoryview(encode_request(ApiKey.PRODUCE, version, ProduceRequest(topic_data=topics)))
    found = produce.read_topics(version, body, 7 if version >= 9 else 8)
    is_read = topics_count * (1 + rows_count) <= produce._MOST_READ_AT_ONCE
    assert found == (topics_of(version, body) if is_read else None)


@pytest.mark.parametrize("version", KAFKA_VERSIONS[ApiKey.PRODUCE])
def test_a_produce_with_too_many_rows_is_not_on_the_fast_path(version, monkeypatch):
    """The general codec refuses it."""
    rows = [PartitionProduceData(index=index, records=b"records") for index in range(5)]
    topics = [TopicProduceData(name="t", topic_id=UUID(int=1), partition_data=rows)] * 2
    body = memoryview(encode_request(ApiKey.PRODUCE, version, ProduceRequest(topic_data=topics)))
    before = 7 if version >= 9 else 8
    for most, is_fast in ((12, True), (11, False), (6, False), (1, False)):
        monkeypatch.setattr(produce, "_MOST_READ_AT_ONCE", most)
        assert (produce.read_topics(version, body, before) is not None) == is_fast


def one_row(topic, index, records):
    """The topics of a request with one row, with the id or the name."""
    data = PartitionProduceData(index=index, records=records)
    return [TopicProduceData(name=f"topic-{topic}", topic_id=UUID(int=topic), partition_data=[data])]


@pytest.mark.parametrize("version", KAFKA_VERSIONS[ApiKey.PRODUCE])
@given(
    requests=st.lists(st.builds(one_row, st.integers(1, 2), INDEXES, RECORDS), min_size=2, max_size=8),
    change=st.none() | st.tuples(st.integers(0, 2**16), st.integers(0, 255)),
    end=st.none() | st.integers(-3, 2),
)
@many
def test_the_fast_request_of_a_produce_behind_others(version, requests, change, end):
    """A connection's requests, of which the last one is damaged: what was kept of the previous ones misleads
    no decoder.
    """
    before = 7 if version >= 9 else 8
    decoder = produce.TopicsDecoder(version, before)
    bodies = [
        bytearray(encode_request(ApiKey.PRODUCE, version, ProduceRequest(topic_data=topics)))
        for topics in requests
    ]
    if change is not None:
        bodies[-1][before + change[0] % (len(bodies[-1]) - before)] = change[1]
    if end is not None:
        bodies[-1] = bodies[-1][:end] if end < 0 else bodies[-1] + bytes(end)
    for body in bodies:
        found, plain = (
            decoder.decode(memoryview(body)),
            produce.read_topics(version, memoryview(body), before),
        )
        assert found == plain


def test_the_name_of_a_topic_that_cannot_exist_is_not_kept():
    produce._row_head.cache_clear()
    body = memoryview(
        encode_request(
            ApiKey.PRODUCE,
            8,
            ProduceRequest(
                topic_data=[
                    TopicProduceData(
                        name="t" * 600, partition_data=[PartitionProduceData(records=b"records")]
                    )
                ]
            ),
        )
    )
    assert produce.TopicsDecoder(8, 8).decode(body) == produce.read_topics(8, body, 8)
    assert not produce._row_head.cache_info().currsize


def test_fetched_records_are_handed_on_as_they_are():
    log = memoryview(bytearray(b"batches of a log"))
    rows = [PartitionData(partition_index=i, records=log[i:]) for i in range(3)]
    rows += [PartitionData(records=None), PartitionData(records=b"")]
    response = FetchResponse(responses=[FetchableTopicResponse(partitions=rows)])
    buffers = fetch.encode_response(17, 1, response)
    shared = [buffer for buffer in buffers if any(buffer is row.records for row in rows)]
    assert len(shared) == 3
    assert b"".join(buffers)[5:] == encode_response(ApiKey.FETCH, 17, response)


def test_malformed():
    for decode in (produce.decode, fetch.decode, fetch.decode_response):
        with pytest.raises(MalformedMessage):
            decode(12, memoryview(b"\x7f"))
