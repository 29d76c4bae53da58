"""The static site of all stories: the player's files and the traces as scripts, which work from a folder, too.

A browser refuses to fetch JSON from a folder (file://), and not to load a classic script: so each trace is there
as `traces/ROOM/NAME.js`, an assignment, and on request beside it as JSON for other programs.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ottla import web
from ottla.stories.trace import Index, Trace, to_json
from ottla.stories.traces import index

#: The page of the player; the files of a broker's live page, which a site without a broker has not.
_PAGE: Final = "play.html"
_LIVE: Final = "live"


def trace_files(trace: Trace, *, with_json: bool) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of a trace's files."""
    data = as_json(trace)
    if with_json:
        yield f"traces/{trace.name}.json", data
    yield f"traces/{trace.name}.js", assigned(trace.name, data)


def assigned(name: str, data: bytes) -> bytes:
    """Return the script that gives the player a trace."""
    return f"ottla.traces[{json.dumps(name)}] = ".encode() + data + b";\n"


def index_files(found: Index, *, with_json: bool) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of the index's files."""
    data = as_json(found)
    if with_json:
        yield "traces/index.json", data
    yield "traces/index.js", b"ottla.index = " + data + b";\n"


def player_files() -> Iterator[tuple[str, str, bytes]]:
    """Yield the name, the content type and the content of the player's files; its page is `index.html`."""
    for name, content_type, data in web.files():
        if not name.startswith(_LIVE):
            yield "index.html" if name == _PAGE else name, content_type, data


def site_files(traces: Sequence[Trace], *, with_json: bool) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of every file of the site."""
    for name, _, data in player_files():
        yield name, data
    yield from index_files(index(), with_json=with_json)
    for trace in traces:
        yield from trace_files(trace, with_json=with_json)


def build(directory: Path, traces: Sequence[Trace], *, with_json: bool = False) -> int:
    """Write the site into a directory; returns its size in bytes."""
    size = 0
    for name, data in site_files(traces, with_json=with_json):
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        size += target.write_bytes(data)
    return size


def as_json(value: Trace | Index) -> bytes:
    """Return a trace, or the index, as JSON in one line of ASCII, which is an expression of JavaScript, too."""
    return json.dumps(to_json(value), separators=(",", ":")).encode()
