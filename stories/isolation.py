"""Runs of texts that a visitor has edited: in a process of its own each, with limits of time, memory, size and steps.

A text may never end (`1000000 h pass`) or need any amount of memory. The processes are forked from one that has
imported the stages (multiprocessing's fork server), so that a run begins within milliseconds.
"""

import multiprocessing
import resource
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

from ottla.stories import script
from ottla.stories.catalog import ROOMS, UnknownStory, story
from ottla.stories.quiet import quiet
from ottla.stories.script import StoryError
from ottla.stories.site import as_json
from ottla.stories.traces import trace_of, trace_of_text

_MODULE: Final = "ottla.stories.isolation"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The bounds of one run."""

    text_bytes: int = 64 * 1024
    steps: int = 300
    duration_s: float = 20.0
    memory_bytes: int = 2 << 30
    trace_bytes: int = 32 << 20


class Isolation:
    """Plays texts in processes of their own."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([_MODULE])

    def trace(self, name: str) -> bytes:
        """Return the trace of a story and its planted bugs, as JSON; UnknownStory, StoryError."""
        story(name)  # raises UnknownStory
        return self._run(name, None)

    def run(self, name: str, text: str) -> bytes:
        """Return the trace of a text on the stage of the story's room; UnknownStory, StoryError."""
        if name.partition("/")[0] not in ROOMS:
            raise UnknownStory(name)
        limits = self.limits
        # JSON's escapes can write half a character (a surrogate), which is no text.
        if not _is_unicode(name):
            raise UnknownStory(name)
        for line, each in enumerate(text.split("\n"), start=1):
            if not _is_unicode(each):
                raise StoryError(line, "the line has a surrogate, which is no character of Unicode")
        if len(text.encode()) > limits.text_bytes:
            raise StoryError(1, f"a story has at most {limits.text_bytes} bytes")
        script.title(text)
        commands = script.commands(text)
        if len(commands) > limits.steps:
            line = commands[limits.steps].line
            raise StoryError(
                line, f"a story has at most {limits.steps} commands, and this one {len(commands)}"
            )
        return self._run(name, text)

    def _run(self, name: str, text: str | None) -> bytes:
        limits = self.limits
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_play, args=(sender, name, text, limits), daemon=True)
        process.start()
        sender.close()
        try:
            if not receiver.poll(limits.duration_s):
                raise StoryError(1, f"the story takes longer than {limits.duration_s:.0f} s")
            kind, line, data = receiver.recv()
        except EOFError:
            raise StoryError(1, "the story needs more memory or time than it may have") from None
        finally:
            process.kill()
            process.join()
            process.close()
            receiver.close()
        if kind == "error":
            raise StoryError(line, data.decode())
        assert isinstance(data, bytes)
        return data


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _play(sender: Connection, name: str, text: str | None, limits: Limits) -> None:
    """Play in the child, and send (kind, line, bytes)."""
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    seconds = int(limits.duration_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    try:
        with quiet():
            trace = trace_of(story(name)) if text is None else trace_of_text(name, text)
        data = as_json(trace)
    except StoryError as error:
        sender.send(("error", error.line, error.message.encode()))
        return
    if len(data) > limits.trace_bytes:
        message = f"the trace of the story has {len(data)} bytes, more than {limits.trace_bytes}"
        sender.send(("error", 1, message.encode()))
    else:
        sender.send(("trace", 0, data))
