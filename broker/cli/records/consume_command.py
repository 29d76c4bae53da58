"""`ottla consume`: records of topics as lines of text or of JSON, up to their end or without end.

Exit status: 0, or 2 if it could not be carried out. Ctrl-C and SIGTERM are ends like any other.
"""

import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from ottla.broker.cli.admin.resetting import Kind, Target
from ottla.broker.cli.bootstrap import CannotBeDone, ask_cluster, bootstrap_option, json_option
from ottla.broker.cli.output import as_json, sentence, standard_output, terminal_text
from ottla.broker.cli.parameters import PARTITION, time_ms
from ottla.broker.cli.records.formats import FormatError, Formats, Record, as_line, row_of
from ottla.broker.cli.records.produce_command import formats_of, with_formats
from ottla.broker.cli.records.starting import Range, ranges_of, target_of
from ottla.broker.cluster_client.client import ClusterClient
from ottla.broker.cluster_client.errors import ClusterError
from ottla.protocol.types import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cli.records.consuming import Consumption

#: The fields of a line of text, by the words of --show.
_FIELDS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
#: A consumer without a group needs a name for one nevertheless, in which it commits nothing.
_NO_GROUP: Final = "ottla-consume"


@click.command("consume", no_args_is_help=True)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@bootstrap_option
@click.option("--group", help="Consume as a member of this group, and commit what is consumed.")
@click.option("--from-beginning", is_flag=True, help="Begin at the start of the logs.")
@click.option("--offset", metavar="OFFSET", help="Begin at this offset; -N: at the last N; earliest; latest.")
@click.option("--timestamp", type=time_ms, metavar="TIME", help="Begin at the first record of this time.")
@click.option("--partition", "partitions", type=PARTITION, multiple=True,
              help="Consume this partition only; may be repeated.")  # fmt: skip
@click.option("--max-records", type=click.IntRange(1), metavar="COUNT", help="End after so many records.")
@click.option("--follow", "-f", "is_following", is_flag=True, help="Wait for further records, until Ctrl-C.")
@json_option
@click.option("--show", "fields", metavar="FIELD,...",
              help=f"The fields of a line of text: {', '.join(_FIELDS)}; by default value.")  # fmt: skip
@click.option("--separator", metavar="TEXT", help="What separates these fields; by default a tab.")
@with_formats
def consume(
    topics: tuple[str, ...],
    *,
    bootstrap: str,
    group: str | None,
    from_beginning: bool,
    offset: str | None,
    timestamp: int | None,
    partitions: tuple[int, ...],
    max_records: int | None,
    is_following: bool,
    is_json: bool,
    fields: str | None,
    separator: str | None,
    key_format: str,
    value_format: str,
) -> None:
    """Print the records of topics, of both tiers, up to the end that they have now.

    It begins at the start of the logs, with --follow at their end. A group begins where it has committed, and so only
    where it has not. TIME is as 2026-11-26T08:00 in UTC, with another zone as +01:00, or
    milliseconds since 1970.
    """
    from ottla.broker.cli.records.client import new_consumer
    from ottla.broker.cli.records.consuming import Consumption

    if from_beginning + (offset is not None) + (timestamp is not None) > 1:
        raise click.UsageError("Name only one of --from-beginning, --offset and --timestamp.")
    if group == "":
        raise click.UsageError("--group: the name is empty. Leave it out to consume without a group.")
    if group is not None and (offset is not None or timestamp is not None or partitions):
        raise click.UsageError(
            "--offset, --timestamp and --partition are for a consumer without --group: "
            "`ottla groups reset-offsets` moves a group."
        )
    if is_json and (fields is not None or separator is not None):
        raise click.UsageError("--show and --separator are for lines of text: leave them out with --json.")
    shown = _shown_fields(fields or "value")
    begins_at_end = is_following and not from_beginning
    target = _target(offset, timestamp, begins_at_end=begins_at_end)

    async def question(client: ClusterClient) -> Mapping[TopicPartition, Range]:
        return await ranges_of(client, list(dict.fromkeys(topics)), partitions, target)

    ranges = ask_cluster(bootstrap, question)
    for name, each in ranges.items():
        if each.note:
            click.echo(f"{name} begins at {each.start}: {each.note}.", err=True)
    consumer = new_consumer(
        bootstrap,
        {
            "group.id": _NO_GROUP if group is None else group,
            "auto.offset.reset": "latest" if begins_at_end else "earliest",
            "enable.auto.commit": group is not None,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
        },
    )
    consumption = Consumption(
        consumer, ends={name: each.end for name, each in ranges.items()}, is_following=is_following
    )
    if group is None:
        consumption.assign(ranges)
    else:
        consumption.subscribe(list(dict.fromkeys(topics)))
    line_of = _json_line if is_json else _text_line(shown, "\t" if separator is None else separator)
    formats = formats_of(key_format, value_format)
    try:
        with _ended_by_signals():
            _print_all(
                consumption,
                lambda name, at, record: line_of(name, at, record, formats),
                max_records=max_records,
                has_group=group is not None,
            )
    except ClusterError as error:
        raise CannotBeDone(str(error)) from None
    except KeyboardInterrupt:
        pass
    finally:
        consumption.close(has_group=group is not None)


