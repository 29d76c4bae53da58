"""The files of Ottla's pages: the live page of a broker, and the player of the KIPs' stories.

They are complete as they are: no build step, no framework, nothing from a network. A page works when its folder is
opened from a disk, too. `README.md` has the map.
"""

from collections.abc import Iterator
from importlib import resources
from pathlib import PurePath

_CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}


def files() -> Iterator[tuple[str, str, bytes]]:
    """(name, content type, content) of every file, by name."""
    for file in sorted(resources.files(__name__).iterdir(), key=lambda each: each.name):
        content_type = _CONTENT_TYPES.get(PurePath(file.name).suffix)
        if content_type is not None:
            yield file.name, content_type, file.read_bytes()
