"""`ottla configs`: configurations of topics, brokers, groups, client metrics, and the defaults of all brokers."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ottla.broker.cli.admin.config_rows import config_lines, config_row, detailed_lines, shown
from ottla.broker.cli.admin.configs import (
    Configs,
    Resource,
    altered,
    changes_of,
    described,
    unknown_key,
)
from ottla.broker.cli.bootstrap import (
    CannotBeDone,
    ask_cluster,
    bootstrap_option,
    existing_topics,
    json_option,
    set_option,
    unset_option,
)
from ottla.broker.cli.command_group import CommandGroup
from ottla.broker.cli.output import show
from ottla.broker.cli.parameters import BROKER_ID
from ottla.broker.cluster_client.client import ClusterClient
from ottla.broker.cluster_client.errors import ClusterError
from ottla.metadata.image import ConfigResourceType

Command = TypeVar("Command", bound=Callable[..., Any])


def with_resource(command: Command) -> Command:
    """Add the options that name the resource of a command."""
    for option in (
        click.option(
            "--client-metrics",
            "subscription",
            metavar="NAME",
            help="This subscription of client metrics, which exists while it has configurations.",
        ),
        click.option("--group", metavar="GROUP", help="The configurations of this group."),
        click.option(
            "--broker-defaults", "is_default", is_flag=True, help="The dynamic defaults of all brokers."
        ),
        click.option("--broker", type=BROKER_ID, metavar="ID", help="The configurations of this broker."),
        click.option("--topic", metavar="TOPIC", help="The configurations of this topic."),
        bootstrap_option,
    ):
        command = option(command)
    return command


def resource_of(
    topic: str | None, broker: int | None, group: str | None, subscription: str | None, *, is_default: bool
) -> Resource:
    """The resource that the options name. Raises UsageError unless it is one."""
    named = [
        *([] if topic is None else [Resource(ConfigResourceType.TOPIC, topic)]),
        *([] if broker is None else [Resource(ConfigResourceType.BROKER, str(broker))]),
        *([] if group is None else [Resource(ConfigResourceType.GROUP, group)]),
        *([] if subscription is None else [Resource(ConfigResourceType.CLIENT_METRICS, subscription)]),
        *([Resource(ConfigResourceType.BROKER, "")] if is_default else []),
    ]
    if len(named) != 1:
        raise click.UsageError(
            "Whose configurations? Name one of --topic, --broker, --broker-defaults, --group and "
            "--client-metrics."
        )
    return named[0]


@click.group("configs", cls=CommandGroup)
def configs() -> None:
    """Describe and alter configurations of topics, brokers, groups and client metrics."""


@configs.command("describe")
@click.argument("keys", nargs=-1, metavar="[KEY...]")
@with_resource
@click.option("--all", "is_all", is_flag=True, help="Show keys that have their default, too.")
@json_option
def describe_configs(
    keys: tuple[str, ...],
    *,
    bootstrap: str,
    topic: str | None,
    broker: int | None,
    is_default: bool,
    group: str | None,
    subscription: str | None,
    is_all: bool,
    is_json: bool,
) -> None:
    """Show the configurations that are set, or those that are named, with where their values come from.

    A KEY is shown with its synonyms in the order of precedence, and with its documentation.
    """
    resource = resource_of(topic, broker, group, subscription, is_default=is_default)

    async def question(client: ClusterClient) -> Configs:
        if topic is not None:
            await existing_topics(client, [topic])
        found = (await described(client, [resource], has_details=True))[resource]
        for key in keys:
            if key not in found:
                raise ClusterError(unknown_key(resource, key, found))
        return found

    found = ask_cluster(bootstrap, question)
    chosen = [found[key] for key in keys] if keys else shown(found, has_defaults=is_all)
    if is_json:
        show(config_row(str(resource), each) for each in chosen)
    elif keys:
        for each in chosen:
            show(detailed_lines(each))
    elif chosen:
        show(config_lines(chosen))
    else:
        show([f"{resource}: nothing is set; --all shows the values that apply."])


@configs.command("alter")
@with_resource
@set_option
@unset_option
@click.option("--append", "appended", multiple=True, metavar="KEY=VALUE", help="Add an element to a list.")
@click.option(
    "--subtract", "subtracted", multiple=True, metavar="KEY=VALUE", help="Remove an element from a list."
)
@click.option("--force", "is_forced", is_flag=True, help="Set keys that the brokers do not list, too.")
def alter_configs(
    *,
    bootstrap: str,
    topic: str | None,
    broker: int | None,
    is_default: bool,
    group: str | None,
    subscription: str | None,
    settings: tuple[str, ...],
    unset: tuple[str, ...],
    appended: tuple[str, ...],
    subtracted: tuple[str, ...],
    is_forced: bool,
) -> None:
    """Change configurations while the brokers run."""
    resource = resource_of(topic, broker, group, subscription, is_default=is_default)
    try:
        changes = changes_of(settings, unset, appended=appended, subtracted=subtracted)
    except ClusterError as error:
        raise CannotBeDone(str(error)) from None
    if not changes:
        raise click.UsageError("Nothing is to be changed: name --set, --unset, --append or --subtract.")

    async def question(client: ClusterClient) -> None:
        if topic is not None:
            await existing_topics(client, [topic])
        await altered(client, resource, changes, is_forced=is_forced)

    ask_cluster(bootstrap, question)
    show([f"{resource}: {', '.join(map(str, changes))}"])
