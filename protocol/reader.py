"""Compiled readers: bytes that nobody has vouched for, into messages.

One function is written and compiled for each (message class, version), with nested structs in line. It
believes no length before it has held it against the bytes that are there:

- an array has no more elements than the remaining bytes can hold, and all arrays and tagged fields of a
  message together no more than `MAX_ELEMENTS`: an element costs Python some hundred bytes, whatever it
  costs the sender (CVE-2026-111108);
- tags ascend strictly; those that this version does not know are skipped and forgotten (CVE-2026-111115);
- a string has at most `MAX_STRING_BYTES` bytes, all of them UTF-8; null stands only where it may.

Everything else that is wrong shows as IndexError or struct.error, and `protocol.codec` turns it into
MalformedMessage. Bytes behind the message are left alone: Kafka reads past them too.

Records are not copied: they are slices of the view that is read.
"""

from codecs import utf_8_decode
from collections.abc import Callable
from struct import unpack_from
from typing import Any, Final, NoReturn
from uuid import UUID, SafeUUID

from protocol.errors import MalformedMessage
from protocol.plan import FIXED, LENGTH_BYTES, FieldPlan, StructPlan, plan_of
from protocol.source import Source, once
from protocol.varint import read_uvarint

#: Array elements and tagged fields of one message, together: a request for 100,000 partitions has room.
MAX_ELEMENTS: Final = 500_000
#: The same for a response, which comes from a node that we chose to ask.
MAX_RESPONSE_ELEMENTS: Final = 20_000_000
#: Kafka's bound for every string.
MAX_STRING_BYTES: Final = 0x7FFF

#: read(view, position, elements allowed) -> (message, position behind it).
Reader = Callable[[memoryview, int, int], tuple[Any, int]]

_new_uuid = UUID.__new__
_set_int = UUID.int.__set__  # type: ignore[attr-defined, misc]
_set_is_safe = UUID.is_safe.__set__  # type: ignore[attr-defined, misc]
_UNKNOWN = SafeUUID.unknown
_int_from_bytes = int.from_bytes


def uuid_of(data: bytes | memoryview) -> UUID:
    """The UUID of 16 bytes: what `UUID(bytes=...)` gives, in a quarter of its 1.5 microseconds."""
    uuid = _new_uuid(UUID)
    _set_int(uuid, _int_from_bytes(data, "big"))
    _set_is_safe(uuid, _UNKNOWN)
    return uuid


def uuids_of(data: memoryview, position: int, count: int) -> list[UUID]:
    """`count` UUIDs from `position` on; that so many bytes are there has been checked."""
    return [uuid_of(data[at : at + 16]) for at in range(position, position + 16 * count, 16)]


@once
def reader_of(cls: type[Any], version: int) -> Reader:
    """The compiled reader of `cls` in `version`; LookupError if there is no such version."""
    return _Compiler(plan_of(cls, version)).compile(f"reader of {cls.__name__} v{version}")


def longer(data: memoryview, position: int, first: int) -> tuple[int, int]:
    """The rest of a varint whose first byte, before `position`, says that there is more.

    Unrolled for two and three bytes, the lengths of most record batches: half a microsecond of a Produce.
    """
    second = data[position]
    if second < 0x80:
        return first & 0x7F | second << 7, position + 1
    third = data[position + 1]
    if third < 0x80:
        return first & 0x7F | (second & 0x7F) << 7 | third << 14, position + 2
    return read_uvarint(data, position - 1)


def skip_tags(data: memoryview, position: int, count: int, budget: int) -> tuple[int, int]:
    """Pass over `count` tagged fields of which none is known: (position behind them, budget left)."""
    budget -= count
    last = -1
    size = len(data)
    if budget < 0 or count > (size - position) // 2:
        bad_count("tagged fields", count)
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        length, position = read_uvarint(data, position)
        position += length
        if tag <= last or position > size:
            bad_tag(tag)
        last = tag
    return position, budget


def bad_length(name: str, length: int) -> NoReturn:
    """A string or bytes value that is null, too long, or longer than what is left."""
    raise MalformedMessage(f"{name} has length {length}")


def bad_count(name: str, count: int) -> NoReturn:
    """An array that is null, or has more elements than the rest of the message can hold."""
    raise MalformedMessage(f"{name} has {count} elements")


def bad_tag(tag: int) -> NoReturn:
    """A tagged field out of order, or one whose value does not fill the size it states."""
    raise MalformedMessage(f"tagged field {tag} is out of order or out of bounds")


_HELPERS = (
    read_uvarint,
    longer,
    skip_tags,
    bad_length,
    bad_count,
    bad_tag,
    uuid_of,
    uuids_of,
    utf_8_decode,
    unpack_from,
)


