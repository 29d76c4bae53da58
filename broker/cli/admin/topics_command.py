"""`ottla topics`: list, describe, create, alter and delete topics of any Kafka cluster.

Exit status: 0, 1 if some of several topics were refused, or 2 if the command could not be carried out.
"""

from collections.abc import Sequence

import click

from ottla.broker.cli.admin import topics as requests
from ottla.broker.cli.admin.configs import changes_of
from ottla.broker.cli.admin.topic_rows import described_lines, list_lines, topic_row
from ottla.broker.cli.bootstrap import (
    CannotBeDone,
    ask_cluster,
    bootstrap_option,
    internal_option,
    json_option,
    set_option,
    unset_option,
)
from ottla.broker.cli.command_group import CommandGroup
from ottla.broker.cli.output import confirm, show
from ottla.broker.cli.parameters import PARTITION_COUNT
from ottla.broker.cluster_client.errors import ClusterError
from ottla.config.load import parse_settings
from ottla.protocol.errors import InvalidConfig

_NONE = "The cluster has no topics: `ottla topics create NAME` creates one."


@click.group("topics", cls=CommandGroup)
def topics() -> None:
    """List, describe, create, alter and delete topics."""


@topics.command("list")
@bootstrap_option
@internal_option
@json_option
def list_topics(*, bootstrap: str, is_internal: bool, is_json: bool) -> None:
    """List the topics, with their partitions and replicas, and whether all of them are in sync."""
    found = ask_cluster(bootstrap, lambda client: requests.listed_topics(client, has_internal=is_internal))
    if not found and not is_json:
        show([_NONE])
        return
    show([topic_row(each) for each in found] if is_json else list_lines(found))


@topics.command("describe")
@click.argument("names", nargs=-1, metavar="[TOPIC...]")
@bootstrap_option
@internal_option
@json_option
def describe_topics(names: tuple[str, ...], *, bootstrap: str, is_internal: bool, is_json: bool) -> None:
    """Show each partition of topics: leader, replicas, ISR and offsets. Without TOPIC all topics are described.

    Configurations are shown if the topic has values of its own; `ottla configs describe` shows all of them.
    OFFSETS is the number of records unless the topic is compacted or has transactions.
    """
    rows = ask_cluster(
        bootstrap, lambda client: requests.described_topics(client, names, has_internal=is_internal)
    )
    if not rows and not is_json:
        show([_NONE])
        return
    for row in rows:
        show([row] if is_json else described_lines(row))


@topics.command("create", no_args_is_help=True)
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@bootstrap_option
@click.option(
    "--partitions", type=PARTITION_COUNT, help="The number of partitions; by default num.partitions."
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1, 32767),
    help="The number of replicas of each partition; by default default.replication.factor.",
)
@set_option
@click.option("--if-not-exists", "may_exist", is_flag=True, help="Leave a topic that exists as it is.")
@json_option
def create_topics(
    names: tuple[str, ...],
    *,
    bootstrap: str,
    partitions: int | None,
    replication_factor: int | None,
    settings: tuple[str, ...],
    may_exist: bool,
    is_json: bool,
) -> None:
    """Create topics with as many partitions and replicas, and the configurations that are set."""
    try:
        configs = parse_settings(settings)
    except InvalidConfig as error:
        raise CannotBeDone(f"--set: {error}") from None
    _show_outcomes(
        ask_cluster(
            bootstrap,
            lambda client: requests.created(
                client,
                list(dict.fromkeys(names)),
                partitions=partitions,
                replication_factor=replication_factor,
                settings=configs,
                may_exist=may_exist,
            ),
        ),
        is_json=is_json,
    )


@topics.command("alter", no_args_is_help=True)
@click.argument("name", metavar="TOPIC")
@bootstrap_option
@click.option("--partitions", type=PARTITION_COUNT, help="Increase the number of partitions to this.")
@set_option
@unset_option
def alter_topic(
    name: str, *, bootstrap: str, partitions: int | None, settings: tuple[str, ...], unset: tuple[str, ...]
) -> None:
    """Change the configurations of a topic, or increase the number of its partitions.

    Records stay where they are, so that records with one key may be in two partitions once their number has grown.
    """
    try:
        changes = changes_of(settings, unset)
    except ClusterError as error:
        raise CannotBeDone(str(error)) from None
    if partitions is None and not changes:
        raise click.UsageError("Nothing is to be changed: name --partitions, --set or --unset.")
    ask_cluster(
        bootstrap,
        lambda client: requests.altered_topic(client, name, partitions=partitions, changes=changes),
    )
    done = [str(change) for change in changes] + ([] if partitions is None else [f"partitions {partitions}"])
    show([f"topic {name}: {', '.join(done)}"])


@topics.command("delete", no_args_is_help=True)
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@bootstrap_option
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask for a confirmation on a terminal.")
@json_option
def delete_topics(names: tuple[str, ...], *, bootstrap: str, is_sure: bool, is_json: bool) -> None:
    """Delete topics and their records, in both tiers. A terminal is asked for a confirmation."""
    unique = list(dict.fromkeys(names))
    if not is_sure:
        confirm(f"Delete {', '.join(unique)} with all records?")
    _show_outcomes(ask_cluster(bootstrap, lambda client: requests.deleted(client, unique)), is_json=is_json)


def _show_outcomes(outcomes: Sequence[requests.Outcome], *, is_json: bool) -> None:
    """Write a line for each topic, refusals to standard error. Raises Exit with status 1 after a refusal."""
    for each in outcomes:
        if is_json:
            show([{"kind": "outcome", "topic": each.topic, "done": each.done, "error": each.error}])
        elif each.error is not None:
            click.echo(f"Error: {each.error}", err=True)
        elif each.partitions is not None and each.partitions > 0:
            numbers = f"partitions {each.partitions}, replication factor {each.replication_factor}"
            show([f"topic {each.topic}: {each.done}, {numbers}"])
        else:
            show([f"topic {each.topic}: {each.done}"])
    if any(each.error is not None for each in outcomes):
        raise click.exceptions.Exit(1)
