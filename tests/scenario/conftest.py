"""Each story is a test: `pytest tests/scenario/lineage/scenario_2.txt` plays one, and shows how it differs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest._code import ExceptionInfo

from ottla.stories import catalog, script
from ottla.stories.recording import record

_REPLICAS = pytest.mark.logs("Fetch from broker", "below the high watermark")
#: The warnings that stories of a room provoke.
_WARNINGS = {
    "follower_fetch": pytest.mark.logs("Fetch from broker"),
    "lineage": _REPLICAS,
    "tiering": pytest.mark.logs(
        "Fetch from broker", "below the high watermark", "has failed, the next attempt", "copying stops"
    ),
    "tiering_followers": pytest.mark.logs(
        "Fetch from broker",
        "below the high watermark",
        "out of the leader's range",
        "removing all records",
        "the next attempt is in",
    ),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what scenario files now come to")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix == ".txt" and file_path.parent.name in catalog.ROOMS:
        return StoryFile.from_parent(parent, path=file_path)
    return None


class StoryDiffers(Exception):
    """A story that comes to something else than its file says; the text is the difference."""


class StoryTest(pytest.Function):
    def repr_failure(self, excinfo: ExceptionInfo[BaseException]) -> str:
        if isinstance(excinfo.value, StoryDiffers | script.StoryError):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))


class StoryFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        def play() -> None:
            self._play()

        story = StoryTest.from_parent(self, name="story", callobj=play)
        if (mark := _WARNINGS.get(self.path.parent.name)) is not None:
            story.add_marker(mark)
        yield story

    def _play(self) -> None:
        name = f"{self.path.parent.name}/{self.path.stem}"
        text = self.path.read_text()
        says = iter([step.says for step in record(text, catalog.Story(name, text).new_stage())])
        found = script.played(text, lambda _: next(says))
        if self.config.getoption("--rewrite"):
            self.path.write_text(found)
        elif found != text:
            raise StoryDiffers(script.difference(text, found, name=name))
