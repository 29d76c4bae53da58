"""The values that --initial-controllers accepts, and the error messages of others."""

import pytest

from ottla.broker.roles.formatting import FormatterError, parse_initial_controllers

DIRECTORY = "JEXY6aqzQY-32P5TStzaFg"


def test_what_may_be_said():
    parsed = parse_initial_controllers(f"3@h:9093:{DIRECTORY}, 4@[::1]:0:MvDxzVmcRsaTz33bUuRU6A")
    assert [str(each) for each in parsed] == [f"3@h:9093:{DIRECTORY}", "4@[::1]:0:MvDxzVmcRsaTz33bUuRU6A"]


@pytest.mark.parametrize(("text", "what"), [
    ("1h:1",                    "No @ found"),
    (f"x@h:1:{DIRECTORY}",      "Failed to parse node id"),
    ("1@h:9093",                "No colon following hostname could be found"),
    (f"1@h:70000:{DIRECTORY}",  "Failed to parse port"),
    (f"1@h:x:{DIRECTORY}",      "Failed to parse port"),
    ("1@h:1:abc",               "Failed to parse directory ID"),
])  # fmt: skip
def test_what_may_not(text, what):
    with pytest.raises(FormatterError) as refused:
        parse_initial_controllers(f"5@h:1:{DIRECTORY},{text}")
    assert str(refused.value).startswith(f"{what} in dynamic voter string '{text}'")
    assert "ID@HOST:PORT:DIRECTORY" in str(refused.value)


@pytest.mark.parametrize(("text", "what"), [
    (" , ",                                      "No voters given"),
    (f"1@h:1:{DIRECTORY},1@i:1:{DIRECTORY}",     "Node id 1 was specified more than once"),
])  # fmt: skip
def test_lists_that_cannot_be(text, what):
    with pytest.raises(FormatterError, match=what):
        parse_initial_controllers(text)
