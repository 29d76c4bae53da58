"""A slow writer straight from a plan, with foreign tagged fields in every struct: what a newer peer sends."""

import struct

from ottla.protocol.plan import FIXED, StructPlan
from ottla.protocol.varint import encode_uvarint


def walk(plan: StructPlan, message, *, foreign=()):
    """The message's bytes, every tagged field written; `foreign` = (tag, value) put into each struct."""
    parts = [value(field, getattr(message, field.name), plan.is_flexible, foreign) for field in plan.fields]
    if plan.is_flexible:
        tags = dict(foreign)
        for field in plan.tagged:
            content = getattr(message, field.name)
            # KIP-893: null in a tagged struct is 0.
            is_null_struct = content is None and isinstance(field.kind, StructPlan) and not field.is_array
            tags[field.tag] = b"\0" if is_null_struct else value(field, content, True, foreign)
        parts.append(encode_uvarint(len(tags)))
        for tag in sorted(tags):
            parts += [encode_uvarint(tag), encode_uvarint(len(tags[tag])), tags[tag]]
    return b"".join(parts)


def value(field, content, is_flexible, foreign):
    if not field.is_array:
        return one(field, content, is_flexible, foreign, is_nullable=field.is_nullable)
    if content is None:
        return b"\0" if is_flexible else b"\xff\xff\xff\xff"
    count = encode_uvarint(len(content) + 1) if is_flexible else struct.pack(">i", len(content))
    return count + b"".join(one(field, item, is_flexible, foreign, is_nullable=False) for item in content)


def one(field, content, is_flexible, foreign, *, is_nullable):
    if isinstance(field.kind, StructPlan):
        if is_nullable:
            return b"\xff" if content is None else b"\x01" + walk(field.kind, content, foreign=foreign)
        return walk(field.kind, content, foreign=foreign)
    if field.kind == "uuid":
        return content.bytes
    if field.kind in FIXED:
        return struct.pack(">" + FIXED[field.kind][0], content)
    code = ">h" if field.kind == "string" else ">i"
    if content is None:
        return b"\0" if is_flexible else struct.pack(code, -1)
    data = content.encode() if isinstance(content, str) else bytes(content)
    return (encode_uvarint(len(data) + 1) if is_flexible else struct.pack(code, len(data))) + data
