"""`schema_class`: the dataclass of a schema, whose methods are compiled when each is called for the first time.

A broker imports 300 such classes before it is ready, and makes objects of 20 of them. `dataclass` compiles `__init__`,
`__repr__` and `__eq__` at once, which takes 0.15 ms for each class: a quarter of all imports. `__repr__` is
for log lines and `__eq__` for tests, so that most classes never need theirs.

After its first call a method is the same function that `dataclass` would have made.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, Final, TypeVar, dataclass_transform

_T = TypeVar("_T")

_METHODS: Final = ("__init__", "__repr__", "__eq__")
#: The attribute of a method that stands for one that is not compiled yet.
_STANDS_FOR: Final = "stands_for"


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def schema_class(cls: type[_T]) -> type[_T]:
    """Make the class that `dataclass(slots=True, kw_only=True)` makes of a class without methods of its own.

    >>> @schema_class
    ... class Node:
    ...     host: str = ""
    ...     port: int = 0
    >>> Node(host="a", port=9092), Node() == Node(port=0)
    (Node(host='a', port=9092), True)
    """
    assert not {*_METHODS, "__post_init__"} & {*vars(cls)}, cls
    # `slots` makes another class.
    made = dataclass(slots=True, kw_only=True, init=False, repr=False, eq=False)(cls)
    for name in _METHODS:
        setattr(made, name, _compiled_when_called(made, name))
    # What `dataclass` does for `eq=True` without `frozen`: mutable objects with equality have no hash.
    made.__hash__ = None  # type: ignore[assignment]
    return made


def compile_init(cls: type) -> None:
    """Compile `__init__` of a schema's class now, unless it is: for messages that will be made while others wait."""
    if hasattr(vars(cls).get("__init__"), _STANDS_FOR):
        cls.__init__ = _compiled(cls, "__init__")  # type: ignore[misc]


def _compiled_when_called(cls: type, name: str) -> Callable[..., Any]:
    """Return a placeholder of a method of `cls`, which compiles the method when it is called first, and calls it."""

    def first_call(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        # Two threads may both be here: they make the same method.
        setattr(cls, name, _compiled(cls, name))
        return getattr(cls, name)(self, *args, **kwargs)

    setattr(first_call, _STANDS_FOR, name)
    return first_call


def _compiled(cls: type, name: str) -> Callable[..., Any]:
    """The method that `dataclass` makes for these fields, taken from another class with the same ones."""
    same_fields = [(each.name, each.type, each) for each in fields(cls)]
    same = make_dataclass(
        cls.__name__,
        same_fields,
        # With any docstring: a class without one would get its signature, which takes as long as a method.
        namespace={"__doc__": cls.__name__},
        kw_only=True,
        init=name == "__init__",
        repr=name == "__repr__",
        eq=name == "__eq__",
    )
    method = vars(same)[name]
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    method.__module__ = cls.__module__
    assert callable(method)
    found: Callable[..., Any] = method
    return found
