"""Scenario files: commands, a line `----`, and what came of them; blocks are separated by empty lines."""

from collections.abc import Callable
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what scenario files now come to")


@pytest.fixture
def play(request: pytest.FixtureRequest) -> Callable[[Path, Callable[[str], list[str]]], None]:
    """Run a file's commands through a function from a command to its lines, and compare."""

    def run(path: Path, command: Callable[[str], list[str]]) -> None:
        text = path.read_text()
        blocks = [_play_block(block, command) for block in text.rstrip("\n").split("\n\n")]
        played = "\n\n".join(blocks) + "\n"
        if request.config.getoption("--rewrite"):
            path.write_text(played)
        else:
            assert played == text, path

    return run


def _play_block(block: str, command: Callable[[str], list[str]]) -> str:
    if "\n----" not in block:  # a comment
        assert all(line.startswith("#") for line in block.splitlines()), block
        return block
    head, _, _ = block.partition("\n----")
    lines = [head, "----"]
    for line in head.splitlines():
        if not line.startswith("#"):
            lines += command(line)
    return "\n".join(lines)
