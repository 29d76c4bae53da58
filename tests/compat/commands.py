"""Commands of `ottla` against one cluster, run in this process: a process for each would cost half a second."""

import json
from typing import Any

from click.testing import CliRunner

from ottla.command_line import main


class Commands:
    """Runs commands against one cluster."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def text(self, *arguments: object, status: int = 0, input: str | None = None) -> str:
        """The output of a command, which ends with this status; its last word may be a sentence on stderr."""
        words = [*map(str, arguments), "--bootstrap-server", self.bootstrap]
        done = CliRunner().invoke(main, words, input=input, prog_name="ottla")
        assert done.exit_code == status, (done.output, done.exception)
        return done.output

    def rows(self, *arguments: object, status: int = 0, input: str | None = None) -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for line in self.text(*arguments, "--json", status=status, input=input).splitlines()
        ]
