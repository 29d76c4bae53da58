"""Compiled message writers: messages into bytes.

One function is generated and compiled for each (message class, version), with nested structs inlined.
Consecutive fields of fixed size (a run) are packed in one call, together with the length that follows.

As in Kafka, a tagged field is written only if it differs from its default, and tags ascend. A field that the version
lacks is omitted whatever its value, as Kafka's `ignorable` fields are. A writer trusts its message: a value that
cannot be written (null in a field that is not nullable, a number out of range) raises Python's own error, and
`ottla.protocol.codec` turns that into ValueError, since it is a bug of ours.
"""

from collections.abc import Callable, Generator
from dataclasses import MISSING, fields
from struct import Struct, pack
from typing import Any, Final, NoReturn

from ottla.protocol.function_source import FunctionSource, once
from ottla.protocol.plan import FIXED, LENGTH_BYTES, FieldPlan, StructPlan, element_of, plan_of
from ottla.protocol.reader_helpers import MAX_STRING_BYTES
from ottla.protocol.schema_class import compile_init
from ottla.protocol.steps import MANY_ELEMENTS
from ottla.protocol.varint import write_uvarint

#: Arrays of numbers shorter than this have a precompiled `struct`.
_SHORT: Final = 8
#: The number of elements, of arrays of structs and strings, that a stepwise writer writes in one step: some 100 µs.
ELEMENTS_OF_STEP: Final = 100

#: write(message, out) appends to `out`.
Writer = Callable[[Any, bytearray], None]
#: write(message, out, buffers) appends `out`, split at the records, and the records themselves to `buffers`.
ScatterWriter = Callable[[Any, bytearray, list[Any]], None]
#: write(message, out, parts) appends to `out`, and yields between two elements whenever it has written
#: `ELEMENTS_OF_STEP`; it appends the elements of each step to `parts`, as a list of them.
StepwiseWriter = Callable[[Any, bytearray, list[Any]], Generator[None, None, None]]


@once
def writer_of(cls: type[Any], version: int) -> Writer:
    """The compiled writer of `cls` in `version`; LookupError if there is no such version."""
    return _Compiler(plan_of(cls, version)).compile(f"writer of {cls.__name__} v{version}")


@once
def scatter_writer_of(cls: type[Any], version: int) -> ScatterWriter:
    """Return the compiled writer of `cls` in `version` for a message whose records and long bytes are not copied."""
    return _Compiler(plan_of(cls, version), scatter=True).compile(
        f"scatter writer of {cls.__name__} v{version}"
    )


@once
def stepwise_writer_of(cls: type[Any], version: int) -> StepwiseWriter:
    """Return the compiled writer of `cls` in `version` that writes in steps. The message must not change in between."""
    return _Compiler(plan_of(cls, version), stepwise=True).compile(
        f"stepwise writer of {cls.__name__} v{version}"
    )


def too_long(name: str, length: int) -> NoReturn:
    """A string longer than Kafka's limit."""
    raise ValueError(f"{name} has {length} bytes")


