"""The command `ottla`: imports the command line without garbage collections, then runs it.

The import creates some 200,000 objects, all of which stay. Garbage collections among them would find nothing, and take a
seventh of the time until a broker serves.
"""

import gc
import sys


def main() -> None:
    """`ottla ...`."""
    _import_without_collections()
    from ottla.broker.main import main as command_line

    command_line(prog_name="ottla")


def main_of_module() -> None:
    """`python -m ottla.broker ...`: as `ottla`, but without a command's name it starts a broker."""
    _import_without_collections()
    from ottla.broker.main import main as command_line
    from ottla.broker.tools import TOOLS

    arguments = sys.argv[1:]
    if not (arguments and arguments[0] in (*command_line.commands, *TOOLS)):
        arguments = ["broker", *arguments]
    command_line(arguments, prog_name="python -m ottla.broker")


def _import_without_collections() -> None:
    gc.disable()
    import ottla.broker.main  # noqa: F401

    # Later collections skip what has been imported.
    gc.freeze()
    gc.enable()
