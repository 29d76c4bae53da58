"""The trace of a story with its planted bugs, and the index of all."""

import tomllib
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from ottla.stories import catalog, planting, script
from ottla.stories.catalog import Story
from ottla.stories.recording import record
from ottla.stories.trace import Entry, Index, Trace


def trace_of(story: Story) -> Trace:
    """Play a story, and once more with each bug that it shows."""
    steps = record(story.text, story.new_stage())
    bugs = planting.bugs_of(story.name)
    return Trace(
        name=story.name,
        title=story.title,
        kips=script.kips(story.text),
        text=story.text,
        steps=steps,
        planted=[planting.planted(story.name, story.text, bug) for bug in bugs],
    )


def index_of(traces: Iterable[Trace], *, run: str | None = None) -> Index:
    """Return the index of these traces."""
    return Index(
        stories=[
            Entry(
                name=trace.name,
                room=trace.name.partition("/")[0],
                title=trace.title,
                kips=trace.kips,
                steps=len(trace.steps),
                planted=[each.name for each in trace.planted],
            )
            for trace in traces
        ],
        hour=hour(),
        run=run,
    )


def all_traces() -> list[Trace]:
    """Return the traces of all stories."""
    return [trace_of(catalog.story(name)) for name in catalog.names()]


def hour() -> list[dict[str, Any]]:
    """Return the guided hour, which `hour.toml` has; empty without the file."""
    file = files("ottla.stories").joinpath("hour.toml")
    found: list[dict[str, Any]] = tomllib.loads(file.read_text())["hour"] if file.is_file() else []
    return found
