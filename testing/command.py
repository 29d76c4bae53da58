"""`ottla test-broker`: a broker for tests in other languages, controlled over HTTP, and for `Broker(process=True)`."""

import logging
import os
import shutil
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from ottla.broker.log_lines import FORMAT, LineFormatter, LineLimit
from ottla.broker.roles.directories import CannotStart
from ottla.config.load import parse_settings
from ottla.protocol.errors import KafkaError
from ottla.runtime.production import allow_open_files
from ottla.testing.broker import Broker
from ottla.testing.control_calls import ControlCalls
from ottla.testing.control_server import ControlServer
from ottla.testing.faults import FaultNeverStruck

#: Bytes of one read of the standard input, of which only the end matters.
_INPUT_BYTES: Final = 4096


@click.command("test-broker")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="The port of Kafka clients; 0 takes a free one."
)
@click.option(
    "--control-port",
    type=click.IntRange(0, 65535),
    default=0,
    help="The port of the control; 0 takes a free one.",
)
@click.option(
    "--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Keep all data in this folder."
)
@click.option("--tier", metavar="DIR|URL", help="The remote tier, as of `ottla broker`.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Set a configuration; may be repeated."
)
@click.option("--until-stdin-ends", is_flag=True, help="Stop when the standard input ends.")
@click.option("--not-started", is_flag=True, help="Wait for the call `start`: faults can be armed before it.")
@click.option(
    "--clock-ahead",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Start with a moved clock.",
)
@click.option(
    "--delete", type=click.Path(file_okay=False, path_type=Path), help="Delete this folder at the end."
)
def start_test_broker(
    port: int,
    control_port: int,
    data_dir: Path | None,
    tier: str | None,
    overrides: tuple[str, ...],
    until_stdin_ends: bool,
    not_started: bool,
    clock_ahead: float,
    delete: Path | None,
) -> None:
    """Start a broker that a test controls over HTTP: its faults, its disk, its clock, its life.

    Prints one line with both addresses when it serves. docs/TESTING.md has the calls.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(FORMAT))
    handler.addFilter(LineLimit())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    allow_open_files()
    stopping = threading.Event()
    # SIGHUP is sent by the kernel to a process that is stopped by SIGSTOP when its parent has died.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: stopping.set())
    if until_stdin_ends:
        threading.Thread(
            target=_wait_for_end_of_input, args=(stopping,), name="ottla-stdin", daemon=True
        ).start()
    try:
        broker = Broker(config=parse_settings(overrides), port=port, data_dir=data_dir, tier=tier or False)
        broker.clock.ahead_s = clock_ahead
        with ExitStack() as ends:
            if not not_started:
                broker.start()
            ends.push(broker)
            server = ControlServer(ControlCalls(broker), port=control_port)
            ends.callback(server.close)
            control = f"http://127.0.0.1:{server.port}"
            click.echo(
                f"CONTROL {control}"
                if not_started
                else f"READY bootstrap={broker.bootstrap_servers} control={control} data={broker.data_dir}; "
                "stop: Ctrl-C"
            )
            sys.stdout.flush()
            if not_started:
                # The caller reads this one line: what else is printed would fill the pipe, and then block.
                os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
            stopping.wait()
    except (CannotStart, KafkaError, FaultNeverStruck, OSError) as error:
        raise click.ClickException(str(error)) from None
    finally:
        if delete is not None:
            shutil.rmtree(delete, ignore_errors=True)


def _wait_for_end_of_input(stopping: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), _INPUT_BYTES):
        pass
    stopping.set()
