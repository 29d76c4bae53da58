"""`ottla partitions describe`: a table for each partition, or a JSON object.

    orders-0  leader 2, epoch 5, min.insync.replicas 2
      2 leads: the preferred replica 1 is not in the ISR
      replica  rack  state          log start  local start  pending upload  high watermark  log end  local size
      1        a     preferred      0          ...

Where the terminal is too narrow for the table, each replica has its numbers one below the other.
Exit status: 0, or 2 if the command could not be carried out.
"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import click

from ottla.broker.cli.bootstrap import ask_cluster, bootstrap_option, internal_option
from ottla.broker.cli.command_group import CommandGroup
from ottla.broker.cli.output import as_json, standard_output, table
from ottla.broker.cli.partitions.cluster_reports import describe
from ottla.broker.cluster_client.client import ClusterClient
from ottla.broker.reports.description import Description, Replica, preferred_election, why
from ottla.broker.reports.words import size_text


@click.group("partitions", cls=CommandGroup)
def partitions() -> None:
    """Look at the replicas of partitions."""


@partitions.command("describe")
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@bootstrap_option
@internal_option
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object per line, for each partition.")
def describe_partitions(topics: tuple[str, ...], *, bootstrap: str, is_internal: bool, is_json: bool) -> None:
    """Show each replica's log, and why the leader leads. Without TOPIC all topics are described.

    Each broker is asked for its own replicas: the offsets at which the log, its local part, and the part that is not
    uploaded start, the high watermark, the log end, and the size of local segments. A number that a broker
    does not report is shown as "-". The reason is derived from the present state: what prevents the preferred
    replica from leading, or that nothing does.
    """

    async def question(client: ClusterClient) -> tuple[list[Description], int]:
        return await describe(client, topics, has_internal=is_internal), client.runtime.now_ms()

    found, now_ms = ask_cluster(bootstrap, question)
    out = standard_output()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for partition in found:
        if is_json:
            out.write(json_of(partition, now_ms=now_ms) + "\n")
        else:
            for line in text_of(partition, now_ms=now_ms, width=width):
                out.write(line + "\n")


_WORDS: Final = ("replica", "rack", "state")
_NUMBERS: Final = (
    "log start",
    "local start",
    "pending upload",
    "high watermark",
    "log end",
    "local size",
)
_UNKNOWN: Final = "-"


def text_of(partition: Description, *, now_ms: int, width: int | None) -> Iterator[str]:
    """The lines of one partition; `width` is the terminal's, None: there is none."""
    leader = "no leader" if partition.leader is None else f"leader {partition.leader}"
    min_isr = partition.settings.min_isr
    has_min_isr = "" if min_isr is None else f", min.insync.replicas {min_isr}"
    yield f"{partition.topic_partition}  {leader}, epoch {partition.leader_epoch}{has_min_isr}"
    yield f"  {why(partition, now_ms=now_ms)}"
    rows = [_cells(partition, replica) for replica in partition.replicas]
    lines = table((*_WORDS, *_NUMBERS), rows, words=len(_WORDS))
    if width is not None and max(map(len, lines)) + 2 > width:
        lines = [line for row in rows for line in _one_below_the_other(row)]
    yield from (f"  {line}" for line in lines)
    for replica in partition.replicas:
        if replica.problem is not None:
            yield f"  replica {replica.broker_id}: {replica.problem}"
    yield ""


def json_of(partition: Description, *, now_ms: int) -> str:
    """One partition as one line; numbers that are not known are null."""
    return as_json(
        {
            "kind": "partition",
            "partition": str(partition.topic_partition),
            "leader": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "why": why(partition, now_ms=now_ms),
            "preferred_election": preferred_election(partition, now_ms=now_ms),
            "min_insync_replicas": partition.settings.min_isr,
            "isr": list(partition.isr),
            "elr": None if partition.elr is None else list(partition.elr),
            "replicas": [
                {
                    "broker": replica.broker_id,
                    "rack": replica.rack,
                    "state": _states(partition, replica),
                    "log_start_offset": replica.log.log_start_offset,
                    "local_log_start_offset": replica.log.local_log_start_offset,
                    "pending_upload_offset": replica.log.pending_upload_offset,
                    "high_watermark": replica.log.high_watermark,
                    "log_end_offset": replica.log.log_end_offset,
                    "local_bytes": replica.log.local_bytes,
                    "problem": replica.problem,
                }
                for replica in partition.replicas
            ],
        }
    )


def _one_below_the_other(row: Sequence[str]) -> list[str]:
    head, *numbers = f"replica {row[0]}  rack {row[1]}  {row[2]}", *row[len(_WORDS) :]
    return [
        head,
        *(f"  {line}" for line in table(("", ""), list(zip(_NUMBERS, numbers, strict=True)), words=1)[1:]),
    ]


def _cells(partition: Description, replica: Replica) -> tuple[str, ...]:
    log = replica.log
    numbers = (
        log.log_start_offset,
        log.local_log_start_offset,
        log.pending_upload_offset,
        log.high_watermark,
        log.log_end_offset,
    )
    return (
        str(replica.broker_id),
        _UNKNOWN if replica.rack is None else replica.rack,
        ", ".join(_states(partition, replica)) or _UNKNOWN,
        *(_UNKNOWN if number is None else str(number) for number in numbers),
        _UNKNOWN if log.local_bytes is None else size_text(log.local_bytes),
    )


def _states(partition: Description, replica: Replica) -> list[str]:
    broker_id = replica.broker_id
    states = {
        "leader": broker_id == partition.leader,
        "preferred": broker_id == partition.replicas[0].broker_id,
        "ISR": broker_id in partition.isr,
        "ELR": broker_id in (partition.elr or ()),
        "offline": replica.is_offline,
        "adding": replica.is_adding,
        "removing": replica.is_removing,
    }
    return [name for name, is_so in states.items() if is_so]
