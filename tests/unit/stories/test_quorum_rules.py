"""Events of the quorum: the function that they name is the handler that has decided."""

import pytest

from ottla.stories.quorum.quorum_stage import QuorumStage
from ottla.stories.recording import record

_OBSERVED = "voters 1 2 3\n1 leads e1\nobserver 4\nall catch up\n"


def events(text):
    """Return (line, function) of each event of the last command."""
    steps = record(f"# KIP-853\n\n{text}\n----\n", QuorumStage())
    return [(event.line, event.function.rpartition(".")[2]) for event in steps[-1].events]


@pytest.mark.parametrize(("command", "line", "function"), [
    ("remove 3 at 1", "1: voters 1 2",  "handle_remove_voter_request"),
    ("remove 3 at 1", "2: voters 1 2",  "handle_fetch_response"),
])  # fmt: skip
def test_voters_are_changed_by_the_request_that_arrived(command, line, function):
    found = events(f"{_OBSERVED}{command}\nall catch up") + events(_OBSERVED + command)
    assert (line, function) in found


@pytest.mark.parametrize(("text", "line", "function"), [
    ("1 times out\n1 asks 2\n1 asks 2",   "2: Unattached e1",              "handle_vote_request"),
    ("1 times out\n1 asks 2\n1 asks 2",   "2: quorum-state e1 voted 1",    "handle_vote_request"),
    ("1 times out\n1 asks 2",             "1: quorum-state e1 voted 1",    "handle_vote_response"),
    ("1 times out",                        "1: Prospective e0",             "poll"),
])  # fmt: skip
def test_roles_and_votes_have_the_place_of_their_cause(text, line, function):
    found = events("voters 1 2 3\n" + text)
    assert any(each.startswith(line) and name == function for each, name in found), found
