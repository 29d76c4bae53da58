"""Consumer groups of the classic protocol, with members of different client libraries."""

from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from tests.compat import admin
from tests.compat.members import MEMBERS, ConfluentMember, Member
from tests.compat.test_groups_with_java import committed

_PARTITIONS = 6


def produce(bootstrap: str, topic: str, numbers: range) -> None:
    """One record for each number, spread over the partitions."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce(topic, value=str(number).encode(), partition=number % _PARTITIONS)
    assert producer.flush(admin.PATIENCE_S) == 0


def wait_until(condition: Callable[[], bool], members: list[Member]) -> None:
    """Wait for a condition; an exception that has ended a member is raised."""

    def is_so() -> bool:
        for member in members:
            if member.error is not None:
                raise member.error
        return condition()

    def state() -> object:
        return [(type(member).__name__, sorted(member.assigned), len(member.taken)) for member in members]

    admin.wait_until(is_so, detail=state)


def numbers_of(members: list[Member]) -> list[int]:
    return sorted(int(value) for member in members for _, _, value in member.taken)


def is_shared_out(members: list[Member]) -> bool:
    held = [partition for member in members for partition in member.assigned]
    return sorted(held) == list(range(_PARTITIONS)) and all(member.assigned for member in members)


def test_members_of_three_libraries_share_the_partitions(server, topic, group):
    admin.create_topic(server.bootstrap, topic, _PARTITIONS)
    members: list[Member] = []
    for kind in MEMBERS:  # each one that joins takes partitions from those who were there
        members.append(kind(server.bootstrap, group, topic).start())
        wait_until(lambda: is_shared_out(members), members)
    produce(server.bootstrap, topic, range(600))
    wait_until(lambda: len(numbers_of(members)) >= 600, members)
    assert numbers_of(members) == list(range(600))
    # What a member has not committed when another one leaves is given again.
    client = admin.admin_of(server.bootstrap)
    admin.eventually_equal(lambda: committed(client, group), 600)
    for member in members[:-1]:  # and who leaves gives them back
        member.stop()
    wait_until(lambda: is_shared_out(members[-1:]), members[-1:])
    produce(server.bootstrap, topic, range(600, 700))
    wait_until(lambda: len(numbers_of(members)) >= 700, members[-1:])
    assert numbers_of(members) == list(range(700))
    members[-1].stop()


@pytest.mark.parametrize("kind", MEMBERS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("crash", [False, True], ids=["restart", "kill-9"])
def test_a_group_resumes_exactly_where_it_was_after_a_restart(own_server, topic, group, kind, crash):
    admin.create_topic(own_server.bootstrap, topic, _PARTITIONS)
    produce(own_server.bootstrap, topic, range(300))
    first = kind(own_server.bootstrap, group, topic).start()
    wait_until(lambda: len(first.taken) >= 300, [first])
    first.stop()  # has committed all it took
    assert numbers_of([first]) == list(range(300))
    if crash:
        own_server.kill()
    else:
        own_server.stop()
    own_server.start()
    produce(own_server.bootstrap, topic, range(300, 400))
    second = kind(own_server.bootstrap, group, topic).start()
    wait_until(lambda: len(second.taken) >= 100, [second])
    second.stop()
    assert numbers_of([second]) == list(range(300, 400))


def test_a_member_survives_a_restart_of_the_broker(own_server, topic, group):
    admin.create_topic(own_server.bootstrap, topic, _PARTITIONS)
    produce(own_server.bootstrap, topic, range(100))
    member = ConfluentMember(own_server.bootstrap, group, topic).start()
    wait_until(lambda: len(member.taken) >= 100, [member])
    own_server.stop()
    own_server.start()
    produce(own_server.bootstrap, topic, range(100, 200))
    wait_until(lambda: set(numbers_of([member])) == set(range(200)), [member])
    member.stop()
