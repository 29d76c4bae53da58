"""Every API and version that kio has: what kio writes we read, and we write the same bytes.

In the versions that kio lacks, the bytes are those of Kafka (`golden_messages.txt`).

About KIP-482.
"""

import dataclasses
from pathlib import Path

import pytest
from edge_values import EDGES, entities_at_the_edges, leaves
from golden_messages import cases, filled, message_class
from hypothesis import given, settings
from hypothesis import strategies as st
from kio_entities import (
    EXAMPLES,
    draw,
    kio_class,
    kio_decode,
    kio_encode,
    kio_request,
    kio_response,
    kio_versions,
    to_ours,
)

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.codec import (
    decode_request,
    decode_response,
    decode_struct,
    encode_request,
    encode_response,
    encode_struct,
)
from ottla.protocol.messages import request_class, response_class
from ottla.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from ottla.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from ottla.protocol.messages.control_record_type_schema import ControlRecordTypeSchema
from ottla.protocol.messages.default_principal_data import DefaultPrincipalData
from ottla.protocol.messages.end_txn_marker import EndTxnMarker
from ottla.protocol.messages.k_raft_version_record import KRaftVersionRecord
from ottla.protocol.messages.leader_change_message import LeaderChangeMessage
from ottla.protocol.messages.snapshot_footer_record import SnapshotFooterRecord
from ottla.protocol.messages.snapshot_header_record import SnapshotHeaderRecord
from ottla.protocol.messages.voters_record import VotersRecord

few = settings(max_examples=EXAMPLES, deadline=None, database=None)


def versions(cls):
    return range(cls.__versions__.first, cls.__versions__.last + 1)


def sides(key):
    """(our class, kio's class by version, our writer, our reader) of the request and of the response."""
    return (
        (request_class(key), kio_request, encode_request, decode_request),
        (response_class(key), kio_response, encode_response, decode_response),
    )


def check_api(key, version, entity, cls, encode, decode):
    ours, theirs = to_ours(entity, cls), kio_encode(entity)
    assert decode(key, version, theirs) == ours
    written = encode(key, version, ours)
    assert written == theirs
    assert kio_decode(type(entity), written) == entity


@pytest.mark.parametrize("key", list(ApiKey), ids=lambda key: key.name)
def test_api_at_the_edges(key):
    """Every field of every version, at every edge value of its type."""
    for cls, kio_cls, encode, decode in sides(key):
        for version in kio_versions(key):
            for entity in entities_at_the_edges(kio_cls(key, version)):
                check_api(key, version, entity, cls, encode, decode)


# KIP-893
@pytest.mark.parametrize("key", list(ApiKey), ids=lambda key: key.name)
@given(rng=st.randoms(use_true_random=True))
@few
def test_api(key, rng):
    for cls, kio_cls, encode, decode in sides(key):
        for version in kio_versions(key):
            check_api(key, version, draw(kio_cls(key, version), rng), cls, encode, decode)


def golden():
    text = Path(__file__).with_name("golden_messages.txt").read_text()
    return {
        (name, int(version)): bytes.fromhex(data) for name, version, data in map(str.split, text.splitlines())
    }


# KIP-1242
@pytest.mark.parametrize(
    ("module", "schema", "version"), [pytest.param(*case, id=f"{case[1].name}-{case[2]}") for case in cases()]
)
def test_what_kio_lacks_is_written_as_by_kafka(module, schema, version):
    cls, theirs = message_class(module, schema), golden()[schema.name, version]
    ours, _ = filled(module, schema, version)
    assert encode_struct(cls, version, ours) == theirs
    assert decode_struct(cls, version, theirs) == ours


def test_every_field_takes_every_edge_value():
    """The list of `edge_values` is complete: counted in FetchResponse, which has arrays in arrays, tags and
    nullable fields.
    """
    cls = kio_response(ApiKey.FETCH, 16)
    seen = {}
    for entity in entities_at_the_edges(cls):
        for path, value in values_in(entity):
            seen.setdefault(path, set()).add(value)
    for path, kafka_type in leaves(cls):
        assert set(EDGES[kafka_type]) <= seen[path], path


def values_in(entity, above=()):
    for field in dataclasses.fields(entity):
        path, value = (*above, field.name), getattr(entity, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(each):
                yield from values_in(each, path)
            else:
                yield path, each


@pytest.mark.parametrize("cls", [
    ConsumerProtocolAssignment, ConsumerProtocolSubscription, ControlRecordTypeSchema, DefaultPrincipalData,
    EndTxnMarker, KRaftVersionRecord, LeaderChangeMessage, SnapshotFooterRecord, SnapshotHeaderRecord, VotersRecord,
])  # fmt: skip
@given(rng=st.randoms(use_true_random=True))
@few
def test_data_schema(cls, rng):
    module = cls.__module__.rpartition(".")[2]
    for version in versions(cls):
        kio_cls = kio_class(module, version, "data")
        for entity in (*entities_at_the_edges(kio_cls), draw(kio_cls, rng)):
            ours, theirs = to_ours(entity, cls), kio_encode(entity)
            assert decode_struct(cls, version, theirs) == ours
            assert encode_struct(cls, version, ours) == theirs
