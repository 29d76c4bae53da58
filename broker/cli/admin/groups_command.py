"""`ottla groups`: list and describe consumer groups, reset their offsets, and delete them.

Exit status: 0, 1 if some of several groups were refused, or 2 if the command could not be carried out.
"""

import click

from ottla.broker.cli.admin import groups as requests
from ottla.broker.cli.admin.group_rows import described_lines, described_row, list_lines, list_row
from ottla.broker.cli.admin.resetting import Kind, Reset, Target, parse_topics, reset_lines, reset_rows
from ottla.broker.cli.bootstrap import CannotBeDone, ask_cluster, bootstrap_option, json_option
from ottla.broker.cli.command_group import CommandGroup
from ottla.broker.cli.output import confirm, show
from ottla.broker.cli.parameters import OFFSET, time_ms
from ottla.broker.cluster_client.client import ClusterClient
from ottla.broker.cluster_client.errors import ClusterError

_NONE = "The cluster has no groups."


@click.group("groups", cls=CommandGroup)
def groups() -> None:
    """List and describe consumer groups, reset their offsets, and delete them."""


@groups.command("list")
@bootstrap_option
@json_option
def list_groups(*, bootstrap: str, is_json: bool) -> None:
    """List the groups of all coordinators, with their states and types."""
    found = ask_cluster(bootstrap, requests.listed_groups)
    if not found and not is_json:
        show([_NONE])
        return
    show(map(list_row, found) if is_json else list_lines(found))


@groups.command("describe")
@click.argument("names", nargs=-1, metavar="[GROUP...]")
@bootstrap_option
@json_option
def describe_groups(names: tuple[str, ...], *, bootstrap: str, is_json: bool) -> None:
    """Show committed offset, lag and member of each partition. Without GROUP all groups are described.

    LAG is the number of offsets between the committed one and the end of the log. Share groups and groups of Kafka
    Streams' own protocol are shown without members.
    """
    found = ask_cluster(bootstrap, lambda client: requests.described_groups(client, names))
    if not found and not is_json:
        show([_NONE])
    for group in found:
        show([described_row(group)] if is_json else described_lines(group))


@groups.command("reset-offsets", no_args_is_help=True)
@click.argument("name", metavar="GROUP")
@bootstrap_option
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:PARTITION,...]",
    help="Reset this topic; may be repeated.",
)
@click.option("--all-topics", is_flag=True, help="Reset all partitions that have a committed offset.")
@click.option("--to-earliest", is_flag=True, help="Continue at the start of the log.")
@click.option("--to-latest", is_flag=True, help="Continue at the end of the log.")
@click.option("--to-offset", type=OFFSET, metavar="OFFSET", help="Continue at this offset.")
@click.option(
    "--to-datetime", type=time_ms, metavar="TIME", help="Continue at the first record of this time."
)
@click.option("--shift-by", type=int, metavar="NUMBER", help="Add this to the committed offsets.")
@click.option("--execute", "is_executed", is_flag=True, help="Commit the offsets; by default they are shown.")
@json_option
def reset_offsets(
    name: str,
    *,
    bootstrap: str,
    topics: tuple[str, ...],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: int | None,
    shift_by: int | None,
    is_executed: bool,
    is_json: bool,
) -> None:
    """Show where a group would continue, or commit these offsets with --execute.

    The group must have no members. Offsets outside of a log become its start or its end. TIME is as
    2026-11-26T08:00 in UTC, with another zone as +01:00, or milliseconds since 1970.
    """
    targets = [
        *([Target(Kind.EARLIEST)] if to_earliest else []),
        *([Target(Kind.LATEST)] if to_latest else []),
        *([] if to_offset is None else [Target(Kind.OFFSET, to_offset)]),
        *([] if to_datetime is None else [Target(Kind.TIME, to_datetime)]),
        *([] if shift_by is None else [Target(Kind.SHIFT, shift_by)]),
    ]
    if len(targets) != 1:
        raise click.UsageError(
            "Where to? Name one of --to-earliest, --to-latest, --to-offset, --to-datetime and --shift-by."
        )
    if bool(topics) is all_topics:
        raise click.UsageError("Which partitions? Name --topic, or --all-topics.")
    try:
        wanted = parse_topics(topics)
    except ClusterError as error:
        raise CannotBeDone(str(error)) from None

    async def question(client: ClusterClient) -> list[Reset]:
        planned = await requests.planned_reset(client, name, targets[0], wanted)
        if is_executed:
            await requests.reset(client, name, planned)
        return planned

    resets = ask_cluster(bootstrap, question)
    show(
        reset_rows(name, resets, is_executed=is_executed)
        if is_json
        else reset_lines(resets, is_executed=is_executed)
    )


@groups.command("delete", no_args_is_help=True)
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@bootstrap_option
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask for a confirmation on a terminal.")
@json_option
def delete_groups(names: tuple[str, ...], *, bootstrap: str, is_sure: bool, is_json: bool) -> None:
    """Delete groups without members, and their offsets. A terminal is asked for a confirmation."""
    unique = list(dict.fromkeys(names))
    if not is_sure:
        confirm(f"Delete {', '.join(unique)} with all committed offsets?")
    refusals = ask_cluster(bootstrap, lambda client: requests.deleted(client, unique))
    for name, refusal in refusals.items():
        if is_json:
            show([{"kind": "outcome", "group": name, "done": refusal is None, "error": refusal}])
        elif refusal is not None:
            click.echo(f"Error: {refusal}", err=True)
        else:
            show([f"group {name}: deleted"])
    if any(refusals.values()):
        raise click.exceptions.Exit(1)
