"""Headers against kio's, and the header of CVE-2026-111115."""

import io
import struct

import pytest
from kio.schema.request_header.v1.header import RequestHeader as RequestHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as RequestHeaderV2
from kio.schema.response_header.v0.header import ResponseHeader as ResponseHeaderV0
from kio.schema.response_header.v1.header import ResponseHeader as ResponseHeaderV1
from kio.serial import entity_writer
from kio_entities import kio_request, kio_response, kio_versions

from ottla.protocol.api_keys import (
    KAFKA_VERSIONS,
    ApiKey,
    ApiListener,
    listeners,
    request_header_version,
    response_header_version,
)
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.framing import (
    MAX_HEADER_TAGS,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    frame_head,
    framed,
)
from ottla.protocol.varint import encode_uvarint


def by_kio(entity):
    with io.BytesIO() as out:
        entity_writer(type(entity))(out, entity)
        return out.getvalue()


@pytest.mark.parametrize("client_id", ["", "client", "ö" * 1000, None])
def test_request_headers(client_id):
    fields = {"request_api_key": 3, "correlation_id": -7, "client_id": client_id}
    for version, header in ((8, RequestHeaderV1), (9, RequestHeaderV2)):
        theirs = by_kio(header(request_api_version=version, **fields))
        assert encode_request_header(3, version, -7, client_id) == theirs
        assert decode_request_header(memoryview(theirs + b"body")) == (
            (3, version, -7, client_id),
            len(theirs),
        )


@pytest.mark.parametrize(("version", "header"), [(8, ResponseHeaderV0), (9, ResponseHeaderV1)])
def test_response_headers(version, header):
    theirs = by_kio(header(correlation_id=9))
    assert encode_response_header(3, version, 9) == theirs
    assert decode_response_header(3, version, memoryview(theirs)) == (9, len(theirs))
    assert frame_head(3, version, 9, 2) + b"ab" == framed(theirs, b"ab")


def test_header_versions_are_kios_in_every_api_and_version():
    for key, versions in KAFKA_VERSIONS.items():
        for version in set(versions) & set(kio_versions(key)):
            assert (
                request_header_version(key, version)
                == kio_request(key, version).__header_schema__.__version__
            )
            assert (
                response_header_version(key, version)
                == kio_response(key, version).__header_schema__.__version__
            )


# KIP-511
def test_the_answer_to_api_versions_is_readable_by_all():
    assert encode_response_header(ApiKey.API_VERSIONS, 4, 1) == b"\0\0\0\x01"


def test_unknown_apis_and_versions_have_a_header_all_the_same():
    head = struct.pack(">hhih", 999, 5, 11, -1)
    assert decode_request_header(memoryview(head))[0] == (999, 5, 11, None)
    future = struct.pack(">hhih", 18, 99, 11, 1) + b"c\0rest"
    assert decode_request_header(memoryview(future)) == ((18, 99, 11, "c"), 12)


@pytest.mark.parametrize("text", [
    "", "0003", "0003000900000001",          # shorter than any header
    "0003000900000001 0005 6161",            # a client id longer than the frame
    "0003000900000001 ffff",                 # v2 without tagged fields
    "0003000900000001 ffff 01 00 7f",        # a tagged field longer than the frame
    "0003000900000001 ffff ffffffffff",      # no number
])  # fmt: skip
def test_malformed_headers(text):
    with pytest.raises(MalformedMessage):
        decode_request_header(memoryview(bytes.fromhex(text)))


def test_tagged_fields_of_a_header_are_skipped_and_few():
    head = struct.pack(">hhih", 3, 9, 1, -1)
    tags = [encode_uvarint(tag) + b"\x01x" for tag in range(MAX_HEADER_TAGS + 1)]
    known = head + encode_uvarint(MAX_HEADER_TAGS) + b"".join(tags[:-1])
    assert decode_request_header(memoryview(known))[1] == len(known)
    with pytest.raises(MalformedMessage):
        decode_request_header(memoryview(head + encode_uvarint(MAX_HEADER_TAGS + 1) + b"".join(tags)))


def test_listeners():
    assert sum(bool(listeners(key) & ApiListener.BROKER) for key in ApiKey) == 79
    assert sum(bool(listeners(key) & ApiListener.CONTROLLER) for key in ApiKey) == 42
    assert listeners(ApiKey.VOTE) == ApiListener.CONTROLLER


def test_unusual_headers_are_read_as_by_kafka():
    """A client id in Latin-1, a tag twice, and tags that descend."""
    frame = memoryview(bytes.fromhex("0003000900000001 0003 4dfc6c 03 02 00 02 00 01 00"))
    header, position = decode_request_header(frame)
    assert (header.client_id, position) == ("M\ufffdl", len(frame))
