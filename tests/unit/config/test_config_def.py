"""Types, parsing, Java's spelling, and what incremental alterations do to a value."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.config.config_def import (
    AlterOperation,
    ConfigDef,
    ConfigKey,
    ConfigOperation,
    ConfigType,
    InvalidConfigValue,
    Password,
    merge_operations,
    parse_value,
    text_of,
)
from ottla.config.config_values import (
    Between,
    Distinct,
    DurationOrOffset,
    GzipLevel,
    HostsAndPorts,
    OneOf,
    ThrottledReplicas,
    Voters,
)
from ottla.protocol.errors import ErrorCode, InvalidConfig


@pytest.mark.parametrize(("type_", "text", "value"), [
    (ConfigType.BOOLEAN,  "TRUE",        True),
    (ConfigType.BOOLEAN,  " false ",     False),
    (ConfigType.INT,      "+8",          8),
    (ConfigType.INT,      "-2147483648", -2147483648),
    (ConfigType.INT,      " 007 ",       7),
    (ConfigType.INT,      "-" + "0" * 5000 + "7", -7),
    (ConfigType.SHORT,    "32767",       32767),
    (ConfigType.LONG,     str(2**63 - 1), 2**63 - 1),
    (ConfigType.DOUBLE,   "1e-3",        0.001),
    (ConfigType.DOUBLE,   ".5",          0.5),
    (ConfigType.LIST,     "",            ()),
    (ConfigType.LIST,     "a , b,c",     ("a", "b", "c")),
    (ConfigType.LIST,     "a,,b",        ("a", "", "b")),
    (ConfigType.STRING,   "  a b ",      "a b"),
    (ConfigType.CLASS,    "java.Foo",    "java.Foo"),
    (ConfigType.PASSWORD, "secret",      Password("secret")),
])  # fmt: skip
def test_text_is_read_as_java_does(type_, text, value):
    assert parse_value("k", type_, text) == value


@pytest.mark.parametrize(("type_", "text", "allowed"), [
    (ConfigType.BOOLEAN, "yes",         "true or false"),
    (ConfigType.INT,     "2147483648",  "a 32-bit integer"),
    (ConfigType.INT,     "1_000",       "a 32-bit integer"),
    (ConfigType.INT,     "1.0",         "a 32-bit integer"),
    (ConfigType.INT,     "",            "a 32-bit integer"),
    (ConfigType.INT,     "+-1",         "a 32-bit integer"),
    (ConfigType.INT,     "\u0661",      "a 32-bit integer"),
    (ConfigType.SHORT,   "40000",       "a 16-bit integer"),
    (ConfigType.LONG,    "9" * 5000,    "a 64-bit integer"),
    (ConfigType.DOUBLE,  "NaN",         "a number"),
    (ConfigType.DOUBLE,  "1,5",         "a number"),
])  # fmt: skip
def test_a_bad_value_names_key_value_and_what_is_allowed(type_, text, allowed):
    with pytest.raises(InvalidConfigValue) as refused:
        parse_value("some.key", type_, text)
    assert str(refused.value) == f"Invalid value '{text}' for configuration some.key: it must be {allowed}."
    assert refused.value.code == ErrorCode.invalid_config


@pytest.mark.parametrize(("value", "text"), [
    (0.5, "0.5"), (1.0, "1.0"), (0.0, "0.0"), (9999999.0, "9999999.0"),
    (0.001, "0.001"), (0.0001, "1.0E-4"), (1.5e-5, "1.5E-5"), (1e7, "1.0E7"), (12345678.0, "1.2345678E7"),
    (1.7976931348623157e308, "1.7976931348623157E308"), (-0.00025, "-2.5E-4"),
])  # fmt: skip
def test_doubles_are_spelled_as_java_does(value, text):
    assert text_of(ConfigType.DOUBLE, value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_spelled_double_reads_back(value):
    text = text_of(ConfigType.DOUBLE, value)
    assert text is not None
    assert parse_value("k", ConfigType.DOUBLE, text) == value


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_spelled_long_reads_back(value):
    assert parse_value("k", ConfigType.LONG, text_of(ConfigType.LONG, value) or "") == value


@given(st.lists(st.text(alphabet="abc.:*-", min_size=1)).map(tuple))
def test_a_spelled_list_reads_back(value):
    assert parse_value("k", ConfigType.LIST, text_of(ConfigType.LIST, value) or "") == value


def test_a_password_never_shows():
    password = parse_value("k", ConfigType.PASSWORD, "secret")
    assert "secret" not in f"{password} {password!r} {text_of(ConfigType.PASSWORD, password)}"
    assert password == Password("secret") != Password("other")


@pytest.mark.parametrize(("check", "good", "bad"), [
    (Between(1),              [1, 2.5],               [0, -1, None, "1", math.nan]),
    (Between(0, 1),           [0, 0.5, 1],            [1.01]),
    (Between(None, 3),        [-9, 3],                [4]),
    (GzipLevel(),             [-1, 1, 9],             [0, 10, -2, None]),
    (OneOf(("a", "b")),       ["a"],                  ["A", "", None]),
    (Distinct(),              [(), ("a",)],           [None, ("",), "a"]),
    (Distinct(("a",)),        [(), ("a",)],           [("b",), ("a", "b")]),
    (Distinct(may_be_empty=False, may_be_null=True), [None, ("x",)], [()]),
    (ThrottledReplicas(),     [(), ("*",), ("0:1", "2:3"), ("",)], [("*", "0:1"), ("x",), ("0:1:2",), None]),
    (Voters(),                [(), ("1@host:9093",), ("2@[::1]:1",)], [("host:9093",), ("1@host",), ("x@h:1",)]),
    (HostsAndPorts(),         [("h:1", "127.0.0.1:2", "[fe80::1]:3")], [("h",), ("h:x",), ("a b:1",)]),
    (DurationOrOffset(),      ["earliest", "latest", "by_duration:PT1H", "by_duration:P1DT2M3.5S"],
                              ["", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:-PT1H", "latest:1"]),
])  # fmt: skip
def test_checks(check, good, bad):
    assert [value for value in good if not check.allows(value)] == []
    assert [value for value in bad if check.allows(value)] == []
    assert str(check)


LISTS = ConfigDef(
    [
        ConfigKey("list", ConfigType.LIST, ("x", "y")),
        ConfigKey("empty", ConfigType.LIST, ()),
        ConfigKey("number", ConfigType.INT, 1, check=Between(1)),
    ]
)

SET, DELETE, APPEND, SUBTRACT = AlterOperation


# KIP-339
@pytest.mark.parametrize(("current", "operation", "value", "becomes"), [
    (None,  SET,      "a",    "a"),
    ("a",   SET,      "b",    "b"),
    ("a",   DELETE,   None,   None),
    (None,  APPEND,   "z",    "x,y,z"),      # the definition's default is where it starts
    ("a",   APPEND,   "a,b",  "a,b"),
    ("",    APPEND,   "a",    "a"),
    ("a,b", SUBTRACT, "a",    "b"),
    (None,  SUBTRACT, "x,q",  "y"),
    ("a",   SUBTRACT, "a",    ""),           # an empty list, not the default
])  # fmt: skip
def test_what_an_operation_makes_of_a_list(current, operation, value, becomes):
    held = {} if current is None else {"list": current}
    assert merge_operations(held, [ConfigOperation("list", operation, value)], LISTS) == {"list": becomes}


@pytest.mark.parametrize(
    ("operation", "name"), [(APPEND, "number"), (SUBTRACT, "number"), (APPEND, "unknown")]
)
def test_only_lists_grow_and_shrink(operation, name):
    with pytest.raises(
        InvalidConfig, match=f"Can't {operation.name} to key {name} because its type is not LIST"
    ):
        merge_operations({}, [ConfigOperation(name, operation, "1")], LISTS)


def test_null_is_only_for_delete():
    with pytest.raises(InvalidConfig, match="null"):
        merge_operations({}, [ConfigOperation("list", SET, None)], LISTS)


def test_repeated_entries_of_a_checked_list_are_taken_out():
    key = ConfigKey("k", ConfigType.LIST, (), check=Distinct())
    assert key.parse("a,b,a") == ("a", "b")


def test_an_unknown_name_is_refused():
    with pytest.raises(InvalidConfig, match="nope"):
        LISTS.parse("nope", "1")
    assert "nope" not in LISTS
    assert len(LISTS) == 3
