"""No modules import each other in a circle: each one can be read after those that it imports.

Every import counts, also one in a function or for a type checker only: a type that two modules need belongs in a
third one. Contracts between packages are import-linter's (pyproject.toml).
"""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "runtime",
    "protocol",
    "metadata",
    "replication",
    "config",
    "storage",
    "remote",
    "controller",
    "broker",
    "web",
    "bench",
    "testing",
    "stories",
)


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("ottla", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def imported_names(node):
    """The dotted names that an import statement names; of `from a import b` both a.b and a: b may be a module."""
    match node:
        case ast.Import(names=names):
            return [(each.name,) for each in names]
        case ast.ImportFrom(module=module, names=names, level=0):
            return [(f"{module}.{each.name}", module) for each in names]
        case ast.ImportFrom():
            raise AssertionError("imports are absolute")
        case _:
            return []


def import_graph():
    """Module -> the modules of ours that it imports."""
    paths = {module_name(path): path for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    graph = {}
    for module, path in paths.items():
        found = (
            next((name for name in candidates if name in paths), None)
            for node in ast.walk(ast.parse(path.read_text()))
            for candidates in imported_names(node)
        )
        graph[module] = {name for name in found if name is not None}
    return graph


def test_no_circle_of_imports():
    graph = import_graph()
    assert sum(map(len, graph.values())) > len(graph), "imports are not found"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = reversed(error.args[1])  # graphlib's order: each one is imported by the next one
        pytest.fail("a circle of imports: " + " -> ".join(circle))


def test_handlers_do_not_import_each_other():
    """Code that two of them need is in a module of `broker/api/` without a key."""
    graph = import_graph()
    handler = re.compile(r"ottla\.broker\.api\.k\d\d_")
    handlers = [module for module in graph if handler.match(module)]
    assert len(handlers) > 40
    assert {module: used for module in handlers if (used := set(filter(handler.match, graph[module])))} == {}