class _Compiler:
    """Generates and compiles the writer of one message class in one version."""

    def __init__(self, plan: StructPlan, *, scatter: bool = False, stepwise: bool = False) -> None:
        self._plan = plan
        self._scatter = scatter
        self._stepwise = stepwise
        more = ", buffers" if scatter else ", parts" if stepwise else ""
        self._source = FunctionSource(f"def write(m0, out{more}):")
        self._source.globals.update(write_uvarint=write_uvarint, too_long=too_long, pack=pack)
        #: Fixed-size fields not packed yet: `struct` codes and expressions.
        self._codes = ""
        self._values: list[str] = []

    def compile(self, title: str) -> Callable[..., Any]:
        """Generate and compile the writer of the plan."""
        if self._stepwise:
            self._source.line(f"left = {ELEMENTS_OF_STEP}; parts.append(part := [])")
        self._struct(self._plan, "m0")
        self._flush()
        if self._scatter:
            self._source.line("if out: buffers.append(bytes(out))")
        self._source.line("return")
        if self._stepwise:
            self._source.line("yield")  # never reached: makes a generator of a writer without arrays, too
        return self._source.compile("write", title)

    def _struct(self, plan: StructPlan, struct: str) -> None:
        """Write the struct that the variable `struct` holds. May leave a run unflushed."""
        # What is written is made by `__init__`; readers make their objects without it.
        compile_init(plan.cls)
        for field in plan.fields:
            self._value(field, f"{struct}.{field.name}", plan.is_flexible)
        if not plan.is_flexible:
            return
        if plan.tagged:
            self._tags(plan, struct)
        else:
            self._codes += "x"  # no tagged fields: a zero byte

    def _value(self, field: FieldPlan, value: str, is_flexible: bool) -> None:
        if field.is_array:
            self._array(field, value, is_flexible)
        elif isinstance(field.kind, StructPlan):
            self._nested(field, field.kind, value)
        elif field.kind in FIXED:
            self._codes += FIXED[field.kind][0]
            self._values.append(f"{value}.bytes" if field.kind == "uuid" else value)
        else:
            self._sized(field, value, is_flexible)

    def _flush(self) -> None:
        """Pack the pending fixed-size fields."""
        if self._codes == "x":
            self._source.line("out.append(0)")
        elif self._codes == "B":
            self._source.line(f"out.append({self._values[0]})")
        elif self._codes:
            self._source.line(f"out += {self._pack(self._codes)}({', '.join(self._values)})")
        self._codes, self._values = "", []

    def _pack(self, codes: str) -> str:
        return self._source.struct(codes, "pack")

    def _uvarint(self, number: str) -> None:
        """Write the variable `number`; together with the run before it if it fits into a byte."""
        source = self._source
        with source.block(f"if {number} < 128:"):
            if self._codes:
                source.line(f"out += {self._pack(self._codes + 'B')}({', '.join([*self._values, number])})")
            else:
                source.line(f"out.append({number})")
        with source.block("else:"):
            self._flush()
            source.line(f"write_uvarint(out, {number})")
        self._codes, self._values = "", []

    def _length(self, length: str, is_flexible: bool, code: str) -> None:
        """Write the variable `length`: one more than the length, 0 for null, where lengths are compact."""
        if is_flexible:
            self._uvarint(length)
        else:
            self._codes += code
            self._values.append(length)
            self._flush()

    def _sized(self, field: FieldPlan, value: str, is_flexible: bool) -> None:
        source = self._source
        data, length = source.name("data"), source.name("n")
        kind = str(field.kind)
        encode = ".encode()" if kind == "string" else ""
        one_more = " + 1" if is_flexible else ""
        if field.is_nullable:
            source.line(f"{data} = {value}")
            with source.block(f"if {data} is None:"):
                source.line(f"{length} = {0 if is_flexible else -1}")
            with source.block("else:"):
                if encode:
                    source.line(f"{data} = {data}{encode}")
                source.line(f"{length} = len({data}){one_more}")
        else:
            source.line(f"{data} = {value}{encode}")
            source.line(f"{length} = len({data}){one_more}")
        if kind == "string":
            bound = MAX_STRING_BYTES + is_flexible
            source.line(f"if {length} > {bound}: too_long({field.name!r}, {length})")
        self._length(length, is_flexible, "h" if LENGTH_BYTES[kind] == 2 else "i")
        with source.block(f"if {data}:"):
            if kind in ("records", "bytes") and self._scatter:
                source.line("buffers.append(bytes(out))")
                source.line(f"buffers.append({data})")
                source.line("out = bytearray()")
            else:
                source.line(f"out += {data}")

    def _nested(self, field: FieldPlan, plan: StructPlan, value: str) -> None:
        source = self._source
        struct = source.name("m")
        source.line(f"{struct} = {value}")
        if not field.is_nullable:
            self._struct(plan, struct)
            return
        self._flush()
        with source.block(f"if {struct} is None:"):
            source.line(f"out.append({255 if field.tag is None else 0})")
        with source.block("else:"):
            self._codes = "b"
            self._values = ["1"]
            self._struct(plan, struct)
            self._flush()

    def _array(self, field: FieldPlan, value: str, is_flexible: bool) -> None:
        source = self._source
        items, count = source.name("items"), source.name("n")
        source.line(f"{items} = {value}")
        null, one_more = (0, " + 1") if is_flexible else (-1, "")
        if field.is_nullable:
            source.line(f"{count} = {null} if {items} is None else len({items}){one_more}")
        else:
            source.line(f"{count} = len({items}){one_more}")
        if isinstance(field.kind, str) and field.kind in FIXED and field.kind != "uuid":
            self._numbers(FIXED[field.kind][0], items, count, is_flexible)
            return
        self._length(count, is_flexible, "i")
        with source.block(f"if {items}:"):
            self._elements(field, items, is_flexible)

    def _numbers(self, code: str, items: str, count: str, is_flexible: bool) -> None:
        """Write an array of numbers: a short one in one go with the run before it and its length."""
        source = self._source
        codes = self._codes + ("B" if is_flexible else "i")
        packers = tuple(Struct(f">{codes}{length}{code}").pack for length in range(_SHORT))
        table = source.refer("packers", packers)
        with source.block(f"if {items} and len({items}) < {_SHORT}:"):
            values = ", ".join([*self._values, count, f"*{items}"])
            source.line(f"out += {table}[len({items})]({values})")
        with source.block("else:"):
            self._length(count, is_flexible, "i")
            with source.block(f"if {items}:"):
                source.line(f'out += pack(f">{{len({items})}}{code}", *{items})')

    def _elements(self, field: FieldPlan, items: str, is_flexible: bool) -> None:
        source = self._source
        item = source.name("m")
        if self._stepwise:
            source.line(f"if len({items}) > {MANY_ELEMENTS}: parts.append({items})")
        with source.block(f"for {item} in {items}:"):
            if self._stepwise:
                with source.block("if not left:"):
                    source.line(f"left = {ELEMENTS_OF_STEP}; parts.append(part := [])")
                    source.line("yield")
                source.line(f"left -= 1; part.append({item})")
            if isinstance(field.kind, StructPlan):
                self._struct(field.kind, item)
            elif field.kind == "uuid":
                source.line(f"out += {item}.bytes")
            else:
                self._value(element_of(field), item, is_flexible)
            self._flush()

    def _tags(self, plan: StructPlan, struct: str) -> None:
        source = self._source
        written = {field.name: source.name("has") for field in plan.tagged}
        for field in plan.tagged:
            value = f"{struct}.{field.name}"
            differs = self._differs(value, field.default)
            if field.is_nullable and field.default() is not None:
                differs = f"({value} is None or {differs})"
            source.line(f"{written[field.name]} = {differs}")
        count = source.name("n")
        source.line(f"{count} = {' + '.join(written.values())}")
        self._codes += "B"  # a schema has fewer than 128 tags
        self._values.append(count)
        self._flush()
        assert not any(isinstance(field.kind, StructPlan) and field.kind.has_records for field in plan.tagged)
        with source.block(f"if {count}:"):
            outer = source.name("out")
            for field in plan.tagged:
                with source.block(f"if {written[field.name]}:"):
                    source.line(f"{outer}, out = out, bytearray()")
                    self._value(field, f"{struct}.{field.name}", plan.is_flexible)
                    self._flush()
                    source.line(f"write_uvarint({outer}, {field.tag})")
                    source.line(f"write_uvarint({outer}, len(out))")
                    source.line(f"{outer} += out")
                    source.line(f"out = {outer}")

    def _differs(self, value: str, make_default: Callable[[], Any]) -> str:
        """An expression, true if `value` is not its default. Structs are compared field by field, inlined."""
        default = make_default()
        if default is None:
            return f"({value} is not None)"
        if isinstance(default, list):
            return f"({value} is None or len({value}) > 0)"
        if isinstance(default, bool | int | float | str | bytes):
            return f"({value} != {default!r})"
        if hasattr(default, "__dataclass_fields__"):
            parts = []
            for of_struct in fields(default):
                factory = of_struct.default_factory
                make = factory if factory is not MISSING else lambda of_struct=of_struct: of_struct.default
                parts.append(self._differs(f"{value}.{of_struct.name}", make))
            return f"({' or '.join(parts)})"
        return f"({value} != {self._source.refer('default', default)})"
