"""Commands of `ottla` against one cluster, run in this process: a process for each would cost half a second."""

import json
from typing import Any

from click.testing import CliRunner, Result

from ottla.command_line import main


class Commands:
    """Runs commands against one cluster."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def run(self, *arguments: object, status: int | None = 0, input: str | None = None) -> Result:
        """Run a command, which ends with this status; None: with any."""
        words = [*map(str, arguments), "--bootstrap-server", self.bootstrap]
        done = CliRunner().invoke(main, words, input=input, prog_name="ottla")
        assert status in (None, done.exit_code), (done.output, done.exception)
        return done

    def text(self, *arguments: object, status: int = 0, input: str | None = None) -> str:
        """The output of a command, its errors included."""
        return self.run(*arguments, status=status, input=input).output

    def rows(self, *arguments: object, status: int = 0) -> list[dict[str, Any]]:
        """The rows of a command's standard output."""
        return [
            json.loads(line) for line in self.run(*arguments, "--json", status=status).stdout.splitlines()
        ]
