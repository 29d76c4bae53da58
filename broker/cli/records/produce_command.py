"""`ottla produce`: records from arguments or standard input to a topic.

Exit status: 0, or 2 if a line is in another format, or records were not written.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import click

from ottla.broker.cli.bootstrap import CannotBeDone, ask_cluster, bootstrap_option, existing_topics
from ottla.broker.cli.output import sentence, show
from ottla.broker.cli.parameters import PARTITION
from ottla.broker.cli.records.formats import (
    Format,
    FormatError,
    Formats,
    Record,
    from_text,
    header_of,
    record_of,
    record_of_text,
)
from ottla.broker.cluster_client.client import ClusterClient
from ottla.broker.cluster_client.errors import ClusterError
from ottla.broker.reports.words import counted

Command = TypeVar("Command", bound=Callable[..., Any])


def with_formats(command: Command) -> Command:
    """Add the options that name the notation of keys and values."""
    choice = click.Choice([each.value for each in Format])
    for name in ("value", "key"):
        command = click.option(
            f"--{name}-format",
            type=choice,
            default="text",
            show_default=True,
            help=f"The notation of each {name}.",
        )(command)
    return command


def formats_of(key_format: str, value_format: str) -> Formats:
    """The formats that the options name."""
    return Formats(key=Format(key_format), value=Format(value_format))


@click.command("produce", no_args_is_help=True)
@click.argument("topic")
@click.argument("values", nargs=-1, metavar="[VALUE...]")
@bootstrap_option
@click.option(
    "--json", "is_json", is_flag=True, help="Lines are JSON, as `ottla consume --json` prints them."
)
@click.option("--key", help="The key of all records; by default they have none.")
@click.option(
    "--key-separator", metavar="TEXT", help="What separates key and value in a line: the first one does."
)
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Add a header; may be repeated."
)
@click.option("--null", metavar="TEXT", help="A key or value of this text is null: a tombstone.")
@with_formats
@click.option("--partition", type=PARTITION, help="Write to this partition, not to that of the key.")
@click.option(
    "--keep-partitions", is_flag=True, help="With --json: write each record to the partition of its line."
)
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True,
              help="The replicas that have a record when it counts as written.")  # fmt: skip
@click.option("--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none",
              show_default=True, help="The codec of batches.")  # fmt: skip
def produce(
    topic: str,
    values: tuple[str, ...],
    *,
    bootstrap: str,
    is_json: bool,
    key: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    null: str | None,
    key_format: str,
    value_format: str,
    partition: int | None,
    keep_partitions: bool,
    acks: str,
    compression: str,
) -> None:
    """Write records to a topic: each VALUE, or without VALUE each line of the standard input.

    With --json a line is an object of key, value, headers and timestamp, so that this copies a topic:
    `ottla consume A --json | ottla produce B --json`. Its topic and offset are not used, its partition with
    --keep-partitions.
    """
    from ottla.broker.cli.records.client import new_producer
    from ottla.broker.cli.records.producing import Production

    _check_options(is_json=is_json, key=key, key_separator=key_separator, null=null, keeps=keep_partitions,
                   partition=partition)  # fmt: skip
    formats = formats_of(key_format, value_format)
    try:
        added = [header_of(text) for text in headers]
        common_key = None if key is None else from_text(key, formats.key)
    except FormatError as error:
        raise CannotBeDone(sentence(str(error))) from None

    def parse(line: str) -> Record:
        if is_json:
            found = record_of(line, formats, keeps_partition=keep_partitions)
        else:
            found = record_of_text(line, formats, key_separator=key_separator, null=null)
        return Record(
            key=found.key if common_key is None else common_key,
            value=found.value,
            headers=[*found.headers, *added],
            timestamp_ms=found.timestamp_ms,
            partition=found.partition if partition is None else partition,
        )

    ask_cluster(bootstrap, lambda client: _check_topic(client, topic, partition))
    producer = new_producer(
        bootstrap,
        {
            "acks": acks,
            "compression.type": compression,
            "enable.idempotence": acks == "all",
            "linger.ms": 5,
            # The partition of a key is that of Kafka's own producer.
            "partitioner": "murmur2_random",
            "message.timeout.ms": 30_000,
        },
    )
    production = Production(producer, topic)
    try:
        production.send_all(_records(values or _lines(), parse, "VALUE" if values else "line"))
    except ClusterError as error:
        raise CannotBeDone(str(error)) from None
    except FormatError as error:
        count = production.written.total()
        raise CannotBeDone(f"{sentence(str(error))} Written before it: {counted(count, 'record')}.") from None
    count, partitions = production.written.total(), len(production.written)
    show([f"topic {topic}: {counted(count, 'record')} written to {counted(partitions, 'partition')}"])


def _check_options(
    *, is_json: bool, key: str | None, key_separator: str | None, null: str | None, keeps: bool,
    partition: int | None,
) -> None:  # fmt: skip
    """Raises UsageError for options of which one would have no effect."""
    if is_json and (key_separator is not None or null is not None):
        raise click.UsageError(
            "--key-separator and --null are for lines of text: leave them out with --json."
        )
    if key is not None and key_separator is not None:
        raise click.UsageError("Name --key or --key-separator, not both.")
    if keeps and (not is_json or partition is not None):
        raise click.UsageError("--keep-partitions needs --json, and no --partition.")


async def _check_topic(client: ClusterClient, topic: str, partition: int | None) -> None:
    metadata = await existing_topics(client, [topic], remedy=f"`ottla topics create {topic}` creates it.")
    count = len(metadata.topics[0].partitions)
    if partition is not None and partition >= count:
        raise ClusterError(f"--partition {partition}: the topic {topic} has the partitions 0 to {count - 1}.")


def _lines() -> Iterator[str]:
    """The lines of the standard input. Raises FormatError for one that is not UTF-8."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise FormatError(f"line {number} is not UTF-8: {error}") from None


def _records(lines: Iterable[str], parse: Callable[[str], Record], what: str) -> Iterator[Record]:
    """The record of each line. Raises FormatError, which names the line."""
    for number, line in enumerate(lines, start=1):
        try:
            yield parse(line)
        except FormatError as error:
            raise FormatError(f"{what} {number}: {error}") from None
