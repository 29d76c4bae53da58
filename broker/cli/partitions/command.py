"""`ottla partitions describe`. Exit status: 0, or 2 if the command could not be carried out."""

import shutil
import sys

import click

from ottla.broker.cli.bootstrap import addresses_of, ask, bootstrap_option
from ottla.broker.cli.files.plain import output
from ottla.broker.cli.partitions.cluster_reports import describe
from ottla.broker.cli.partitions.description import Description
from ottla.broker.cli.partitions.lines import json_of, text_of
from ottla.runtime import Runtime


@click.group("partitions")
def partitions() -> None:
    """Look at the replicas of partitions."""


@partitions.command("describe")
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@bootstrap_option
@click.option("--json", "is_json", is_flag=True, help="One JSON object a line, for each partition.")
def describe_partitions(topics: tuple[str, ...], *, bootstrap: str, is_json: bool) -> None:
    """Show each replica's log, and why the leader is the leader; without TOPIC of all topics.

    Each broker is asked for its own replicas: the offsets at which the log, its local part, and the part that is not
    uploaded start, the high watermark, the log end, and the size of local segments. A number that a broker
    does not report is shown as "-". The reason is derived from the present state: what prevents the preferred
    replica from leading, or that nothing does.
    """
    addresses = addresses_of(bootstrap)

    async def question(runtime: Runtime) -> tuple[list[Description], int]:
        return await describe(runtime, addresses, topics), runtime.now_ms()

    found, now_ms = ask(question)
    out = output()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for partition in found:
        if is_json:
            out.write(json_of(partition, now_ms=now_ms) + "\n")
        else:
            for line in text_of(partition, now_ms=now_ms, width=width):
                out.write(line + "\n")