class _Compiler:
    """Writes one reader.

    Fields of fixed size that follow each other are unpacked at once, straight into the attributes; the
    length that comes next, or its first byte, comes along with them.
    """

    def __init__(self, plan: StructPlan) -> None:
        self._plan = plan
        self._source = Source("def read(data, p, budget):")
        self._source.globals.update({helper.__name__: helper for helper in _HELPERS}, new=object.__new__)
        #: Fixed-size fields not unpacked yet: `struct` codes, targets, and what to do when they are read.
        self._codes = ""
        self._targets: list[str] = []
        self._afterwards: list[str] = []

    def compile(self, title: str) -> Reader:
        """The reader of the plan."""
        source = self._source
        source.line("size = len(data)")
        message = self._struct(self._plan)
        self._flush()
        source.line(f"return {message}, p")
        return source.compile("read", title)

    def _struct(self, plan: StructPlan) -> str:
        """Read one struct; returns the name of the variable that holds it. May leave a run unflushed."""
        source = self._source
        struct = source.name("m")
        # A slotted object without __init__, filled field by field: half the cost of the keyword call.
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
            source.line(f"if {count} > 127: {count}, p = longer(data, p, {count})")
            if not plan.tagged:
                source.line(f"p, budget = skip_tags(data, p, {count}, budget)")
                return
            last, tag, end = source.name("last"), source.name("tag"), source.name("end")
            source.line(f"budget -= {count}")
            source.line(f"if budget < 0 or {count} > (size - p) // 2: bad_count('tagged fields', {count})")
            source.line(f"{last} = -1")
            with source.block(f"for _ in range({count}):"):
                source.line(f"{tag}, p = read_uvarint(data, p)")
                source.line(f"{end}, p = read_uvarint(data, p)")
                source.line(f"{end} += p")
                source.line(f"if {tag} <= {last} or {end} > size: bad_tag({tag})")
                source.line(f"{last} = {tag}")
                word = "if"
                for field in plan.tagged:
                    with source.block(f"{word} {tag} == {field.tag}:"):
                        self._value(field, f"{struct}.{field.name}", plan.is_flexible)
                        self._flush()
                    word = "elif"
                with source.block("else:"):
                    source.line(f"p = {end}")
                source.line(f"if p != {end}: bad_tag({tag})")

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
        """Unpack the fixed-size fields that have gathered."""
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
        """Read an unsigned varint into a new variable; its first byte comes with the run before it.

        `small`: the caller sees to what is longer than one byte.
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
            source.line(f"if {number} > 127: {number}, p = longer(data, p, {number})")
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
            "string": f"utf_8_decode(data[p:{end}], None, True)[0]",
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
        # KIP-893: one byte, negative for null, before a struct that may be null.
        marker = source.name("n")
        self._codes += "b"
        self._targets.append(marker)
        self._flush()
        with source.block(f"if {marker} < 0:"):
            source.line(f"{target} = None")
        with source.block("else:"):
            nested = self._struct(plan)
            self._flush()
            source.line(f"{target} = {nested}")

    def _array(self, field: FieldPlan, target: str, is_flexible: bool) -> None:
        source = self._source
        count = self._length(is_flexible, "i")
        smallest = max(1, field.smallest_element_bytes - self._compact_saving(field, is_flexible))
        if field.is_nullable:
            with source.block(f"if {count} < 0:"):
                source.line(f"{target} = None")
            with source.block("else:"):
                self._elements(field, target, count, smallest, is_flexible)
        else:
            source.line(f"if {count} < 0: bad_count({field.name!r}, {count})")
            self._elements(field, target, count, smallest, is_flexible)

    @staticmethod
    def _compact_saving(field: FieldPlan, is_flexible: bool) -> int:
        """An empty string takes one byte where lengths are compact."""
        return LENGTH_BYTES[str(field.kind)] - 1 if is_flexible and field.kind in LENGTH_BYTES else 0

    def _elements(self, field: FieldPlan, target: str, count: str, smallest: int, is_flexible: bool) -> None:
        source = self._source
        source.line(f"budget -= {count}")
        remaining = "size - p" if smallest == 1 else f"(size - p) // {smallest}"
        source.line(f"if budget < 0 or {count} > {remaining}: bad_count({field.name!r}, {count})")
        if isinstance(field.kind, str) and field.kind in FIXED:
            code, size = FIXED[field.kind]
            if field.kind == "uuid":
                source.line(f"{target} = uuids_of(data, p, {count})")
            else:
                source.line(f'{target} = [*unpack_from(f">{{{count}}}{code}", data, p)]')
            source.line(f"p += {size} * {count}" if size > 1 else f"p += {count}")
            return
        items = source.name("items")
        source.line(f"{target} = {items} = []")
        with source.block(f"for _ in range({count}):"):
            if isinstance(field.kind, StructPlan):
                item = self._struct(field.kind)
                self._flush()
            else:
                item = source.name("item")
                element = FieldPlan(
                    name=field.name,
                    kind=field.kind,
                    is_array=False,
                    is_nullable=False,
                    tag=None,
                    default=field.default,
                )
                self._value(element, item, is_flexible)
            source.line(f"{items}.append({item})")


_SIZES = {"s": 16} | dict(FIXED.values()) | {"B": 1}
