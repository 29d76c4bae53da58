"""`ottla cluster status`: the health of a cluster in a sentence with its reasons.

Exit status: 0 healthy, 1 degraded, 3 unavailable, 2 if no broker answers.
"""

import click

from ottla.broker.cli.admin import status as requests
from ottla.broker.cli.bootstrap import ask_cluster, bootstrap_option, json_option
from ottla.broker.cli.output import show, table
from ottla.broker.cluster_client.client import Waits
from ottla.broker.reports.health import (
    Cluster,
    Level,
    facts_of,
    level_of,
    reasons_of,
    sentence_of,
    status_row,
)

#: Shorter than that of other commands: what does not answer is a reason here.
_PATIENCE_S = 3.0
_COLOURS = {Level.HEALTHY: "green", Level.DEGRADED: "yellow", Level.UNAVAILABLE: "red"}


@click.command("status")
@bootstrap_option
@click.option(
    "--max-lag", type=click.IntRange(0), metavar="COUNT", help="A group that lags by more is a reason."
)
@json_option
def cluster_status(*, bootstrap: str, max_lag: int | None, is_json: bool) -> None:
    """Say whether a cluster is healthy, with the reasons if it is not.

    It is unavailable if partitions have no leader or too few replicas in sync for acks=all, or no controller is
    active; degraded if brokers, followers or controllers are missing or lag behind. The exit status is 0 if it is
    healthy, 1 if it is degraded, 3 if it is unavailable, and 2 if no broker answers.
    """
    found = ask_cluster(
        bootstrap,
        lambda client: requests.status_of(client, max_lag=max_lag),
        waits=Waits(patience_s=_PATIENCE_S),
    )
    show([status_row(found)] if is_json else status_lines(found))
    if level := level_of(reasons_of(found)):
        raise click.exceptions.Exit(level)


def status_lines(cluster: Cluster) -> list[str]:
    """The lines of `ottla cluster status`; the sentence has the level's colour."""
    reasons = reasons_of(cluster)
    level = level_of(reasons)
    head, *more = [sentence_of(cluster, reasons)]
    if len(reasons) > 1:
        head = f"{level.name.capitalize()}, for {len(reasons)} reasons:"
        more = [f"  - {each.text}" for each in reasons]
    facts = table(("", ""), list(facts_of(cluster).items()))[1:]
    return [click.style(head, fg=_COLOURS[level]), *more, "", *facts]
