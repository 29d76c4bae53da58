"""The table of a follower's transitions: the docstring has it, and the follower takes each row."""

import inspect

from ottla.replication import follower, follower_states
from ottla.replication.follower_states import ReplicaState, Transition, Transitions, table

ROWS = {name: row for name, row in vars(Transitions).items() if isinstance(row, Transition)}


def test_the_docstring_has_the_table():
    assert "\n".join(table()) in follower_states.__doc__


def test_the_follower_takes_each_transition_and_no_other_way():
    source = inspect.getsource(follower)
    assert [name for name in ROWS if f"Transitions.{name}" not in source] == []
    # Once at the start, and once in `_enter`.
    assert source.count("self.state = ") == 2


def test_each_state_is_entered_and_left():
    targets = {row.target for row in ROWS.values()}
    left = {state for row in ROWS.values() for state in row.sources if row.target is not state}
    assert targets == left == {*ReplicaState}
