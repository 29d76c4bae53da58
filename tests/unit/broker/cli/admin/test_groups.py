"""Output of `ottla groups`, and where a reset continues."""

import pytest

from ottla.broker.cli.admin.group_rows import (
    Group,
    GroupMember,
    ListedGroup,
    Progress,
    described_lines,
    described_row,
    list_lines,
    why_active,
)
from ottla.broker.cli.admin.resetting import (
    Kind,
    Reset,
    Target,
    chosen_partitions,
    new_offset,
    parse_topics,
    reset_lines,
)
from ottla.broker.cli.admin.topic_rows import LogRange
from ottla.broker.cluster_client.errors import ClusterError
from ottla.broker.reports.assignments import assigned_partitions
from ottla.protocol.codec import encode_struct
from ottla.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from ottla.protocol.messages.consumer_protocol_assignment import TopicPartition as Assigned
from ottla.protocol.types import TopicPartition

FIRST, SECOND, THIRD = (TopicPartition("orders", index) for index in range(3))
LOG = LogRange(start=10, end=100)
LISTED = ListedGroup(group="kitchen", state="Stable", type="classic", protocol_type="consumer", coordinator=1)


def member(name, *partitions, instance=None):
    return GroupMember(
        member_id=f"{name}-id", instance_id=instance, client_id=name, host="127.0.0.1", partitions=partitions
    )


GROUP = Group(
    listed=LISTED,
    state="Stable",
    assignor="range",
    members=[member("cook", FIRST), member("idle", instance="static")],
    progress={
        SECOND: Progress(committed=5, end=7),
        FIRST: Progress(committed=90, end=100),
        THIRD: Progress(end=3),
    },
)


def test_a_group_as_it_is_described():
    assert list(described_lines(GROUP)) == [
        "kitchen  classic, Stable, assignor range, coordinator 1, members 2, lag 12",
        "  TOPIC   PARTITION  COMMITTED  LOG END  LAG  MEMBER   CLIENT  HOST",
        "  orders          0         90      100   10  cook-id  cook    127.0.0.1",
        "  orders          1          5        7    2  -        -       -",
        "  orders          2          -        3    -  -        -       -",
        "  -               -          -        -    -  static   idle    127.0.0.1",
        "",
    ]
    row = described_row(GROUP)
    assert row["lag"] == 12
    assert [(each["lag"], each["member"]) for each in row["partitions"]] == [
        (10, "cook-id"), (2, None), (None, None),
    ]  # fmt: skip


def test_a_list_of_older_brokers():
    group = ListedGroup(group="g", state="", type="classic", protocol_type="", coordinator=3)
    assert list_lines([group]) == [
        "GROUP  STATE  TYPE     PROTOCOL  COORDINATOR",
        "g      -      classic  -                   3",
    ]


def test_a_commit_beyond_the_log_is_no_negative_lag():
    """The log was truncated, or recreated, since."""
    assert Progress(committed=7, end=5).lag == 0


@pytest.mark.parametrize(("state", "members", "is_active"), [
    ("Empty", [], False),
    ("Dead", [], False),
    ("Stable", [member("cook")], True),
    ("PreparingRebalance", [], True),
])  # fmt: skip
def test_a_group_with_members_is_active(state, members, is_active):
    group = Group(listed=LISTED, state=state, assignor="", members=members, progress={})
    assert group.is_active is is_active


def test_the_refusal_names_the_members():
    group = Group(
        listed=LISTED, state="Stable", assignor="", members=[member(name) for name in "abcde"], progress={}
    )
    assert why_active(group) == (
        "The group kitchen is Stable with 5 members (a at 127.0.0.1, b at 127.0.0.1, c at 127.0.0.1 and 2 more): "
        "stop them first, since they commit offsets of their own."
    )


@pytest.mark.parametrize("version", [0, 1, 3])
def test_an_assignment_of_the_consumer_protocol(version):
    message = ConsumerProtocolAssignment(assigned_partitions=[Assigned(topic="orders", partitions=[0, 2])])
    data = version.to_bytes(2) + encode_struct(ConsumerProtocolAssignment, version, message)
    assert assigned_partitions(data) == [FIRST, THIRD]


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff", b"\0\0", b"no assignment"])
def test_an_assignment_of_another_protocol(data):
    assert assigned_partitions(data) == []


@pytest.mark.parametrize(("target", "committed", "at_time", "new", "note"), [
    (Target(Kind.EARLIEST),     50,   None, 10,  ""),
    (Target(Kind.LATEST),       50,   None, 100, ""),
    (Target(Kind.OFFSET, 60),   None, None, 60,  ""),
    (Target(Kind.OFFSET, 5),    50,   None, 10,  "5 is not within the log [10, 100)"),
    (Target(Kind.OFFSET, 101),  50,   None, 100, "101 is not within the log [10, 100)"),
    (Target(Kind.SHIFT, -10),   50,   None, 40,  ""),
    (Target(Kind.SHIFT, -100),  50,   None, 10,  "-50 is not within the log [10, 100)"),
    (Target(Kind.TIME, 7),      50,   33,   33,  ""),
    (Target(Kind.TIME, 7),      50,   None, 100, "no record is of this time or later"),
])  # fmt: skip
def test_where_a_partition_continues(target, committed, at_time, new, note):
    assert new_offset(FIRST, target, LOG, committed=committed, at_time=at_time) == Reset(
        partition=FIRST, present=committed, new=new, note=note
    )


@pytest.mark.parametrize(("target", "log", "sentence"), [
    (Target(Kind.SHIFT, 5), LOG,        "--shift-by 5: the group has committed nothing for orders-0"),
    (Target(Kind.LATEST),   LogRange(), "orders-0 has no leader that reports its offsets"),
])  # fmt: skip
def test_what_cannot_be_reset(target, log, sentence):
    with pytest.raises(ClusterError, match=sentence):
        new_offset(FIRST, target, log, committed=None, at_time=None)


def test_the_table_of_a_reset():
    rows = [Reset(partition=FIRST, present=None, new=7, note="why")]
    assert reset_lines(rows, is_executed=False) == [
        "TOPIC   PARTITION  COMMITTED  NEW OFFSET  NOTE",
        "orders          0          -           7  why",
        "Nothing is changed yet: repeat it with --execute.",
    ]
    assert reset_lines(rows, is_executed=True)[-1] == "The offsets are committed."


@pytest.mark.parametrize(("texts", "sentence"), [
    (["a:x"],      "--topic a:x: it must be TOPIC, or TOPIC:PARTITION,PARTITION."),
    (["a:"],       "--topic a:: it must be TOPIC, or TOPIC:PARTITION,PARTITION."),
    (["a", "a:1"], "--topic a:1: a is named twice."),
])  # fmt: skip
def test_topics_that_cannot_be_parsed(texts, sentence):
    with pytest.raises(ClusterError) as raised:
        parse_topics(texts)
    assert str(raised.value) == sentence


def test_the_partitions_that_are_chosen():
    topics = {"orders": [0, 1, 2]}
    assert chosen_partitions(topics, {"orders": None}) == [FIRST, SECOND, THIRD]
    assert chosen_partitions(topics, {"orders": [2, 0]}) == [FIRST, THIRD]
    with pytest.raises(ClusterError, match="--topic orders:3: the topic orders has the partitions 0 to 2"):
        chosen_partitions(topics, {"orders": [3]})
