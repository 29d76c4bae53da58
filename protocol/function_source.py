"""Code generation: a function's source text with indentation and unique names, and its compilation."""

import linecache
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from struct import Struct
from typing import Any, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])


def once(build: _F) -> _F:
    """`functools.cache` for functions with class arguments, which its type annotations treat as unhashable."""
    return cast(_F, cache(build))


class FunctionSource:
    """The source text of one function under construction."""

    def __init__(self, head: str) -> None:
        self._lines = [head]
        self._indent = 1
        self._names = 0
        #: The globals that the text refers to: classes, struct methods, helpers.
        self.globals: dict[str, Any] = {}

    def line(self, text: str) -> None:
        """Add a statement at the current depth."""
        self._lines.append("    " * self._indent + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add `head`; lines added inside are indented one level deeper."""
        self.line(head)
        self._indent += 1
        yield
        self._indent -= 1

    def name(self, prefix: str) -> str:
        """A unique name for a local variable of this function."""
        self._names += 1
        return f"{prefix}{self._names}"

    def refer(self, prefix: str, value: object) -> str:
        """Return the name of a global that refers to `value`; the same value keeps its name."""
        for name, known in self.globals.items():
            if known is value:
                return name
        name = self.name(prefix)
        self.globals[name] = value
        return name

    def struct(self, codes: str, method: str) -> str:
        """A name for a big-endian `struct` method: "pack" or "unpack_from"."""
        name = f"{method}_{codes.replace('?', 'z')}"
        if name not in self.globals:
            self.globals[name] = getattr(Struct(f">{codes}"), method)
        return name

    def compile(self, function: str, title: str) -> Callable[..., Any]:
        """The compiled function. Its text is registered under `title`, so that tracebacks show its lines."""
        text = "\n".join(self._lines) + "\n"
        filename = f"<{title}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        exec(compile(text, filename, "exec"), self.globals)  # noqa: S102 the text is ours, made from our schema
        compiled: Callable[..., Any] = self.globals[function]
        return compiled
