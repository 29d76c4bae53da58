"""The settings with which both sides are configured, and the places of their logs: the dimensions of a comparison.

Kafka's defaults are named in full, because `ottla broker` without a file and `ottla cluster up` have others.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

#: Name -> properties that every node of both sides gets.
SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "default": {
        "socket.send.buffer.bytes": "102400",
        "socket.receive.buffer.bytes": "102400",
        "replica.socket.receive.buffer.bytes": "65536",
    },
    # The operating system sizes the buffers. Numbers of threads stay as they are: they are enough for a few cores.
    "tuned": {
        "socket.send.buffer.bytes": "-1",
        "socket.receive.buffer.bytes": "-1",
        "replica.socket.receive.buffer.bytes": "-1",
    },
}
SETTINGS_WORDS: Final = {"default": "Kafka's defaults", "tuned": "tuned"}
DISK, TMPFS = "disk", "tmpfs"
PLACES: Final = (DISK, TMPFS)
_IN_MEMORY: Final = {"tmpfs", "ramfs"}


class WrongPlace(Exception):
    """A folder is not where it should be; the sentence says which one."""


def file_system_of(folder: Path) -> str:
    """Return the type of a folder's file system, as `df` names it."""
    command = ["df", "--output=fstype", str(folder)]
    _, found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return found


def place_of(file_system: str) -> str:
    """Return the one of PLACES on which such a file system is."""
    return TMPFS if file_system in _IN_MEMORY else DISK


def check_place(place: str, folder: Path, file_system: str) -> None:
    """Raise WrongPlace if `disk` would be in memory, or `tmpfs` on a disk."""
    if place_of(file_system) != place:
        raise WrongPlace(f"{folder} is on {file_system}: name another folder with --{place}.")
