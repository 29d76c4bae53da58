"""Records as lines of text and of JSON: what `ottla consume` prints is what `ottla produce` reads."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.cli.admin.resetting import Kind, Target
from ottla.broker.cli.output import as_json
from ottla.broker.cli.records.formats import (
    Format,
    FormatError,
    Formats,
    Record,
    as_line,
    header_of,
    record_of,
    record_of_text,
    row_of,
)
from ottla.broker.cli.records.starting import target_of
from ottla.broker.cluster_client.errors import ClusterError

DATA = st.none() | st.binary(max_size=8) | st.text(max_size=8).map(str.encode)


@given(
    key=DATA,
    value=DATA,
    headers=st.lists(st.tuples(st.text(max_size=4), DATA), max_size=3),
    timestamp=st.none() | st.integers(0, 2**62),
    form=st.sampled_from([Format.TEXT, Format.HEX, Format.BASE64]),
)
def test_a_line_of_json_is_the_record(key, value, headers, timestamp, form):
    formats = Formats(key=form, value=form)
    record = Record(key=key, value=value, headers=headers, timestamp_ms=timestamp, partition=3)
    line = as_json(row_of("orders", 3, 7, record, formats))
    assert record_of(line, formats, keeps_partition=True) == record
    assert record_of(line, formats, keeps_partition=False).partition is None


def test_a_value_that_is_json_stays_what_it_means():
    formats = Formats(value=Format.JSON)
    row = row_of("orders", 0, 0, Record(value=b'{"base64": "x",  "n": [1, "\xc3\xa9"]}'), formats)
    assert row["value"] == {"base64": "x", "n": [1, "é"]}
    again = record_of(as_json(row), formats, keeps_partition=False).value
    assert again == '{"base64":"x","n":[1,"é"]}'.encode()


@pytest.mark.parametrize(("line", "sentence"), [
    ("{",                             "no JSON: "),
    ("[]",                            "no JSON object: it must be as"),
    ('{"key": "1"}',                  "the field value is missing: "),
    ('{"valu": "1"}',                 "the field valu is unknown. Did you mean value?"),
    ('{"zzz": "1"}',                  "the field zzz is unknown. The fields are topic, partition, "),
    ('{"value": 1}',                  "the field value: 1 is no string: it must be one, null, or "),
    ('{"value": {"base64": "?"}}',    "the field value: '?' is not base64: "),
    ('{"value": "\\ud800"}',          "the field value: '\ud800' is not text: "),
    ('{"value": "", "timestamp": -1}', "the field timestamp: -1 is no number from 0 to 9223372036854775807"),
    ('{"value": "", "timestamp": "x"}', 'the field timestamp: "x" is no number from 0 to 9223372036854775807'),
    ('{"value": "", "headers": "x"}',  "the field headers must be as "),
    ('{"value": "", "headers": ["x"]}', "the field headers must be as "),
])  # fmt: skip
def test_lines_that_are_no_records(line, sentence):
    with pytest.raises(FormatError) as raised:
        record_of(line, Formats(), keeps_partition=True)
    assert str(raised.value).startswith(sentence)


def test_headers_of_other_tools_are_an_object():
    line = json.dumps({"value": None, "headers": {"a": "1", "b": None}})
    assert record_of(line, Formats(), keeps_partition=False) == Record(headers=[("a", b"1"), ("b", None)])


@pytest.mark.parametrize(("text", "separator", "null", "key", "value"), [
    ("a:1:2", None, None, None, b"a:1:2"),
    ("a:1:2", ":",  None, b"a", b"1:2"),
    ("a:-",   ":",  "-",  b"a", None),
    ("-:1",   ":",  "-",  None, b"1"),
    ("",      None, None, None, b""),
])  # fmt: skip
def test_a_line_of_text(text, separator, null, key, value):
    found = record_of_text(text, Formats(), key_separator=separator, null=null)
    assert (found.key, found.value) == (key, value)


def test_a_line_without_its_separator():
    with pytest.raises(FormatError, match="'a' has no ':' between key and value"):
        record_of_text("a", Formats(), key_separator=":", null=None)


@pytest.mark.parametrize(("data", "form", "line"), [
    (None,        Format.TEXT,   "null"),
    (b"\xc3\xa9", Format.TEXT,   "é"),
    (b"a\xff",    Format.TEXT,   "a\\xff"),
    (b"a\xff",    Format.HEX,    "61ff"),
    (b"a\xff",    Format.BASE64, "Yf8="),
    (b'{"a":1}',  Format.JSON,   '{"a": 1}'),
])  # fmt: skip
def test_a_value_as_a_line(data, form, line):
    assert as_line(data, form) == line


def test_a_header_of_an_option():
    assert header_of("a=b=c") == ("a", b"b=c")
    with pytest.raises(FormatError, match="--header a: it must be NAME=VALUE"):
        header_of("a")


@pytest.mark.parametrize(("text", "target"), [
    ("earliest", Target(Kind.EARLIEST)),
    ("latest",   Target(Kind.LATEST)),
    ("0",        Target(Kind.OFFSET, 0)),
    ("-3",       Target(Kind.SHIFT, -3)),
    ("--3",      None),
    ("soon",     None),
])  # fmt: skip
def test_the_offset_of_an_option(text, target):
    if target is not None:
        assert target_of(text) == target
        return
    with pytest.raises(ClusterError, match="it must be earliest, latest, an offset, or -N"):
        target_of(text)
