"""README's commands of `ottla bench`, which need Spark."""

import pytest

from tests.harness.readme import check_options, shown_commands

COMMANDS = shown_commands(of_bench=True)


def test_there_are_some():
    assert COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_the_options_that_it_is_shown_with(command):
    check_options(command)
