"""The hot codecs give what the plain ones give, and never copy records."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio_entities import EXAMPLES, draw, kio_encode, kio_request, kio_response, to_ours

from protocol.api_keys import KAFKA_VERSIONS, ApiKey
from protocol.codec import encode_request, encode_response
from protocol.errors import MalformedMessage
from protocol.framing import response_header
from protocol.hot import fetch, produce
from protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from protocol.messages.produce import (
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
        == response_header(ApiKey.FETCH, version, 5) + theirs
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


@pytest.mark.parametrize("version", KAFKA_VERSIONS[ApiKey.PRODUCE])
@given(
    name=st.text("topic-é", min_size=1, max_size=126),
    topic_id=st.uuids(),
    index=st.integers(0, 2**31 - 1),
    offsets=st.tuples(*[st.integers(-1, 2**63 - 1)] * 3),
)
@many
def test_the_usual_response_to_a_produce(version, name, topic_id, index, offsets):
    base_offset, log_append_time_ms, log_start_offset = offsets
    row = PartitionProduceResponse(
        index=index,
        base_offset=base_offset,
        log_append_time_ms=log_append_time_ms,
        log_start_offset=log_start_offset,
    )
    topic = TopicProduceResponse(topic_id=topic_id, name=name, partition_responses=[row])
    encoded = produce.encode_one_row(version, 7, topic, row)
    if encoded is None:
        assert len(name.encode()) > 126
    else:
        body = produce.encode_response(version, ProduceResponse(responses=[topic]))
        assert encoded == response_header(ApiKey.PRODUCE, version, 7) + body


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
