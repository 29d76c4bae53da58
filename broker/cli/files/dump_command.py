"""`ottla dump-log FILE...`: shows the contents of a log's files as text or JSON (DumpLogSegments of Kafka 4.3.1)."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import click

from ottla.broker.cli.files.decoders import DECODERS
from ottla.broker.cli.files.dump import DumpOptions, dump
from ottla.broker.cli.output import Row, as_json, as_text, standard_output
from ottla.storage.files import Files

#: kafka-dump-log's options for decoders, as aliases.
_KAFKAS_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "--offsets-decoder": "consumer-offsets",
        "--transaction-log-decoder": "transaction-state",
        "--share-group-state-decoder": "share-group-state",
        "--cluster-metadata-decoder": "cluster-metadata",
        "--remote-log-metadata-decoder": "remote-log-metadata",
    }
)


def _as_kafkas_tool_has_them(command: Callable[..., None]) -> Callable[..., None]:
    for name, decoder in _KAFKAS_NAMES.items():
        option = click.option(name, "decoder", flag_value=decoder, help=f"The same as --decoder {decoder}.")
        command = option(command)
    return command


@click.command("dump-log", no_args_is_help=True)
@click.argument(
    "paths", nargs=-1, metavar="FILE...", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--print-data", is_flag=True, help="Show records, too, not only their batches.")
@click.option(
    "--decoder",
    type=click.Choice(["auto", "none", *DECODERS]),
    default="auto",
    help="What records of the logs mean; by default the name of the file's folder decides. "
    "One that is named shows the records, as --print-data.",
)
@_as_kafkas_tool_has_them
@click.option("--json", "is_json", is_flag=True, help="One JSON object a line.")
def dump_log(paths: tuple[Path, ...], *, print_data: bool, decoder: str, is_json: bool) -> None:
    """Show the contents of files of a log's folder.

    Logs (.log, .checkpoint) batch by batch; .index and .timeindex entry by entry, verified against the log beside
    them; .txnindex, .snapshot and the checkpoint files. Where a file becomes invalid a problem is reported, with
    its position, and the exit status is 1.
    """
    chosen = DECODERS.get(decoder)
    options = DumpOptions(
        has_data=print_data or chosen is not None, decoder=chosen, is_decoded=decoder != "none"
    )
    show: Callable[[Row], str] = as_json if is_json else as_text
    out = standard_output()
    has_problems = False
    for path in paths:
        try:
            for row in dump(path, Files(), options):
                has_problems = has_problems or row["kind"] == "problem"
                out.write(show(row) + "\n")
        except BrokenPipeError:
            raise
        except OSError as error:
            raise click.ClickException(f"{path}: {error.strerror}") from error
    if has_problems:
        raise click.exceptions.Exit(1)
