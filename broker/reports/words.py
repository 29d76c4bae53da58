"""Numbers, sizes and durations for a reader, as the commands and the page write them."""


def counted(count: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "member"), counted(2, "member")
    ('1 member', '2 members')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size_text(size_bytes: int) -> str:
    """A size for a reader.

    >>> size_text(1023), size_text(1536), size_text(5 * 2**30)
    ('1023 B', '1.5 KiB', '5.0 GiB')
    """
    size, units = float(size_bytes), ["TiB", "GiB", "MiB", "KiB"]
    if size < 1024:
        return f"{size_bytes} B"
    while size >= 1024 and units:
        size, unit = size / 1024, units.pop()
    return f"{size:.1f} {unit}"


def duration_text(duration_ms: int) -> str:
    """The two largest units of a duration.

    >>> duration_text(900), duration_text(61_000), duration_text(90 * 60_000), duration_text(49 * 3_600_000)
    ('0 s', '1 min 1 s', '1 h 30 min', '2 d 1 h')
    """
    seconds = duration_ms // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds % 60, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count) or "0 s"
