"""The file format of stories: commands, a line `----`, and what came of them; blocks are separated by empty lines.

    # KIP-101, scenario 2: replica divergence on restart after multiple hard failures.

    # A comment of the block.
    A leads e0
    show
    ----
    A HW=0 empty

A block without `----` is a comment. The first line of a file is its title, and names the KIP, or the rule of
Kafka's that is in no KIP.
"""

import re
from collections.abc import Callable, Iterator
from difflib import unified_diff
from typing import NamedTuple

#: Plays one command: the lines that it prints.
Play = Callable[[str], list[str]]

_RULE = "----"
_KIP = re.compile(r"KIP-\d+")


class StoryError(Exception):
    """A story that cannot be played: the line of its text, from 1, and a sentence."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line
        self.message = message


class Command(NamedTuple):
    """A command: the number of its line, and of its block of commands, both from 1; the comment above it."""

    line: int
    block: int
    text: str
    comment: str | None


class Block(NamedTuple):
    """Lines up to the next empty one: the number of the first line, from 1, the head, and whether output follows."""

    line: int
    head: list[str]
    has_output: bool


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a story; StoryError for a block of commands that has no line `----`."""
    number = 1
    for part in text.rstrip("\n").split("\n\n"):
        lines = part.split("\n")
        has_output = _RULE in lines
        head = lines[: lines.index(_RULE)] if has_output else lines
        for at, line in enumerate(head):
            if not has_output and not line.startswith("#"):
                raise StoryError(
                    number + at, f"commands end with a line {_RULE}, which is missing behind {line!r}"
                )
        yield Block(number, head, has_output)
        number += len(lines) + 1


def commands(text: str) -> list[Command]:
    """Return the commands of a story with the comments above them, without the title and the output."""
    found: list[Command] = []
    comment: list[str] = []
    block = 0
    for line, head, has_output in blocks(text):
        block += has_output
        for number, each in enumerate(head, start=line):
            if each.startswith("#"):
                if number > 1:
                    comment.append(each.removeprefix("#").strip())
            else:
                found.append(Command(number, block, each, " ".join(comment) or None))
                comment = []
    return found


def title(text: str) -> str:
    """Return the first line without its `#`; StoryError if it is no comment."""
    first, _, _ = text.partition("\n")
    if not first.startswith("#"):
        raise StoryError(
            1, "the first line is a comment: the KIP, or the rule of Kafka's, that the story is about"
        )
    return first.removeprefix("#").strip()


def kips(text: str) -> list[str]:
    r"""Return the KIPs that a story names, those of its title first.

    >>> kips("# KIP-279 amends KIP-101.\n\n# As before KIP-279.")
    ['KIP-279', 'KIP-101']
    """
    return list(dict.fromkeys(_KIP.findall(text)))


def played(text: str, play: Play) -> str:
    """Return the text of a story with what its commands print now."""
    parts = []
    for block in blocks(text):
        lines = list(block.head)
        if block.has_output:
            lines.append(_RULE)
            for line in block.head:
                if not line.startswith("#"):
                    lines += play(line)
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def difference(expected: str, found: str, *, name: str) -> str:
    """Return the lines in which a story came out otherwise, with some lines around them; empty if there are none."""
    return "\n".join(
        unified_diff(
            expected.splitlines(),
            found.splitlines(),
            f"{name}: the file",
            f"{name}: as it is played now",
            lineterm="",
            n=4,
        )
    )
