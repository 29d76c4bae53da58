"""Bytes from strangers: unknown tags are skipped, everything else is read or is a MalformedMessage, cheaply."""

import contextlib
import random
import tracemalloc

import pytest
from golden_messages import sample
from hypothesis import given, settings
from hypothesis import strategies as st
from kio_entities import EXAMPLES
from wire_walk import walk

from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.codec import decode_request, decode_response, encode_request, encode_response
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.framing import decode_request_header, decode_response_header
from ottla.protocol.messages import request_class, response_class
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.plan import plan_of
from ottla.protocol.reader_helpers import LENIENT, MAX_ELEMENTS, replaced_as_by_java
from ottla.protocol.varint import encode_uvarint
from tests.harness.not_utf8 import NOT_UTF8

few = settings(max_examples=EXAMPLES, deadline=None, database=None)
HUGE = b"\xff\xff\xff\xff\x0f"  # as a varint, 2**32 - 1
EVERY_API = pytest.mark.parametrize("key", list(ApiKey), ids=lambda key: key.name)


def flexible_versions(cls):
    first = cls.__flexible_from__
    return range(0) if first is None else range(first, cls.__versions__.last + 1)


# KIP-482
@EVERY_API
@given(rng=st.randoms(use_true_random=True))
@few
def test_unknown_tagged_fields_are_skipped_in_every_struct(key, rng):
    foreign = ((77, b""), (300, b"x" * 200), (2**31, b"y"))
    for cls, kind, decode in (
        (request_class(key), "request", decode_request),
        (response_class(key), "response", decode_response),
    ):
        for version in flexible_versions(cls):
            ours = sample(key, version, kind, rng)
            assert decode(key, version, walk(plan_of(cls, version), ours, foreign=foreign)) == ours


@EVERY_API
@given(rng=st.randoms(use_true_random=True))
@few
def test_mutated_messages_are_read_or_malformed(key, rng):
    sides = (("request", encode_request, decode_request), ("response", encode_response, decode_response))
    for kind, encode, decode in sides:
        for version in KAFKA_VERSIONS[key]:
            valid = encode(key, version, sample(key, version, kind, rng))
            for bad in mutations(valid, rng):
                read_or_malformed(decode, key, version, bad)


def mutations(valid, rng):
    yield rng.randbytes(rng.randint(0, 40))
    yield valid[: rng.randint(0, len(valid))]
    for _ in range(4):
        at = rng.randint(0, max(0, len(valid) - 1))
        yield (
            valid[:at]
            + rng.choice([b"\0", b"\xff", b"\x7f\xff\xff\xff", HUGE, rng.randbytes(3)])
            + valid[at + 1 :]
        )


def read_or_malformed(decode, key, version, data):
    try:
        decode(key, version, data)
    except MalformedMessage as error:
        return error
    return None


@EVERY_API
def test_every_truncation_is_malformed(key):
    """A prefix of a message is not a message: no field is optional at the end."""
    version = KAFKA_VERSIONS[key].stop - 1
    valid = encode_request(key, version, sample(key, version, "request", random.Random(1)))[:500]
    whole = read_or_malformed(decode_request, key, version, valid) is None
    for length in range(len(valid) - whole):
        with pytest.raises(MalformedMessage):
            decode_request(key, version, valid[:length])


@EVERY_API
def test_no_length_is_trusted(key):
    """Huge lengths at every place of an empty message cost less than a megabyte."""
    versions = KAFKA_VERSIONS[key]
    for version in {versions.start, versions.stop - 1}:
        valid = encode_request(key, version, request_class(key)())
        decode_request(key, version, valid)  # compiled outside of the measurement
        tracemalloc.start()
        for at in range(len(valid)):
            # The last two are 400,000: fewer than a message may have elements, more than this one has bytes.
            for huge in (
                HUGE,
                b"\x7f\xff\xff\xff",
                b"\xff\xff\xff\xff\x07",
                b"\x80\xb5\x18",
                b"\0\x06\x1a\x80",
            ):
                read_or_malformed(decode_request, key, version, valid[:at] + huge + valid[at:])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1_000_000


@pytest.mark.parametrize("text", [
    "00",                                      # null where null is not allowed
    "ffffffff0f",                              # six bytes that ask for four thousand million topics
    "02 00 02 00000007 00",                    # a name that is null
    "02 ffff03 61 02 00000007 00",             # a string longer than the rest
    "02 02 61 00 00",                          # an inner array that is null
    "02 02 61 02 00000007",                    # ends before the tagged fields
    "02 02 61 02 00000007 01 00 05 61",        # a tagged field longer than the rest
    "02 02 61 02 00000007 ffffffff0f",         # more tagged fields than bytes
    "02 02 61 02 00000007 01 ffffffff7f 00",   # no tag has that many bits
])  # fmt: skip
def test_malformed_arrays_of_topics(text):
    # AddPartitionsToTxn v3: transactional id, producer id and epoch, then topics with partitions.
    head = bytes.fromhex("02 61 0000000000000001 0002")
    valid = head + bytes.fromhex("02 02 61 02 00000007 00")
    for end in ("00", "01 05 00", "02 05 00 06 01 61"):
        request = decode_request(ApiKey.ADD_PARTITIONS_TO_TXN, 3, valid + bytes.fromhex(end))
        assert request.v3_and_below_topics[0].partitions == [7]
    with pytest.raises(MalformedMessage):
        decode_request(ApiKey.ADD_PARTITIONS_TO_TXN, 3, head + bytes.fromhex(text) + b"\0")


