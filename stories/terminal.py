"""A step of a story as lines of a terminal: the command, what it prints, messages, rules, and the logs as cells.

A leader   e1  m1:e0 m3:e1 | m4:e1    ISR A B
^ the high watermark: what is before it is committed
"""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

import click

from ottla.stories.trace import Cell, Event, Group, Message, Node, Partition, Replica, Step, Tier

#: The background of each epoch's cells, in turn.
_COLOURS: Final = ("cyan", "yellow", "green", "magenta", "blue", "red")
_MAX_WIDTH: Final = 120


def step_lines(step: Step, *, width: int, is_coloured: bool) -> Iterator[str]:
    """Yield the lines of a step."""
    width = min(width, _MAX_WIDTH)
    if step.comment:
        yield from _wrapped(f"# {step.comment}", width, "# ")
    yield _style(f"{step.command}", is_coloured, bold=True)
    yield from (f"  {_visible(line)}" for line in step.says)
    for message in step.messages:
        yield _style(f"  {_message(message)}", is_coloured, dim=True)
    for event in step.events:
        yield from _event(event, width, is_coloured)
    yield ""
    yield from _state(step, is_coloured)


def _state(step: Step, is_coloured: bool) -> Iterator[str]:
    for replica in step.replicas or ():
        yield from _replica(replica, is_coloured)
    if step.tier is not None:
        yield from _tier(step.tier)
    if step.judgement is not None:
        if step.judgement.lost:
            yield _style(f"lost: {' '.join(map(_visible, step.judgement.lost))}", is_coloured, fg="red")
        if step.judgement.divergent_at is not None:
            yield _style(f"divergent at {step.judgement.divergent_at}", is_coloured, fg="red")
    for node in step.nodes or ():
        yield _node(node, is_coloured)
    if step.partition is not None:
        yield _partition(step.partition)
    if step.group is not None:
        yield from _group(step.group)


def _message(message: Message) -> str:
    fate = ", lost" if message.lost else ", delayed" if message.delayed else ""
    size = f"{message.api} v{message.version} {message.kind}, {message.frame_bytes} bytes{fate}"
    return f"{message.sender} => {message.receiver}  {size}"


def _event(event: Event, width: int, is_coloured: bool) -> Iterator[str]:
    kip = f"{event.kip}: " if event.kip else ""
    yield _style(f"  * {_visible(event.line)}", is_coloured, fg="blue")
    yield from _wrapped(f"    {kip}{event.rule}", width, "    ")
    yield _style(f"    {event.source}:{event.source_line}  {event.function}", is_coloured, dim=True)


def _replica(replica: Replica, is_coloured: bool) -> Iterator[str]:
    cells = _cells(replica.cells, replica.high_watermark, replica.log_end_offset, is_coloured)
    start = f" from {replica.local_log_start_offset}" if replica.local_log_start_offset else ""
    isr = f"   ISR {' '.join(replica.isr)}" if replica.isr and replica.state == "leader" else ""
    epoch = f"e{replica.leader_epoch}" if replica.leader_epoch >= 0 else "-"
    yield f"{replica.name:<3} {replica.state:<10} {epoch:<4}{start} {cells}{isr}"


def _cells(cells: Sequence[Cell], high_watermark: int | None, end: int, is_coloured: bool) -> str:
    """Return the records with `|` at the high watermark; `end`: where the log ends."""
    parts = []
    for cell in cells:
        if cell.offset == high_watermark:
            parts.append("|")
        text = f"{_visible(cell.value)}:e{cell.epoch}"
        colour = _COLOURS[cell.epoch % len(_COLOURS)]
        parts.append(_style(f" {text} " if is_coloured else text, is_coloured, bg=colour, fg="black"))
    if high_watermark == end:
        parts.append("|")
    return " ".join(parts) or "empty"


def _tier(tier: Tier) -> Iterator[str]:
    state = "" if tier.is_answering else ", which does not answer"
    yield f"remote tier{state}: {'empty' if not tier.copies else f'to {tier.end_offset}'}"
    for copy in tier.copies:
        epochs = " ".join(f"e{epoch}@{start}" for epoch, start in copy.epochs)
        yield f"  copy {copy.number} [{copy.start_offset}, {copy.end_offset}) {copy.state} by {copy.broker}, {epochs}"


def _node(node: Node, is_coloured: bool) -> str:
    cut = " (cut off)" if node.is_cut_off else ""
    cells = _cells(node.cells, node.high_watermark, node.log_end_offset, is_coloured)
    return f"{node.name:<3} {node.role:<12}{cut} e{node.epoch:<3} {cells}"


def _partition(partition: Partition) -> str:
    leader = "no leader" if partition.leader is None else f"leader {partition.leader}"
    rows = {"ISR": partition.isr, "ELR": partition.elr, "last known": partition.last_known}
    known = ", ".join(f"{name} {' '.join(map(str, ids))}" for name, ids in rows.items() if ids)
    return f"{leader} e{partition.leader_epoch}, {known}, active {' '.join(map(str, partition.active))}"


def _group(group: Group) -> Iterator[str]:
    yield f"{group.state}, generation {group.generation}, after {group.now_ms / 1000:g} s"
    for member in group.members:
        waits = f", waits for {member.waits}" if member.waits else ""
        assigned = f" {' '.join(map(_visible, member.assigned))}" if member.assigned else ""
        leads = " (leader)" if member.is_leader else ""
        yield f"  {member.name}{leads} {_visible(member.id) or 'without id'}{assigned}{waits}"


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(_visible(text), width, subsequent_indent=indent, drop_whitespace=True) or [""]


def _visible(text: str) -> str:
    r"""Return text without characters that would control the terminal.

    >>> _visible("m1\x1b[2J")
    'm1?[2J'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _style(
    text: str,
    is_coloured: bool,
    *,
    fg: str | None = None,
    bg: str | None = None,
    bold: bool | None = None,
    dim: bool | None = None,
) -> str:
    return click.style(text, fg=fg, bg=bg, bold=bold, dim=dim) if is_coloured else text
