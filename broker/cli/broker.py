"""`ottla broker`: runs a node in this process until a signal ends it."""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from ottla.broker.api import preparations
from ottla.broker.log_lines import FORMAT, JsonFormatter, LineFormatter, LineLimit
from ottla.broker.node import CannotStart, Node
from ottla.config.broker_config import BrokerConfig
from ottla.config.load import load_config
from ottla.config.loggers import LEVELS
from ottla.protocol.errors import KafkaError
from ottla.runtime.garbage import collect_briefly, collect_rarely
from ottla.runtime.production import ProductionRuntime, allow_open_files, run
from ottla.runtime.turns import in_turns

_INTERRUPTED = 130  # what a shell reports for a process that Ctrl-C ended
_FAILED = 1
#: The formatters of `--log-format`.
_FORMATTERS: Final[dict[str, Callable[[], logging.Formatter]]] = {
    "text": lambda: LineFormatter(FORMAT),
    "json": JsonFormatter,
}
#: Bytes of one read of the standard input, of which only the end matters.
_INPUT_BYTES = 4096


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a command that runs a node about its log; `write_log` takes their values."""
    log_level = click.option(
        "--log-level",
        type=click.Choice(list(LEVELS), case_sensitive=False),
        default="INFO",
        show_default=True,
        envvar="OTTLA_LOG_LEVEL",
        show_envvar=True,
        help="The lowest level of Ottla's own log lines. At run time: kafka-configs.sh --entity-type broker-loggers.",
    )
    log_format = click.option(
        "--log-format",
        type=click.Choice(list(_FORMATTERS)),
        default="text",
        show_default=True,
        envvar="OTTLA_LOG_FORMAT",
        show_envvar=True,
        help="The form of log lines, which go to the standard error; times are UTC.",
    )
    return log_level(log_format(command))


@click.command("broker")
@click.argument("properties", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Set a configuration; may be repeated."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Listen on 127.0.0.1 at this port; 0 takes a free one."
)
@click.option(
    "--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Keep all data in this folder."
)
@click.option(
    "--tier",
    metavar="DIR|URL",
    help="Tiered storage: copy closed segments of topics with remote.storage.enable=true to this directory, or to "
    "s3://BUCKET/PREFIX?endpoint=URL&region=...",
)
@log_options
@click.option(
    "--until-stdin-ends",
    is_flag=True,
    help="Stop when the standard input ends, for instance because the parent process has ended.",
)
def start_broker(
    properties: Path | None,
    overrides: tuple[str, ...],
    port: int | None,
    data_dir: Path | None,
    tier: str | None,
    log_level: str,
    log_format: str,
    until_stdin_ends: bool,
) -> None:
    """Start a node with Kafka's server.properties, or a standalone one.

    Without a file one process is broker and controller of a cluster of its own, on 127.0.0.1:9092. With a file it
    has the roles of process.roles: broker, controller or both.
    """
    write_log(log_format, log_level)
    try:
        config = load_config(properties, overrides=overrides, port=port, data_dir=data_dir, tier=tier)
        run_node(config, until_stdin_ends=until_stdin_ends)
    except (CannotStart, KafkaError) as error:
        raise click.ClickException(str(error)) from None


def write_log(log_format: str, log_level: str) -> None:
    """Write log lines to the standard error; a level below INFO is that of our own lines only.

    At DEBUG the client of an object store logs each header of its requests. Other levels are the root logger's, whose
    level can be altered at run time.
    """
    level = LEVELS[log_level.upper()]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_FORMATTERS[log_format]())
    handler.addFilter(LineLimit())
    logging.basicConfig(level=max(level, logging.INFO), handlers=[handler])
    if level < logging.INFO:
        logging.getLogger("ottla").setLevel(level)


def run_node(config: BrokerConfig, *, until_stdin_ends: bool = False) -> None:
    """Run a node in this process until a signal ends it. Raises CannotStart."""
    run(lambda runtime: _serve(runtime, config, until_stdin_ends=until_stdin_ends))


async def _serve(runtime: ProductionRuntime, config: BrokerConfig, *, until_stdin_ends: bool) -> None:
    """Run a node until a signal ends it: the first one cleanly, the second one at once."""
    stopping = asyncio.Event()

    def on_signal(number: int) -> None:
        if stopping.is_set():
            os._exit(_INTERRUPTED)
        stopping.set()

    def on_input() -> None:
        if not os.read(sys.stdin.fileno(), _INPUT_BYTES):
            runtime.loop.remove_reader(sys.stdin.fileno())
            stopping.set()

    def on_failure(failure: "asyncio.Future[str]") -> None:
        # As Kafka, without a clean stop: a disk that does not respond could block it.
        if not failure.cancelled():
            click.echo(f"Error: {failure.result()}", err=True)
            sys.stderr.flush()
            os._exit(_FAILED)

    allow_open_files()
    for number in (signal.SIGINT, signal.SIGTERM):
        runtime.loop.add_signal_handler(number, on_signal, number)
    if until_stdin_ends:
        runtime.loop.add_reader(sys.stdin.fileno(), on_input)
    collect_rarely()
    runtime.stalls.is_starting = True
    node = await _start_unless_stopped(runtime, config, stopping)
    if node is None:
        return
    node.failure.add_done_callback(on_failure)
    # Objects of the start-up stay until the process ends: the collector need not visit them again. It does
    # not visit them now either: with 1,000 partitions that would be a turn of 140 ms, to find 1 MB.
    gc.freeze()
    collect_briefly()
    runtime.stalls.is_starting = False
    click.echo(node.ready_line())
    preparing = (
        runtime.supervise(lambda: in_turns(runtime, preparations(), max_steps=1), name="prepare-apis")
        if config.is_broker
        else None
    )
    await stopping.wait()
    if preparing is not None:
        preparing.cancel()
    await node.stop()


async def _start_unless_stopped(
    runtime: ProductionRuntime, config: BrokerConfig, stopping: asyncio.Event
) -> Node | None:
    """The started node; None if a signal arrived before: a broker may wait long for a controller."""
    starting = asyncio.ensure_future(Node.start(runtime, config))
    stopped = asyncio.ensure_future(stopping.wait())
    await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if starting.done():
        return starting.result()
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    return None