def _target(offset: str | None, timestamp: int | None, *, begins_at_end: bool) -> Target:
    """Where the options begin, without a group. Raises CannotBeDone."""
    if timestamp is not None:
        return Target(Kind.TIME, timestamp)
    if offset is None:
        return Target(Kind.LATEST if begins_at_end else Kind.EARLIEST)
    try:
        return target_of(offset)
    except ClusterError as error:
        raise CannotBeDone(str(error)) from None


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGINT and SIGTERM, so that a group is left and its offsets are committed.

    A shell starts a program in the background with SIGINT ignored, which Python would keep.
    """
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_all(
    consumption: "Consumption",
    line_of: Callable[[TopicPartition, int, Record], str],
    *,
    max_records: int | None,
    has_group: bool,
) -> None:
    from ottla.broker.cli.records.client import Message
    from ottla.broker.cli.records.consuming import record_of_message

    def commit(written: Sequence[Message]) -> None:
        """Commit what has left this process: a pipe may break, and a disk be full."""
        for message in written if has_group else ():
            consumption.commit(message)

    out = standard_output()
    count = 0
    for batch in consumption.batches():
        written: list[Message] = []
        for message in batch:
            name, offset = (
                TopicPartition(message.topic() or "", message.partition() or 0),
                message.offset() or 0,
            )
            try:
                line = line_of(name, offset, record_of_message(message))
            except FormatError as error:
                out.flush()
                commit(written)
                raise ClusterError(f"{name}, offset {offset}: {sentence(str(error))}") from None
            out.write(line + "\n")
            written.append(message)
            count += 1
            if count == max_records:
                break
        out.flush()
        commit(written)
        if count == max_records:
            return


def _json_line(name: TopicPartition, offset: int, record: Record, formats: Formats) -> str:
    return as_json(row_of(name.topic, name.partition, offset, record, formats))


def _text_line(fields: list[str], separator: str) -> Callable[[TopicPartition, int, Record, Formats], str]:
    is_terminal = sys.stdout.isatty()

    def line(name: TopicPartition, offset: int, record: Record, formats: Formats) -> str:
        texts = {
            "topic": lambda: name.topic,
            "partition": lambda: str(name.partition),
            "offset": lambda: str(offset),
            "timestamp": lambda: "-" if record.timestamp_ms is None else str(record.timestamp_ms),
            "key": lambda: as_line(record.key, formats.key),
            "value": lambda: as_line(record.value, formats.value),
            "headers": lambda: ",".join(
                f"{header}={as_line(value, Formats().value)}" for header, value in record.headers
            ),
        }
        found = [texts[field]() for field in fields]
        return separator.join(map(terminal_text, found) if is_terminal else found)

    return line


def _shown_fields(text: str) -> list[str]:
    """The fields that --show names. Raises UsageError."""
    fields = [each.strip() for each in text.split(",")]
    for each in fields:
        if each not in _FIELDS:
            raise click.UsageError(f"--show {text}: '{each}' is no field; they are {', '.join(_FIELDS)}.")
    return fields
