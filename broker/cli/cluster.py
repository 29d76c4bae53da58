"""`ottla cluster up`: a whole cluster on this machine, one process for each node, for experiments.

    plan -> server.properties, formatting -> processes -> all READY -> the table -> ... Ctrl-C -> brokers, controllers

The nodes are child processes: when this process ends in any way, their standard input ends, and they stop
cleanly.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from ottla.broker.cli.admin.status_command import cluster_status
from ottla.broker.cli.cluster_plan import (
    ClusterPlan,
    InvalidPlan,
    NodePlan,
    formatting,
    make_plan,
    write_properties,
)
from ottla.broker.cli.command_group import CommandGroup
from ottla.broker.cli.storage import format_here, new_uuid, sentence_of
from ottla.broker.roles.formatting import FormatterError
from ottla.config.load import load_config, parse_settings
from ottla.config.tier_text import metadata_topic_properties, tier_properties
from ottla.protocol.errors import KafkaError
from ottla.runtime import child_python
from ottla.runtime.production import ProductionRuntime, free_ports, run
from ottla.storage.files import Files
from ottla.storage.manager.log_directory import LOCK_FILE
from ottla.storage.manager.meta_properties import InconsistentMetaProperties

_READY_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 90.0
_POLL_S: Final = 0.05
_INTERRUPTED: Final = 130


@click.group("cluster", cls=CommandGroup)
def cluster() -> None:
    """Show the health of a cluster, or start one of several processes on this machine."""


cluster.add_command(cluster_status)


@cluster.command("up")
@click.option("--brokers", "broker_count", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--controllers", "controller_count", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--racks", default="", metavar="A,B,C", help="Racks, given to the brokers in turn.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9092,
    show_default=True,
    help="The port of the first broker; the others get the next ports. 0 takes free ones.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("cluster"),
    show_default=True,
    help="The folder in which each node gets a folder.",
)
@click.option(
    "--tier",
    metavar="DIR|URL",
    help="Tiered storage of a new cluster: a directory, or s3://BUCKET/PREFIX?endpoint=URL&region=...",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a configuration of all nodes of a new cluster; may be repeated.",
)
def cluster_up(
    *,
    broker_count: int,
    controller_count: int,
    racks: str,
    port: int,
    data_dir: Path,
    tier: str | None,
    overrides: tuple[str, ...],
) -> None:
    """Start brokers and controllers on 127.0.0.1, and keep them until Ctrl-C.

    Their data stays in the folder and is used by the next start.
    """
    try:
        lock(data_dir, Files())
        plan = make_plan(
            data_dir,
            broker_count=broker_count,
            controller_count=controller_count,
            racks=[rack.strip() for rack in racks.split(",") if rack.strip()],
            port=port,
            free_ports=free_ports,
        )
        refuse_nodes_in_use(plan, Files())
        of_tier = {} if tier is None else tier_properties(tier) | metadata_topic_properties(broker_count)
        known = prepare(plan, of_tier | parse_settings(overrides))
    except (InvalidPlan, FormatterError, InconsistentMetaProperties, KafkaError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(sentence_of(error)) from None
    if (overrides or tier) and known:
        ids = ", ".join(str(node.node_id) for node in known)
        click.echo(
            f"{'--set' if overrides else '--tier'} has no effect on nodes that are not new ({ids}): "
            f"change {known[0].properties_file} and its like, or name another folder (--data-dir).",
            err=True,
        )
    sys.exit(run(lambda runtime: _keep_up(runtime, plan)))


def lock(folder: Path, files: Files) -> None:
    """Lock the folder until this process ends. Raises InvalidPlan if another one has it, and OSError."""
    files.make_dir(folder)
    if files.lock(folder / LOCK_FILE) is None:
        raise InvalidPlan(
            f"{folder} is in use by another process: its nodes are run by another `ottla cluster up`. "
            "Stop that one, or name another folder (--data-dir)."
        )


def refuse_nodes_in_use(plan: ClusterPlan, files: Files) -> None:
    """Raises InvalidPlan if another process uses a node's log directory: a node started separately, or still stopping.

    Otherwise the start of the node would fail, but only after its log file was truncated.
    """
    for node in plan.nodes:
        path = node.data_dir / LOCK_FILE
        if not path.exists():
            continue
        if (held := files.lock(path)) is None:
            raise InvalidPlan(
                f"The log directory of node {node.node_id}, {node.data_dir}, is in use by another process. "
                "Stop that one, or name another folder (--data-dir)."
            )
        files.close(held)


def prepare(
    plan: ClusterPlan, extra: Mapping[str, str] | None = None, *, release: str | None = None
) -> list[NodePlan]:
    """Write configurations, format new nodes, for `release` of Kafka; returns the old nodes.

    Raises FormatterError, KafkaError, OSError.
    """
    known = write_properties(plan, extra)
    for node, options in formatting(plan, new_uuid, release=release):
        format_here(load_config(node.properties_file), options, say=lambda _: None)
    return known


def command_of(node: NodePlan) -> list[str]:
    """The command that runs a node in the foreground until its standard input ends."""
    return child_python.command_of("ottla", "broker", "--until-stdin-ends", str(node.properties_file))


class Running:
    """The running process of one node of the cluster."""

    def __init__(self, node: NodePlan, process: asyncio.subprocess.Process) -> None:
        self.node = node
        self.process = process

    @classmethod
    async def start(cls, node: NodePlan) -> "Running":
        """Start the node's process; its output goes to the node's log file, which is truncated first."""
        with node.log_file.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command_of(node),
                env=child_python.environment(),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C signals only this process, which stops the nodes in order
            )
        return cls(node, process)

    @property
    def is_ready(self) -> bool:
        """Whether the process has printed its READY line."""
        return any(line.startswith("READY ") for line in self._lines())

    def log_tail(self) -> str:
        """The last lines of the process's output."""
        return "\n".join(f"    {line}" for line in self._lines()[-5:])

    def _lines(self) -> list[str]:
        return self.node.log_file.read_text(errors="replace").splitlines()

    async def until_ready(self) -> None:
        """Wait until it is ready. Raises ClickException if it ends, or is not ready in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_READY_TIMEOUT_S):
                while self.process.returncode is None:
                    if self.is_ready:
                        return
                    await asyncio.sleep(_POLL_S)
        why = "is not ready" if self.process.returncode is None else f"has ended ({self.process.returncode})"
        raise click.ClickException(
            f"Node {self.node.node_id} {why}; the end of {self.node.log_file}:\n{self.log_tail()}"
        )

    async def stop(self) -> None:
        """Terminate the process; kill it if it does not stop in time."""
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self.process.wait()
        except TimeoutError:
            click.echo(f"Node {self.node.node_id} does not stop: killed.", err=True)
            with suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


async def _keep_up(runtime: ProductionRuntime, plan: ClusterPlan) -> int:
    """Start all nodes, print the table, wait for a signal or until all have ended; returns the exit status."""
    stopping = asyncio.Event()

    def on_signal() -> None:
        if stopping.is_set():
            os._exit(_INTERRUPTED)  # the nodes stop when their standard input ends
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        runtime.loop.add_signal_handler(number, on_signal)
    nodes = [await Running.start(node) for node in plan.nodes]
    watching: list[asyncio.Task[None]] = []
    try:
        starting = asyncio.gather(*(node.until_ready() for node in nodes))
        interrupted = asyncio.ensure_future(stopping.wait())
        first: list[asyncio.Future[Any]] = [starting, interrupted]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.is_set():
            starting.result()
            click.echo(table(nodes))
            click.echo(
                f"READY bootstrap.servers={plan.bootstrap_servers} bootstrap.controllers={plan.bootstrap_controllers}; "
                "stop: Ctrl-C"
            )
            watching = [asyncio.ensure_future(_watch(node)) for node in nodes]
            all_ended = asyncio.ensure_future(asyncio.wait(watching))
            await asyncio.wait([all_ended, interrupted], return_when=asyncio.FIRST_COMPLETED)
            all_ended.cancel()
        starting.cancel()
        interrupted.cancel()
        status = 0 if stopping.is_set() else 1
    except click.ClickException as error:
        error.show()
        status = 1
    for task in watching:
        task.cancel()
    # Brokers first: a controlled shutdown needs a controller.
    for role in ("broker", "controller"):
        await asyncio.gather(*(node.stop() for node in nodes if node.node.role == role))
    return status


async def _watch(running: Running) -> None:
    status = await running.process.wait()
    click.echo(
        f"Node {running.node.node_id} has ended ({status}); the end of {running.node.log_file}:\n{running.log_tail()}",
        err=True,
    )


def table(nodes: Sequence[Running]) -> str:
    """The table of all nodes that `ottla cluster up` prints, with a line for each."""
    rows = [("NODE", "ROLE", "RACK", "LISTENER", "PID", "DATA", "LOG")]
    for running in sorted(nodes, key=lambda each: each.node.node_id):
        node = running.node
        pid = str(running.process.pid)
        rows.append(
            (
                str(node.node_id),
                node.role,
                node.rack or "-",
                node.listener,
                pid,
                str(node.data_dir),
                str(node.log_file),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
