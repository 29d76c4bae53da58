"""Compiled message readers: untrusted bytes into messages.

One function is generated and compiled for each (message class, version), with nested structs inlined. It
checks every length against the remaining bytes before it uses it:

- an array has no more elements than the remaining bytes can hold, and all arrays and tagged fields of a
  message together no more than `MAX_ELEMENTS`: an element costs Python some hundred bytes, whatever it
  costs the sender (CVE-2026-111108);
- tagged fields that this version does not define are skipped and not kept (CVE-2026-111115). As in Kafka's reader
  they may have any order, the last one of a tag counts, and the stated size of a defined one is ignored;
- a string has at most `MAX_STRING_BYTES` bytes; null is accepted only in nullable fields. What is not UTF-8 is
  replaced as by Java (`ottla.protocol.reader_helpers.replaced_as_by_java`).

All other malformed bytes cause IndexError or struct.error, which `ottla.protocol.codec` turns into
MalformedMessage. Bytes after the message are ignored, as in Kafka.

Records are not copied: they are slices of the memoryview that is read.

Example of compiled code, for an int32 and then a compact array of structs of at least 11 bytes:

    m1.throttle_time_ms, n4, = unpack_from_iB(data, p)
    p += 5
    if n4 > 127: n4, p = rest_of_uvarint(data, p, n4)
    n4 -= 1
    if n4 < 0: bad_count('brokers', n4)
    budget -= n4
    if budget < 0 or n4 > (size - p) // 11: bad_count('brokers', n4)
    m1.brokers = items5 = []
    for _ in range(n4):
        m6 = new(C7)
        ...
"""

from codecs import utf_8_decode
from collections.abc import Callable, Generator
from struct import unpack_from
from typing import Any, Final
from uuid import UUID

from ottla.protocol.function_source import FunctionSource, once
from ottla.protocol.plan import (
    FIXED,
    LENGTH_BYTES,
    FieldPlan,
    StructPlan,
    element_of,
    plan_of,
    smallest_bytes,
)
from ottla.protocol.reader_helpers import (
    LENIENT,
    MAX_STRING_BYTES,
    bad_count,
    bad_length,
    bad_tag,
    few_unpackers,
    rest_of_uvarint,
    skip_tags,
    skip_tags_in_steps,
    uuid_of,
    uuids_in_steps,
    uuids_of,
)
from ottla.protocol.steps import MANY_ELEMENTS
from ottla.protocol.varint import read_uvarint

#: read(view, position, elements allowed) -> (message, position after it).
Reader = Callable[[bytes | memoryview, int, int], tuple[Any, int]]
#: A reader that yields between two elements whenever it has read `ELEMENTS_OF_STEP`; it appends the elements of
#: each step to the last argument, as a list of them.
StepwiseReader = Callable[[bytes | memoryview, int, int, list[Any]], Generator[None, None, tuple[Any, int]]]

#: The number of elements, of arrays of structs and strings, that a stepwise reader reads in one step: some 100 µs.
ELEMENTS_OF_STEP: Final = 100


@once
def reader_of(cls: type[Any], version: int) -> Reader:
    """The compiled reader of `cls` in `version`; LookupError if there is no such version."""
    return _Compiler(plan_of(cls, version)).compile(f"reader of {cls.__name__} v{version}")


@once
def stepwise_reader_of(cls: type[Any], version: int) -> StepwiseReader:
    """Return the compiled reader of `cls` in `version` that reads in steps. The bytes must not change in between."""
    return _Compiler(plan_of(cls, version), stepwise=True).compile(
        f"stepwise reader of {cls.__name__} v{version}"
    )


_HELPERS = (
    read_uvarint,
    rest_of_uvarint,
    skip_tags,
    skip_tags_in_steps,
    bad_length,
    bad_count,
    bad_tag,
    uuid_of,
    uuids_of,
    uuids_in_steps,
    utf_8_decode,
    unpack_from,
)