@pytest.mark.parametrize("text", [
    "01 00 02 09 63",           # a known one, longer than the rest
    "01 07 7f",                 # so is one that is not known
    "7f",                       # more than the bytes can hold
])  # fmt: skip
def test_malformed_tagged_fields_where_some_are_known(text):
    plain = encode_request(ApiKey.FETCH, 12, request_class(ApiKey.FETCH)())
    known = plain[:-1] + bytes.fromhex("03 00 02 0263 05 00 06 01 61")
    assert decode_request(ApiKey.FETCH, 12, known).cluster_id == "c"
    with pytest.raises(MalformedMessage):
        decode_request(ApiKey.FETCH, 12, plain[:-1] + bytes.fromhex(text))


@pytest.mark.parametrize(("text", "cluster_id"), [
    ("01 00 02 0263", "c"),
    ("01 00 7f 0263", "c"),             # the size of a known field is ignored
    ("02 00 02 0263 00 02 0264", "d"),  # twice: the last one
    ("02 07 00 00 02 0263", "c"),       # behind a greater one
    ("02 09 00 07 00", None),           # unknown ones that descend
    ("01 00 03 03 c328", "\ufffd("),    # not UTF-8
])  # fmt: skip
def test_tagged_fields_as_kafka_reads_them(text, cluster_id):
    plain = encode_request(ApiKey.FETCH, 12, request_class(ApiKey.FETCH)())
    assert decode_request(ApiKey.FETCH, 12, plain[:-1] + bytes.fromhex(text)).cluster_id == cluster_id


@pytest.mark.parametrize(("text", "decoded"), NOT_UTF8)
def test_what_is_not_utf8_is_replaced_as_by_java(text, decoded):
    data = bytes.fromhex(text)
    plain = encode_request(ApiKey.HEARTBEAT, 3, request_class(ApiKey.HEARTBEAT)())
    assert plain[:2] == b"\0\0"
    asked = decode_request(ApiKey.HEARTBEAT, 3, len(data).to_bytes(2, "big") + data + plain[2:])
    assert asked.group_id == decoded


PARTS = [b"\xed", b"\xa0", b"\x80", b"\xbf", b"\xe2", b"\xf0", b"\x9f", b"\xff", b"a", "ü".encode()]


@given(st.lists(st.sampled_from(PARTS)).map(b"".join))
@settings(max_examples=100, deadline=None, database=None)
def test_one_call_replaces_all_that_is_not_utf8(data):
    """A call for each wrong byte made a step of a hundred strings last 170 ms."""
    replaced, at, were_all = "", 0, []
    while at < len(data):
        try:
            replaced, at = replaced + data[at:].decode(), len(data)
        except UnicodeDecodeError as error:
            were_all.append(replaced_as_by_java(error)[1] == len(data) - at)
            start, end = at + error.start, at + error.end
            if data[start] == 0xED and 0xA0 <= (*data, 0)[start + 1] <= 0xBF:
                end = start + (3 if 0x80 <= (*data, 0, 0)[start + 2] <= 0xBF else 2)
            replaced, at = replaced + data[at:start].decode() + "\ufffd", end
    assert str(data, "utf-8", LENIENT) == replaced
    assert all(were_all)


def test_a_string_that_would_be_too_long_to_be_returned_is_malformed():
    plain = encode_request(ApiKey.HEARTBEAT, 3, request_class(ApiKey.HEARTBEAT)())
    for size, is_malformed in ((10_922, False), (10_923, True)):
        data = size.to_bytes(2, "big") + b"\xff" * size + plain[2:]
        if is_malformed:
            with pytest.raises(MalformedMessage):
                decode_request(ApiKey.HEARTBEAT, 3, data)
        else:
            assert len(decode_request(ApiKey.HEARTBEAT, 3, data).group_id.encode()) <= 0x7FFF


def test_an_unknown_tag_at_the_very_end_has_to_be_there():
    plain = encode_request(ApiKey.HEARTBEAT, 4, request_class(ApiKey.HEARTBEAT)())
    assert decode_request(ApiKey.HEARTBEAT, 4, plain[:-1] + b"\x01\x05\x02ab").group_id == ""
    with pytest.raises(MalformedMessage):
        decode_request(ApiKey.HEARTBEAT, 4, plain[:-1] + b"\x01\x05\x03ab")


def test_elements_of_one_message_are_bounded_together():
    """A million empty strings in nested arrays would fit into a few megabytes of frame."""
    topic = DeleteTopicState(name="")
    many = DeleteTopicsRequest(topics=[topic] * (MAX_ELEMENTS + 1))
    with pytest.raises(MalformedMessage):
        decode_request(ApiKey.DELETE_TOPICS, 6, encode_request(ApiKey.DELETE_TOPICS, 6, many))


def test_tagged_fields_count_as_elements():
    tags = b"".join(encode_uvarint(tag) + b"\0" for tag in range(MAX_ELEMENTS + 1))
    body = encode_request(ApiKey.METADATA, 12, MetadataRequest(topics=None))[:-1]
    with pytest.raises(MalformedMessage):
        decode_request(ApiKey.METADATA, 12, body + encode_uvarint(MAX_ELEMENTS + 1) + tags)


def test_bytes_behind_the_message_are_ignored_as_in_kafka():
    body = encode_request(ApiKey.METADATA, 12, MetadataRequest(topics=None))
    assert decode_request(ApiKey.METADATA, 12, body + b"more").topics is None


@given(data=st.binary(max_size=60), frames=st.integers(0, 100))
@settings(max_examples=100, deadline=None, database=None)
def test_random_headers(data, frames):
    for parse in (decode_request_header, lambda frame: decode_response_header(frames, 3, frame)):
        with contextlib.suppress(MalformedMessage):
            parse(memoryview(data))
