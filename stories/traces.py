"""The trace of a story with its planted bugs, and the index of all."""

from functools import cache

from ottla.stories import catalog, planting, script
from ottla.stories.catalog import Story
from ottla.stories.hour import lessons
from ottla.stories.recording import record
from ottla.stories.trace import Entry, Index, Trace


def trace_of(story: Story) -> Trace:
    """Play a story, and once more with each bug that it shows."""
    trace = trace_of_text(story.name, story.text)
    trace.planted = [
        planting.planted(story.name, story.text, bug, story.new_stage) for bug in planting.bugs_of(story.name)
    ]
    return trace


def trace_of_text(name: str, text: str) -> Trace:
    """Play a text, whether it is a story's own or a changed one, on the stage of the story's room."""
    story = Story(name, text)
    title = story.title
    steps = record(text, story.new_stage())
    return Trace(name=name, title=title, kips=script.kips(text), text=text, steps=steps)


def index(*, run: str | None = None) -> Index:
    """Return the index of all stories, none of which is played for that; `run`: where a text is posted to be played."""
    stories = [catalog.story(name) for name in catalog.names()]
    commands = {story.name: [each.text for each in script.commands(story.text)] for story in stories}
    return Index(
        stories=[
            Entry(
                name=story.name,
                room=story.room,
                title=story.title,
                kips=script.kips(story.text),
                steps=len(commands[story.name]),
                planted=[bug.name for bug in planting.bugs_of(story.name)],
            )
            for story in stories
        ],
        hour=lessons(commands),
        run=run,
    )


@cache
def all_traces() -> tuple[Trace, ...]:
    """Return the traces of all stories, which are played once."""
    return tuple(trace_of(catalog.story(name)) for name in catalog.names())
