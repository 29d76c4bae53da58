"""Kafka's own schemas (`protocol/schemas/kafka_schemas.txt`) against kio's, our tables and the records by hand."""

import dataclasses
import typing
from types import NoneType

import pytest
from kio_entities import RENAMED

from ottla.metadata.records import RECORD_CLASSES
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey, ApiListener, is_flexible, listeners
from ottla.protocol.coordinator import (
    consumer_group_records,
    group_records,
    share_group_records,
    share_state_records,
    streams_group_records,
    transaction_records,
)
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.generate import sources
from ottla.protocol.local_log import LOCAL_LOG_TAG
from ottla.protocol.remote import records as remote_records
from ottla.protocol.schema import Record, Versions
from ottla.protocol.schemas import from_kafka, from_kio, kafka_schemas

FACTS = kafka_schemas.load()
SCHEMAS = FACTS.schemas

KIO = {
    (api, kind): message
    for name, api in from_kio.modules().items()
    for kind in from_kio.kinds_of(api)
    if (message := from_kio.merge(api, kind)).structs[-1].name in SCHEMAS
}


def rows(message, version):
    """Each field of one version, in the order of the wire: its path, type, and what else the bytes depend on."""
    structs = {struct.name: struct for struct in message.structs}

    def of(struct, above):
        for each in structs[struct].fields:
            if version not in each.versions or each.tag == LOCAL_LOG_TAG:
                continue
            name = RENAMED.get((message.structs[-1].name, each.name), each.name)
            tag = each.tag if version in each.tagged else None
            path = (*above, name)
            yield (tag is not None, tag or 0), path, each.kafka_type, each.is_array, version in each.nullable
            if each.struct is not None:
                yield from of(each.struct, path)

    return list(of(message.structs[-1].name, ()))


@pytest.mark.parametrize("message", KIO.values(), ids=lambda message: message.structs[-1].name)
def test_kio_and_kafka_agree_wherever_both_have_a_version(message):
    name, versions = message.structs[-1].name, message.structs[-1].versions
    theirs = from_kafka.merge(SCHEMAS[name])
    assert versions[0] == SCHEMAS[name].versions[0]
    assert theirs.api_key == message.api_key
    assert theirs.flexible_from == message.flexible_from
    for version in versions:
        # A tagged field's place in the class is not its place on the wire.
        assert sorted(rows(message, version)) == sorted(rows(theirs, version))
        plain = [[row for row in rows(each, version) if not row[0][0]] for each in (message, theirs)]
        assert plain[0] == plain[1]


def test_what_kio_lacks_is_made_of_kafkas_schemas():
    ahead = {name for name, text in sources().items() if "from Kafka's schemas: do not edit" in text}
    assert ahead == {
        "api_versions",
        "delete_groups",
        "streams_group_describe",
        "streams_group_heartbeat",
        "streams_group_topology_description_update",
        "txn_offset_commit",
        "unregister_controller",
    }


@pytest.mark.parametrize("key", list(ApiKey), ids=lambda key: key.name)
def test_an_api_is_the_one_of_kafka(key):
    (schema,) = [each for each in SCHEMAS.values() if each.kind == "request" and each.api_key == key]
    assert from_kafka.module_of(schema) == key.name.lower()
    versions = schema.versions[:-1] if schema.is_last_unstable else schema.versions
    assert KAFKA_VERSIONS[key] == versions
    assert {kind.name.lower() for kind in ApiListener if kind in listeners(key)} == set(schema.listeners)
    for version in versions:
        is_later = schema.flexible_from is not None and version >= schema.flexible_from
        assert is_flexible(key, version) == is_later


def test_every_api_and_every_error_of_kafka_is_known():
    assert {each.api_key for each in SCHEMAS.values() if each.kind == "request"} == set(ApiKey)
    assert {code.name.upper(): code.value for code in ErrorCode} == FACTS.errors | {
        "UNKNOWN_SERVER_ERROR": -1
    }


def records_by_hand():
    modules = (
        consumer_group_records,
        group_records,
        share_group_records,
        share_state_records,
        streams_group_records,
        transaction_records,
        remote_records,
    )
    found = {cls for module in modules for cls in vars(module).values() if isinstance(cls, type)}
    found |= set(RECORD_CLASSES.values())
    return sorted((cls for cls in found if issubclass(cls, Record) and cls.__name__ in SCHEMAS), key=str)


def bare(name):
    """A name without the differences that are ours: units, and where a word of Kafka's begins (EndPoints)."""
    return name.removesuffix("_ms").replace("_", "")


def class_rows(cls, version):
    """Return the rows of a class that is written by hand, as `rows` gives them."""

    def of(struct, above):
        hints = typing.get_type_hints(struct)
        for each in dataclasses.fields(struct):
            meta = each.metadata
            if version not in Versions.parse(meta.get("versions", "0+")) or meta.get("tag") == LOCAL_LOG_TAG:
                continue
            is_tagged = "tag" in meta and version in Versions.parse(meta.get("tag_versions", "0+"))
            path = (*above, bare(each.name))
            is_null = "nullable" in meta and version in Versions.parse(meta["nullable"])
            hint = hints[each.name]
            arms = [arm for arm in typing.get_args(hint) if arm is not NoneType]
            inner = arms[0] if NoneType in typing.get_args(hint) else hint
            is_array = typing.get_origin(inner) is list
            element = typing.get_args(inner)[0] if is_array else inner
            tag = meta["tag"] if is_tagged else 0
            yield (is_tagged, tag), path, meta.get("kafka_type"), is_array, is_null
            if "kafka_type" not in meta:
                yield from of(element, path)

    return list(of(cls, ()))


@pytest.mark.parametrize("cls", records_by_hand(), ids=lambda cls: cls.__name__)
def test_a_record_by_hand_is_the_one_of_kafka(cls):
    schema = SCHEMAS[cls.__name__]
    assert range(cls.__versions__.first, cls.__versions__.last + 1) == schema.versions
    assert getattr(cls, "__api_key__", schema.api_key) == schema.api_key
    assert cls.__flexible_from__ == schema.flexible_from
    theirs = from_kafka.merge(schema)
    for version in schema.versions:
        expected = [(order, tuple(map(bare, path)), *rest) for order, path, *rest in rows(theirs, version)]
        assert sorted(map(str, class_rows(cls, version))) == sorted(map(str, expected))


def test_every_record_of_kafka_has_a_class():
    written = {cls.__name__ for cls in records_by_hand()}
    kinds = {"metadata", "coordinator-value"}
    assert {each.name for each in SCHEMAS.values() if each.kind in kinds} - written == {
        "LegacyOffsetCommitValue"  # the records of group types 0 and 1 are one class, OffsetCommitValue
    }
