"""The configurations that the code reads, found in its syntax trees.

A reader is a place outside of definitions, checks and descriptions that asks for a key by its accessors:

    config.get("key")   get("key")   config.listener_value(listener, "key")   config.dynamic_value("key")
    config.values["key"]             config.some_key (an attribute of BrokerConfig)
    state.topic_setting(topic, "key")   log.config.some_key (a field of LogConfig)

Naming a key elsewhere, such as in a table, a message or a set of properties, reads nothing.
"""

import ast
import dataclasses
import typing
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ottla.config.broker_config import BrokerConfig
from ottla.config.log_config import SERVER_SYNONYMS, LogConfig

ROOT = Path(__file__).parents[3]
PACKAGES = ("broker", "config", "controller", "remote", "replication", "storage")

#: Definitions, relations between values, descriptions and properties that are written: none of them acts on a value.
_NO_READERS = (
    "config/definitions/",
    "config/checks.py",
    "config/describe.py",
    "config/dynamic.py",
    "config/group_bounds.py",
    "config/load.py",
    "config/names.py",
    "config/overrides.py",
    "config/notices.py",
    "config/resources.py",
    "broker/cli/cluster_plan.py",
    "config/log_config.py",
    "config/topic_configs.py",
)

#: How the functions are called that take a key, and which argument it is.
_ACCESSORS = {"get": 0, "_list": 0, "_int": 0, "listener_value": 1, "dynamic_value": 0, "topic_setting": 1}

#: What a BrokerConfig or LogConfig is called where its attributes are read.
_NAMES = ("config", "_config", "current")

_BROKER_ATTRIBUTES = {name: name.replace("_", ".") for name in typing.get_type_hints(BrokerConfig)}
_LOG_FIELDS = {field.name: field.name.replace("_", ".") for field in dataclasses.fields(LogConfig)}


@cache
def broker_readers() -> dict[str, list[str]]:
    """Places that read each broker configuration, topics' defaults among them."""
    found: dict[str, list[str]] = defaultdict(list)
    for place, node in _nodes():
        if (key := asked_key(node)) is not None:
            found[key].append(place)
        elif (
            isinstance(node, ast.Attribute)
            and _is_config(node.value, place)
            and node.attr in _BROKER_ATTRIBUTES
        ):
            found[_BROKER_ATTRIBUTES[node.attr]].append(place)
    of_topics = topic_readers()
    for topic_key, synonyms in SERVER_SYNONYMS.items():
        for synonym in synonyms:
            found[synonym.name] += of_topics.get(topic_key, [])
    return {key: places for key, places in found.items() if places}


@cache
def topic_readers() -> dict[str, list[str]]:
    """Places that read each topic configuration."""
    found: dict[str, list[str]] = defaultdict(list)
    derived = _derived_properties()
    for place, node in _nodes():
        if (key := asked_key(node)) is not None:
            found[key].append(place)
        elif isinstance(node, ast.Attribute) and _is_config(node.value, place):
            for name in (node.attr, *derived.get(node.attr, ())):
                if name in _LOG_FIELDS:
                    found[_LOG_FIELDS[name]].append(place)
    # LogConfig.from_values puts it in the place of the other one.
    found["internal.segment.bytes"] = found["segment.bytes"]
    return found


@cache
def subscription_readers() -> dict[str, list[str]]:
    """Places that read each configuration of a client metrics subscription."""
    return {
        key: found
        for key, places in broker_readers().items()
        if (found := [place for place in places if place.startswith("broker/telemetry/")])
    }


def listener_readers() -> set[str]:
    """The keys that are read for one listener."""
    return {
        key
        for _, node in _nodes()
        if (key := asked_key(node)) is not None and _called(node) == "listener_value"
    }


def unread_attributes() -> list[str]:
    """Attributes of BrokerConfig that nothing reads by that name."""
    read = {
        node.attr
        for place, node in _nodes(with_checks=True)
        if isinstance(node, ast.Attribute) and _is_config(node.value, place)
    }
    return sorted(set(_BROKER_ATTRIBUTES) - read)


def unread_settings() -> list[str]:
    """Fields of the classes that configurations are passed on in (FetcherSettings, GroupConfig) and that
    nothing reads.
    """
    fields: dict[str, list[str]] = {}
    read: set[str] = set()
    for _, node in _all_nodes():
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            read.add(node.attr)
        elif isinstance(node, ast.ClassDef) and node.name.endswith(("Settings", "Limits", "GroupConfig")):
            fields[node.name] = [
                each.target.id
                for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            ]
    return [f"{name}.{field}" for name, names in fields.items() for field in names if field not in read]


def _nodes(*, with_checks: bool = False) -> Iterator[tuple[str, ast.AST]]:
    return (each for each in _all_nodes() if with_checks or not each[0].startswith(_NO_READERS))


@cache
def _all_nodes() -> list[tuple[str, ast.AST]]:
    """Every call, subscript, attribute and class of the packages, with its place; other nodes are not needed."""
    return [
        (f"{name}:{node.lineno}", node)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for name in [str(path.relative_to(ROOT))]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Call, ast.Subscript, ast.Attribute, ast.ClassDef))
    ]


def _called(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Call):
        return None
    match node.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return None


def asked_key(node: ast.AST) -> str | None:
    """The key that a call or a subscript asks for by a literal."""
    match node:
        case ast.Call(args=args) if (name := _called(node)) in _ACCESSORS:
            at = _ACCESSORS[name]
            asked = args[at] if len(args) > at else None
        case ast.Subscript(value=ast.Attribute(attr="values"), slice=asked):
            pass
        case _:
            return None
    return asked.value if isinstance(asked, ast.Constant) and isinstance(asked.value, str) else None


def _is_config(node: ast.expr, place: str) -> bool:
    """Whether an expression looks like a BrokerConfig or a LogConfig: its last name says so."""
    match node:
        case ast.Name(id="self"):
            return place.startswith(("config/broker_config.py", "config/parsed_config.py"))
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in _NAMES
        case ast.Call(func=function):
            return _is_config(function, place)
        case _:
            return False


def _derived_properties() -> dict[str, set[str]]:
    """The fields of LogConfig that each of its properties is made of."""
    tree = ast.parse((ROOT / "config/log_config.py").read_text())
    (found,) = (
        node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "LogConfig"
    )
    return {
        function.name: {
            node.attr
            for node in ast.walk(function)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        }
        for function in found.body
        if isinstance(function, ast.FunctionDef)
    }