class _Compiler:
    """Generates and compiles the reader of one message class in one version.

    Consecutive fields of fixed size (a run) are unpacked in one call, directly into the attributes, together with
    the length that follows, or its first byte.
    """

    def __init__(self, plan: StructPlan, *, stepwise: bool = False) -> None:
        self._plan = plan
        self._stepwise = stepwise
        self._source = FunctionSource(f"def read(data, p, budget{', parts' if stepwise else ''}):")
        self._source.globals.update({helper.__name__: helper for helper in _HELPERS}, new=object.__new__)
        #: Fixed-size fields not unpacked yet: `struct` codes, targets, and the statements after the unpacking.
        self._codes = ""
        self._targets: list[str] = []
        self._afterwards: list[str] = []

    def compile(self, title: str) -> Callable[..., Any]:
        """Generate and compile the reader of the plan."""
        source = self._source
        source.line("size = len(data)")
        if self._stepwise:
            source.line(f"left = {ELEMENTS_OF_STEP}; parts.append(part := [])")
        message = self._struct(self._plan)
        self._flush()
        source.line(f"return {message}, p")
        if self._stepwise:
            source.line("yield")  # never reached: makes a generator of a reader without arrays, too
        return source.compile("read", title)

    def _struct(self, plan: StructPlan) -> str:
        """Read one struct; returns the name of the variable that holds it. May leave a run unflushed."""
        source = self._source
        struct = source.name("m")
        # A slotted object without __init__, assigned field by field: half the cost of the keyword call.
        source.line(f"{struct} = new({source.refer('C', plan.cls)})")
        for name, default in (*plan.absent, *((field.name, field.default) for field in plan.tagged)):
            source.line(f"{struct}.{name} = {self._default(default)}")
        for field in plan.fields:
            self._value(field, f"{struct}.{field.name}", plan.is_flexible)
        if plan.is_flexible:
            self._tags(plan, struct)
        return struct

    def _default(self, default: Callable[[], Any]) -> str:
        value = default()
        if isinstance(value, list):
            return "[]"
        if value is None or isinstance(value, int | float | str | bytes):
            return repr(value)
        if isinstance(value, UUID):
            return self._source.refer("default", value)
        return f"{self._source.refer('default', default)}()"

    def _tags(self, plan: StructPlan, struct: str) -> None:
        source = self._source
        count = self._uvarint(small=True)
        with source.block(f"if {count}:"):
            source.line(f"if {count} > 127: {count}, p = rest_of_uvarint(data, p, {count})")
            if not plan.tagged:
                skip = "yield from skip_tags_in_steps" if self._stepwise else "skip_tags"
                source.line(f"p, budget = {skip}(data, p, {count}, budget)")
                return
            tag, end = source.name("tag"), source.name("end")
            source.line(f"budget -= {count}")
            source.line(f"if budget < 0 or {count} > (size - p) // 2: bad_count('tagged fields', {count})")
            with source.block(f"for _ in range({count}):"):
                self._step()
                source.line(f"{tag} = data[p]; {end} = data[p + 1]")
                with source.block(f"if {tag} > 127 or {end} > 127:"):
                    source.line(f"{tag}, p = read_uvarint(data, p)")
                    source.line(f"{end}, p = read_uvarint(data, p)")
                with source.block("else:"):
                    source.line("p += 2")
                source.line(f"{end} += p")
                word = "if"
                for field in plan.tagged:
                    with source.block(f"{word} {tag} == {field.tag}:"):
                        self._value(field, f"{struct}.{field.name}", plan.is_flexible)
                        self._flush()
                    word = "elif"
                with source.block("else:"):
                    source.line(f"if {end} > size: bad_tag({tag})")
                    source.line(f"p = {end}")

    def _value(self, field: FieldPlan, target: str, is_flexible: bool) -> None:
        """Read a field's value into `target`."""
        if field.is_array:
            self._array(field, target, is_flexible)
        elif isinstance(field.kind, StructPlan):
            self._nested(field, field.kind, target)
        elif field.kind in FIXED:
            self._fixed(field.kind, target)
        else:
            self._sized(field, target, is_flexible)

    def _fixed(self, kind: str, target: str) -> None:
        self._codes += FIXED[kind][0]
        self._targets.append(target)
        if kind == "uuid":
            self._afterwards.append(f"{target} = uuid_of({target})")

    def _flush(self) -> None:
        """Unpack the pending fixed-size fields."""
        if not self._codes:
            return
        source = self._source
        size = sum(_SIZES[code] for code in self._codes.replace("16s", "s"))
        unpack = source.struct(self._codes, "unpack_from")
        source.line(f"{', '.join(self._targets)}, = {unpack}(data, p)")
        source.line(f"p += {size}")
        for line in self._afterwards:
            source.line(line)
        self._codes, self._targets, self._afterwards = "", [], []

    def _uvarint(self, *, small: bool = False) -> str:
        """Read an unsigned varint into a new variable; its first byte is unpacked with the run before it.

        `small`: the caller handles varints longer than one byte.
        """
        source = self._source
        number = source.name("n")
        if self._codes:
            self._codes += "B"
            self._targets.append(number)
            self._flush()
        else:
            source.line(f"{number} = data[p]")
            source.line("p += 1")
        if not small:
            source.line(f"if {number} > 127: {number}, p = rest_of_uvarint(data, p, {number})")
        return number

    def _length(self, is_flexible: bool, code: str) -> str:
        """Read a length (-1 or less for null) into a new variable."""
        source = self._source
        if is_flexible:
            number = self._uvarint()
            source.line(f"{number} -= 1")
            return number
        number = source.name("n")
        self._codes += code
        self._targets.append(number)
        self._flush()
        return number

    def _sized(self, field: FieldPlan, target: str, is_flexible: bool) -> None:
        """Read a string, bytes or records."""
        source = self._source
        kind = str(field.kind)
        length = self._length(is_flexible, "h" if LENGTH_BYTES[kind] == 2 else "i")
        end = source.name("end")
        source.line(f"{end} = p + {length}")
        too_long = f"{length} > {MAX_STRING_BYTES} or " if kind == "string" and is_flexible else ""
        wrong = f"{too_long}{end} > size"
        value = {
            "string": f"utf_8_decode(data[p:{end}], {LENIENT!r}, True)[0]",
            "bytes": f"bytes(data[p:{end}])",
            "records": f"data[p:{end}]",
        }[kind]
        if field.is_nullable:
            with source.block(f"if {length} < 0:"):
                source.line(f"{target} = None")
            with source.block("else:"):
                source.line(f"if {wrong}: bad_length({field.name!r}, {length})")
                source.line(f"{target} = {value}")
                source.line(f"p = {end}")
        else:
            source.line(f"if {length} < 0 or {wrong}: bad_length({field.name!r}, {length})")
            source.line(f"{target} = {value}")
            source.line(f"p = {end}")

    def _nested(self, field: FieldPlan, plan: StructPlan, target: str) -> None:
        source = self._source
        if not field.is_nullable:
            nested = self._struct(plan)
            source.line(f"{target} = {nested}")
            return
        # KIP-893: one byte, negative for null, before a struct that may be null; 0 for null in a tagged field.
        is_null = "< 0" if field.tag is None else "== 0"
        marker = source.name("n")
        self._codes += "b"
        self._targets.append(marker)
        self._flush()
        with source.block(f"if {marker} {is_null}:"):
            source.line(f"{target} = None")
        with source.block("else:"):
            nested = self._struct(plan)
            self._flush()
            source.line(f"{target} = {nested}")

    def _array(self, field: FieldPlan, target: str, is_flexible: bool) -> None:
        source = self._source
        count = self._length(is_flexible, "i")
        smallest = max(1, smallest_bytes(element_of(field), is_flexible))
        if field.is_nullable:
            with source.block(f"if {count} < 0:"):
                source.line(f"{target} = None")
            with source.block("else:"):
                self._elements(field, target, count, smallest, is_flexible)
        else:
            source.line(f"if {count} < 0: bad_count({field.name!r}, {count})")
            self._elements(field, target, count, smallest, is_flexible)

    def _elements(self, field: FieldPlan, target: str, count: str, smallest: int, is_flexible: bool) -> None:
        source = self._source
        source.line(f"budget -= {count}")
        remaining = "size - p" if smallest == 1 else f"(size - p) // {smallest}"
        source.line(f"if budget < 0 or {count} > {remaining}: bad_count({field.name!r}, {count})")
        if isinstance(field.kind, str) and field.kind in FIXED:
            code, size = FIXED[field.kind]
            if field.kind == "uuid":
                uuids = "yield from uuids_in_steps" if self._stepwise else "uuids_of"
                source.line(f"{target} = {uuids}(data, p, {count}{', parts' if self._stepwise else ''})")
            else:
                unpackers = few_unpackers(code)
                few = f"{source.refer('few', unpackers)}[{count}](data, p)"
                many = f'unpack_from(f">{{{count}}}{code}", data, p)'
                source.line(f"{target} = [*({few} if {count} < {len(unpackers)} else {many})]")
            source.line(f"p += {size} * {count}" if size > 1 else f"p += {count}")
            return
        items = source.name("items")
        source.line(f"{target} = {items} = []")
        if self._stepwise:
            source.line(f"if {count} > {MANY_ELEMENTS}: parts.append({items})")
        with source.block(f"for _ in range({count}):"):
            self._step()
            if isinstance(field.kind, StructPlan):
                item = self._struct(field.kind)
                self._flush()
            else:
                item = source.name("item")
                self._value(element_of(field), item, is_flexible)
            source.line(f"{items}.append({item})")
            if self._stepwise:
                source.line(f"part.append({item})")

    def _step(self) -> None:
        """Yield before the next element if the step has had its elements."""
        if self._stepwise:
            with self._source.block("if not left:"):
                self._source.line(f"left = {ELEMENTS_OF_STEP}; parts.append(part := [])")
                self._source.line("yield")
            self._source.line("left -= 1")


_SIZES = {"s": 16} | dict(FIXED.values()) | {"B": 1}
