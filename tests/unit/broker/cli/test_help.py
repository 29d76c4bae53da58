"""The help of all commands: first sentences that are not cut, a list that is complete, and completion in shells."""

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from ottla.broker.cli.command_group import CommandGroup
from ottla.command_line import COMMANDS, main


def groups_of(command, words=("ottla",)):
    """Each group of commands below this one, by its words. The commands of `ottla bench` need its extra."""
    if isinstance(command, click.Group):
        yield words, command
    if isinstance(command, CommandGroup):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from groups_of(command.get_command(context, name), (*words, name))


GROUPS = {" ".join(words): group for words, group in groups_of(main)}


@pytest.mark.parametrize("words", GROUPS)
def test_no_line_of_a_list_of_commands_is_cut(words):
    done = CliRunner().invoke(main, [*words.split()[1:], "--help"], terminal_width=80)
    assert done.exit_code == 0
    assert "..." not in done.output.partition("Commands:")[2]


def test_all_commands_are_listed():
    assert {*COMMANDS, "completion", "version"} == set(main.list_commands(click.Context(main)))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell(shell):
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    assert "_OTTLA_COMPLETE" in done.output


@pytest.mark.parametrize(("words", "incomplete", "found"), [
    ([],                    "to",        ["topics"]),
    (["topics"],            "de",        ["delete", "describe"]),
    (["topics", "create"],  "--repl",    ["--replication-factor"]),
    (["consume", "--value-format"], "h", ["hex"]),
])  # fmt: skip
def test_what_is_completed(words, incomplete, found):
    completion = ShellComplete(main, {}, "ottla", "_OTTLA_COMPLETE")
    assert [each.value for each in completion.get_completions(words, incomplete)] == found


@pytest.mark.parametrize(("words", "sentence"), [
    (["topic"],           "No such command 'topic'. Did you mean topics?"),
    (["topics", "lst"],   "No such command 'lst'. Did you mean list?"),
    (["xyzzy"],           "No such command 'xyzzy'.\n"),
])  # fmt: skip
def test_an_unknown_command_suggests_similar_ones(words, sentence):
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert sentence in done.output
