"""`ottla play`: a story in the terminal, step by step forwards and backwards, or as a page with `--serve`."""

import shutil
import sys
from collections.abc import Iterator, Sequence

import click

from ottla.stories import catalog, planting
from ottla.stories.quiet import quiet
from ottla.stories.script import StoryError
from ottla.stories.serving import StoryServer
from ottla.stories.terminal import step_lines
from ottla.stories.trace import Step
from ottla.stories.traces import trace_of_text

_KEYS = "space, n, right: next   b, p, left: back   g, G: first, last   q: quit"
#: Keys as terminals send them, by where they lead.
_NEXT = frozenset({" ", "n", "l", "j", "\r", "\n", "\x1b[C", "\x1b[B", "\x1bOC", "\x1bOB"})
_BACK = frozenset({"b", "p", "h", "k", "\x7f", "\x1b[D", "\x1b[A", "\x1bOD", "\x1bOA"})
_FIRST = frozenset({"g", "\x1b[H", "\x1bOH"})
_LAST = frozenset({"G", "\x1b[F", "\x1bOF"})
_QUIT = frozenset({"q", "\x03", "\x04", "\x1b"})


@click.command("play")
@click.argument("name", required=False, metavar="[STORY]")
@click.option("--all", "is_all", is_flag=True, help="Print all steps at once, as without a terminal.")
@click.option("--bug", metavar="NAME", help="Play with this planted bug.")
@click.option(
    "--serve", is_flag=True, help="Serve a page with all stories on 127.0.0.1, where texts can be edited."
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of --serve; 0 is any free one.")
def play(name: str | None, is_all: bool, bug: str | None, serve: bool, port: int) -> None:
    """Play a story of the KIPs, as lineage/scenario_2; without a name, list all.

    The steps are those of the scenario tests: real replicas, controllers, quorums and groups, the messages between
    them, and the rule and line of code behind each decision.
    """
    if serve:
        _serve(port)
    elif name is None:
        for line in _list():
            click.echo(line)
    else:
        _play(name, bug, is_all=is_all)


def _serve(port: int) -> None:
    try:
        server = StoryServer(port)
    except OSError as error:
        raise click.ClickException(f"--port {port}: {error.strerror}; 0 takes any free port") from error
    click.echo(f"The stories are played at {server.url} until Ctrl-C.")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        click.echo("")
    finally:
        server.server_close()


def _list() -> Iterator[str]:
    names = catalog.names()
    width = max(map(len, names))
    for room, each in catalog.ROOMS.items():
        yield each.title
        for name in names:
            story = catalog.story(name)
            if story.room == room:
                bugs = ", ".join(bug.name for bug in planting.bugs_of(name))
                yield f"  {name:<{width}}  {story.title}{f' [--bug {bugs}]' if bugs else ''}"
        yield ""


def _play(name: str, bug: str | None, *, is_all: bool) -> None:
    try:
        story = catalog.story(name)
        with quiet():
            steps = _planted(story, bug) if bug else trace_of_text(story.name, story.text).steps
    except (catalog.UnknownStory, StoryError) as error:
        raise click.ClickException(str(error)) from error
    head = f"{story.name}{f' with {bug}' if bug else ''}: {story.title}"
    is_terminal = sys.stdout.isatty() and sys.stdin.isatty()
    if is_all or not is_terminal:
        click.echo(head)
        for number in range(len(steps)):
            click.echo("\n".join(_shown(steps, number, is_coloured=sys.stdout.isatty())))
    else:
        _walk(head, steps)


def _planted(story: catalog.Story, bug: str) -> list[Step]:
    found = {each.name: each for each in planting.bugs_of(story.name)}
    if bug not in found:
        known = f"its bugs are {', '.join(found)}" if found else "it shows none"
        raise click.BadParameter(f"{story.name} does not show {bug!r}: {known}", param_hint="--bug")
    return planting.planted(story.name, story.text, found[bug], story.new_stage).steps


def _walk(head: str, steps: Sequence[Step]) -> None:
    number = 0
    while True:
        click.clear()
        click.secho(head, bold=True)
        click.echo("\n".join(_shown(steps, number, is_coloured=True)))
        click.secho(f"\n{_KEYS}", dim=True)
        moved = _moved(click.getchar(), number, len(steps) - 1)
        if moved is None:
            return
        number = moved


def _moved(key: str, number: int, last: int) -> int | None:
    """Return the step that a key leads to; None: quit.

    >>> _moved("n", 3, 3), _moved("b", 3, 3), _moved("g", 3, 3), _moved("?", 3, 3), _moved("q", 3, 3)
    (3, 2, 0, 3, None)
    """
    if key in _QUIT:
        return None
    if key in _NEXT:
        return min(number + 1, last)
    if key in _BACK:
        return max(number - 1, 0)
    return 0 if key in _FIRST else last if key in _LAST else number


def _shown(steps: Sequence[Step], number: int, *, is_coloured: bool) -> Iterator[str]:
    step = steps[number]
    yield f"\n[{number + 1}/{len(steps)}, line {step.line}]"
    yield from step_lines(step, width=shutil.get_terminal_size().columns, is_coloured=is_coloured)
