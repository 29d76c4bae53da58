"""A schema class is what `dataclass` makes of it, before and after its methods are called for the first time."""

import copy
import inspect
import pickle
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import pytest

from ottla.protocol.codec import encode_struct, encoder
from ottla.protocol.schema import Record, Versions
from ottla.protocol.schema_class import schema_class

ROOT = Path(__file__).parents[3]


class Inner:
    """The schema of one partition."""

    partition: int = field(default=0, metadata={"kafka_type": "int32"})


class Outer(Record):
    """The schema of a list of partitions."""

    __api_key__: ClassVar[int] = 3
    __versions__: ClassVar[Versions] = Versions(0, 1)

    name: str
    partitions: list[int] = field(default_factory=list)
    offset: int | None = field(default=None, metadata={"nullable": "1+"})


def copied(cls):
    """The class again: `dataclass` changes the fields that it finds."""
    return type(cls.__name__, cls.__bases__, {name: copy.copy(value) for name, value in vars(cls).items()
                                              if name not in ("__dict__", "__weakref__")})  # fmt: skip


def made_by_both(cls):
    return schema_class(copied(cls)), dataclass(slots=True, kw_only=True)(copied(cls))


CALLS = [
    lambda cls: repr(cls(name="a", partitions=[1])),
    lambda cls: cls(name="a") == cls(name="a"),
    lambda cls: cls(name="a") == cls(name="b"),
    lambda cls: cls(name="a") == "a",
    lambda cls: cls(name="a", offset=3).offset,
    lambda cls: cls(name="a").partitions is cls(name="a").partitions,
    lambda cls: repr(replace(cls(name="a"), partitions=[2])),
    lambda cls: copy.deepcopy(cls(name="a", partitions=[1])) == cls(name="a", partitions=[1]),
    lambda cls: [(each.name, each.type, each.default, each.metadata, each.kw_only) for each in fields(cls)],
    lambda cls: (cls.__slots__, cls.__hash__, cls.__match_args__, cls.__doc__, cls.__api_key__),
    lambda cls: hasattr(cls(name="a"), "__dict__"),
]
REFUSALS = [
    lambda cls: cls(),
    lambda cls: cls("a"),
    lambda cls: cls(name="a", unknown=1),
    lambda cls: setattr(cls(name="a"), "unknown", 1),
    lambda cls: hash(cls(name="a")),
]


@pytest.mark.parametrize("call", CALLS)
def test_it_behaves_as_a_dataclass(call):
    ours, theirs = made_by_both(Outer)
    expected = call(theirs)
    assert call(ours) == expected
    assert call(ours) == expected  # when its methods are compiled


@pytest.mark.parametrize("call", REFUSALS)
def test_it_refuses_what_a_dataclass_refuses(call):
    ours, theirs = made_by_both(Outer)
    with pytest.raises((TypeError, AttributeError)) as expected:
        call(theirs)
    for _ in range(2):
        with pytest.raises(expected.type) as raised:
            call(ours)
        assert str(raised.value) == str(expected.value)


@pytest.mark.parametrize("name", ["__init__", "__repr__", "__eq__"])
def test_a_method_is_compiled_when_it_is_called_and_no_other_one(name):
    ours, theirs = made_by_both(Inner)
    before = dict(vars(ours))
    instance = ours.__new__(ours)
    instance.partition = 1
    if name == "__eq__":
        assert instance == instance  # noqa: PLR0124 the first call
    else:
        getattr(ours, name)(instance)
    changed = {each for each, value in vars(ours).items() if value is not before[each]}
    assert changed == {name}
    assert inspect.signature(getattr(ours, name)) == inspect.signature(getattr(theirs, name))


def test_a_writer_leaves_nothing_to_compile_to_the_first_message():
    @schema_class
    class Row:
        partition: int = field(default=0, metadata={"kafka_type": "int32"})

    @schema_class
    class Rows(Record):
        __versions__: ClassVar[Versions] = Versions(0, 0)
        rows: list[Row] = field(default_factory=list)

    encoder(Rows, 0)
    compiled = vars(Row)["__init__"], vars(Rows)["__init__"]
    assert encode_struct(Rows, 0, Rows(rows=[Row(partition=7)])) == b"\0\0\0\1\0\0\0\7"
    assert (vars(Row)["__init__"], vars(Rows)["__init__"]) == compiled


def test_what_inherits_a_method_gets_the_compiled_one():
    ours, _ = made_by_both(Inner)

    class Derived(ours):
        __slots__ = ()

    assert Derived(partition=2) == Derived(partition=2)
    assert repr(Derived(partition=2)).endswith("Derived(partition=2)")
    assert "__init__" not in vars(Derived)


def test_a_class_with_methods_of_its_own_is_refused():
    class Own:
        x: int = 0

        def __eq__(self, other):
            return True

    with pytest.raises(AssertionError):
        schema_class(Own)


def test_messages_are_sent_to_other_processes():
    from ottla.protocol.messages.heartbeat import HeartbeatRequest

    request = HeartbeatRequest(group_id="g", generation_id=7)
    assert pickle.loads(pickle.dumps(request)) == request


def test_every_schema_is_one():
    """A class that is no `schema_class` compiles its methods at each start of a broker."""
    modules = [*(ROOT / "protocol/messages").glob("*.py"), *(ROOT / "protocol").glob("*/*records.py")]
    assert len(modules) > 90
    for path in modules:
        import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        assert "@dataclass" not in path.read_text(), path
