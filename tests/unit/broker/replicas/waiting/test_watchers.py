"""The order in which a partition's change is signalled."""

from dataclasses import dataclass, field

from ottla.broker.replicas.waiting.watchers import Watchers


@dataclass(eq=False)
class Session:
    dirty: dict = field(default_factory=dict)


@dataclass(eq=False)
class Row:
    session: Session = field(default_factory=Session)


def test_producers_are_completed_before_fetches():
    """Otherwise a follower's Fetch that yields one turn to producers would be checked before their next
    requests."""
    signalled = []
    watchers = Watchers("orders-0", signal=signalled.append)
    consumer, follower = Row(), Row()
    watchers.add(consumer, is_follower=False)
    watchers.add(follower, is_follower=True)
    watchers.notify()
    assert signalled == ["orders-0", consumer.session, follower.session]
