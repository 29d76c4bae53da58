"""The trace of a story with its planted bugs, and the index of all."""

from collections.abc import Sequence

from ottla.stories import catalog, planting, script
from ottla.stories.catalog import Story
from ottla.stories.hour import lessons
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


def index_of(traces: Sequence[Trace], *, run: str | None = None) -> Index:
    """Return the index of these traces."""
    by_name = {trace.name: trace.steps for trace in traces}
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
        hour=lessons(by_name),
        run=run,
    )


def all_traces() -> list[Trace]:
    """Return the traces of all stories."""
    return [trace_of(catalog.story(name)) for name in catalog.names()]
