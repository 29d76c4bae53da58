"""Answers of many rows take several turns of the loop: the same answer, of one moment where it must be."""

import asyncio
from collections.abc import Awaitable, Coroutine
from random import Random
from types import SimpleNamespace
from uuid import UUID

import pytest

from ottla.broker.api import (
    k03_metadata,
    k09_offset_fetch,
    k74_list_config_resources,
    k75_describe_topic_partitions,
    long_answers,
)
from ottla.broker.api.dispatch import Dispatcher
from ottla.broker.api.long_answers import at_once_or_in_turns, when_all
from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.request_context import RequestContext
from ottla.metadata.image import MetadataImage
from ottla.metadata.records import (
    BrokerEndpoint,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from ottla.protocol import steps as work_steps
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.codec import encode_request, encode_response
from ottla.protocol.errors import InvalidRequest
from ottla.protocol.framing import encode_request_header, encode_response_header
from ottla.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from ottla.protocol.messages.list_config_resources import ListConfigResourcesRequest
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from ottla.runtime import turns
from tests.harness.loop_turns import loop_turns

PARTITIONS = 7
IDS = {name: UUID(int=number) for number, name in enumerate("abc", start=50)}
DIRECTORY, LOST = UUID(int=1000), UUID(int=1001)


def node(number, *, fenced=False):
    return RegisterBrokerRecord(
        broker_id=number,
        broker_epoch=number,
        endpoints=[BrokerEndpoint(name="PLAINTEXT", host=f"b{number}", port=9092)],
        fenced=fenced,
        log_dirs=[DIRECTORY],
    )


def partition(topic, index, *, directories=(DIRECTORY, DIRECTORY)):
    return PartitionRecord(
        partition_id=index,
        topic_id=IDS[topic],
        replicas=[1 + index % 3, 1 + (index + 1) % 3],
        isr=[1 + index % 3],
        leader=1 + index % 3,
        directories=list(directories),
    )


class Groups:
    """All groups have committed offsets of the same partitions; the offsets of some are not committed yet."""

    def __init__(self):
        self.later = {}

    def list_groups(self, request):
        return ListGroupsResponse(groups=[ListedGroup(group_id=str(number)) for number in range(5)])

    def fetch_offsets(self, asked, *, require_stable, complete):
        rows = [
            OffsetFetchResponsePartitions(partition_index=index, committed_offset=9) for index in range(3)
        ]
        topics = [OffsetFetchResponseTopics(name=name, partitions=rows) for name in IDS]
        answer = OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics)
        yield from complete(answer)
        if asked.group_id not in self.later:
            return answer
        self.later[asked.group_id] = future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.001, future.set_result, answer)
        return future


class Broker:
    """A broker of three, with three topics."""

    def __init__(self):
        image = MetadataImage()
        image.replay_all([node(1), node(2), node(3, fenced=True)])
        for name, topic_id in IDS.items():
            image.replay_all([TopicRecord(name=name, topic_id=topic_id)])
            image.replay_all(partition(name, index) for index in range(PARTITIONS))
        self.metadata = MetadataCache(image)
        self.cluster_id = "cluster"
        self.runtime = SimpleNamespace(random=Random(5), monotonic=lambda: 0.0, turns=loop_turns())
        self.long_answers = asyncio.Lock()
        self.groups = Groups()
        self.config = SimpleNamespace(
            auto_create_topics_enable=False, max_request_partition_size_limit=2000, get={}.get
        )

    def change(self):
        """Everything that these answers show becomes different."""
        self.metadata.on_commit(
            [
                FenceBrokerRecord(id=2, epoch=2),
                RemoveTopicRecord(topic_id=IDS["c"]),
                *[PartitionChangeRecord(partition_id=3, topic_id=IDS[name], leader=1, isr=[1]) for name in "ab"],
                PartitionRecord(partition_id=PARTITIONS, topic_id=IDS["a"], replicas=[1], isr=[1], leader=1),
                TopicRecord(name="d", topic_id=UUID(int=99)),
                node(4),
            ],
            9,
            10,
        )  # fmt: skip


def answer(broker, module, request, version):
    context = RequestContext(module.API.key, version, 1, None, "localhost", "PLAINTEXT")
    return module.API.handle(request, context, broker)


def encoded(module, version, response):
    return encode_response(module.API.key, version, response)


def named(*names):
    return [MetadataRequestTopic(name=name) for name in names]


#: Module, version, request.
LONG = [
    *[(k03_metadata, version, lambda: MetadataRequest(topics=None)) for version in (1, 6, 12)],
    (k03_metadata, 0, lambda: MetadataRequest(topics=[])),
    (k03_metadata, 13, lambda: MetadataRequest(topics=named("c", "nil", "a", "bad name", "b"))),
    (
        k03_metadata,
        13,
        lambda: MetadataRequest(
            topics=[
                MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in (*IDS.values(), UUID(int=3))
            ],
            include_topic_authorized_operations=True,
        ),
    ),
    (k75_describe_topic_partitions, 0, DescribeTopicPartitionsRequest),
    (
        k75_describe_topic_partitions,
        0,
        lambda: DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in ("c", "nil", "a", "b")],
            response_partition_limit=10,
            cursor=Cursor(topic_name="a", partition_index=4),
        ),
    ),
    (k74_list_config_resources, 1, ListConfigResourcesRequest),
]  # fmt: skip


def at_once(module, version, request):
    response = answer(Broker(), module, request(), version)
    assert not isinstance(response, Awaitable)
    return encoded(module, version, response)


@pytest.mark.parametrize(("module", "version", "request_of"), LONG)
async def test_the_same_answer_in_turns(module, version, request_of, monkeypatch):
    expected = at_once(module, version, request_of)
    for size in (1, 2, 5):
        monkeypatch.setattr(module, "ROWS_OF_STEP", size)
        response = answer(Broker(), module, request_of(), version)
        assert isinstance(response, Coroutine)
        assert encoded(module, version, await response) == expected


async def in_counted_turns(reply, before=lambda turn: None):
    """The result, and the number of turns; `before` is called with the number of each turn."""
    taken = 0
    while isinstance(reply, Coroutine):
        working = asyncio.ensure_future(reply)
        while not working.done():
            before(taken)
            taken += 1
            await asyncio.sleep(0)
        reply = working.result()
    return reply, taken


@pytest.mark.parametrize(("module", "version", "request_of"), LONG)
async def test_an_answer_about_metadata_is_of_one_moment(module, version, request_of, monkeypatch):
    """Whenever the image changes, the answer is that of the moment in which the request was handled."""
    expected = at_once(module, version, request_of)
    monkeypatch.setattr(module, "ROWS_OF_STEP", 1)
    monkeypatch.setattr(turns, "MAX_STEPS", 1)
    changed_before = taken = 0
    while changed_before <= taken:
        broker = Broker()
        response, taken = await in_counted_turns(
            answer(broker, module, request_of(), version),
            lambda turn, broker=broker, at=changed_before: broker.change() if turn == at else None,
        )
        assert encoded(module, version, response) == expected, changed_before
        changed_before += 1
    assert taken > 3
    broker = Broker()
    broker.change()
    response, _ = await in_counted_turns(answer(broker, module, request_of(), version))
    assert encoded(module, version, response) != expected, "an answer that begins after the change"


#: Module, request: more names than are looked up at once.
MANY_NAMES = [
    (k03_metadata, lambda: MetadataRequest(topics=named("c", "nil", "a", "c", "bad name", "b", "nil"))),
    (
        k03_metadata,
        lambda: MetadataRequest(
            topics=[MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in (*IDS.values(), UUID(int=3))]
        ),
    ),
    (
        k75_describe_topic_partitions,
        lambda: DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in ("c", "nil", "a", "c", "b", "nil", "aa")],
            response_partition_limit=16,
            cursor=Cursor(topic_name="a", partition_index=2),
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("module", "request_of"), MANY_NAMES)
async def test_topics_of_many_names_are_looked_up_at_one_moment(module, request_of, monkeypatch):
    """Whenever the image changes, the answer is that of the moment before, or of the one after."""
    version = module.API.versions[-1]
    before = at_once(module, version, request_of)
    broker = Broker()
    broker.change()
    after = encoded(module, version, answer(broker, module, request_of(), version))
    assert before != after
    monkeypatch.setattr(long_answers, "NAMES_OF_STEP", 2)
    monkeypatch.setattr(module, "NAMES_OF_STEP", 2)
    monkeypatch.setattr(module, "ROWS_OF_STEP", 1)
    monkeypatch.setattr(turns, "MAX_STEPS", 1)
    changed_before = taken = 0
    found = []
    while changed_before <= taken:
        broker = Broker()
        response, taken = await in_counted_turns(
            answer(broker, module, request_of(), version),
            lambda turn, broker=broker, at=changed_before: broker.change() if turn == at else None,
        )
        found.append(encoded(module, version, response))
        changed_before += 1
    moment = found.index(before)
    assert found == [after] * moment + [before] * (len(found) - moment)
    assert 0 < moment < len(found)


class Creator:
    """Creates nothing, and keeps what it was asked for."""

    async def create(self, names):
        self.names = names


async def test_one_request_creates_a_bounded_number_of_topics():
    broker = Broker()
    broker.config.auto_create_topics_enable = True
    broker.topic_creator = Creator()
    names = [f"new{number}" for number in range(3 * k03_metadata.MOST_CREATED)]
    request = MetadataRequest(topics=named("a", *names, *names), allow_auto_topic_creation=True)
    response = await answer(broker, k03_metadata, request, 13)
    assert broker.topic_creator.names == names[: k03_metadata.MOST_CREATED]
    assert [topic.name for topic in response.topics] == ["a", *names]


async def test_replicas_are_judged_by_their_own_directories():
    """The same list of brokers in other directories: what is known of one is not taken for the other."""
    broker = Broker()
    image = broker.metadata.image
    rows = [(DIRECTORY, DIRECTORY), (LOST, DIRECTORY), (DIRECTORY, LOST), (DIRECTORY, DIRECTORY)]
    image.replay_all(
        PartitionRecord(
            partition_id=PARTITIONS + at, topic_id=IDS["a"], replicas=[1, 2], isr=[1], leader=1, directories=list(row)
        )
        for at, row in enumerate(rows)
    )  # fmt: skip
    response = answer(broker, k03_metadata, MetadataRequest(topics=named("a")), 12)
    found = [row.offline_replicas for row in response.topics[0].partitions[PARTITIONS:]]
    assert found == [[], [1], [2], []]


@pytest.mark.parametrize("version", [7, 9])
@pytest.mark.parametrize("later", [(), ("g2",), ("g1", "g2", "g3")])
async def test_offsets_of_many_groups(version, later, monkeypatch):
    def request():
        if version < 8:
            return OffsetFetchRequest(group_id="g1", topics=None)
        return OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=f"g{number}", topics=None) for number in range(4)]
        )

    expected = answer(Broker(), k09_offset_fetch, request(), version)
    assert not isinstance(expected, Awaitable)
    monkeypatch.setattr(k09_offset_fetch, "ROWS_OF_STEP", 2)
    broker = Broker()
    broker.groups.later = dict.fromkeys(later)
    response = await answer(broker, k09_offset_fetch, request(), version)
    assert response == expected


class Connection:
    session = None
    is_closed = False
    client_host, listener_name = "localhost", "PLAINTEXT"

    def time_reply(self, histogram):
        pass


@pytest.mark.parametrize("is_long", [False, True])
async def test_a_long_response_is_encoded_in_turns(is_long, monkeypatch):
    groups = [ListedGroup(group_id=str(number)) for number in range(1000 if is_long else 3)]
    broker = Broker()
    broker.groups = SimpleNamespace(list_groups=lambda states, types: ListGroupsResponse(groups=groups))
    frame = encode_request_header(ApiKey.LIST_GROUPS, 5, 7, "me") + encode_request(
        ApiKey.LIST_GROUPS, 5, ListGroupsRequest()
    )
    reply = Dispatcher(broker)(memoryview(frame), Connection())
    assert isinstance(reply, Coroutine if is_long else list)
    monkeypatch.setattr(turns, "MAX_STEPS", 1)
    reply, taken = await in_counted_turns(reply)
    assert reply == [
        encode_response_header(ApiKey.LIST_GROUPS, 5, 7),
        encode_response(ApiKey.LIST_GROUPS, 5, ListGroupsResponse(groups=groups)),
    ]
    # The list, the first step of its encoding, one for each of the other nine.
    assert taken >= (11 if is_long else 0)


RUNTIME = SimpleNamespace(turns=loop_turns())


def work(steps, result):
    for _ in range(steps):
        yield
    if isinstance(result, BaseException):
        raise result
    return result


async def test_short_work_is_done_at_once():
    assert at_once_or_in_turns(work(0, 5), RUNTIME) == 5
    future = asyncio.get_running_loop().create_future()
    assert at_once_or_in_turns(work(0, future), RUNTIME) is future
    with pytest.raises(InvalidRequest):
        at_once_or_in_turns(work(0, InvalidRequest("no")), RUNTIME)


async def test_long_work_leaves_others_their_turn():
    turns_of_others = 0

    async def others():
        nonlocal turns_of_others
        while True:
            turns_of_others += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(others())
    future = asyncio.get_running_loop().create_future()
    future.set_result(6)
    for steps, result, expected in ((1, 5, 5), (turns.MAX_STEPS * 5, future, 6)):
        begun = turns_of_others
        answered = at_once_or_in_turns(work(steps, result), RUNTIME)
        assert turns_of_others == begun
        assert await answered == expected
        assert turns_of_others - begun >= 1 + (steps - 1) // turns.MAX_STEPS
    with pytest.raises(InvalidRequest):
        await at_once_or_in_turns(work(3, InvalidRequest("no")), RUNTIME)
    counting.cancel()


async def test_a_short_answer_waits_for_its_turn_and_not_until_a_long_one_is_complete():
    lock, done, turns_of_loop = asyncio.Lock(), [], loop_turns()
    runtime = SimpleNamespace(turns=turns_of_loop)

    async def answer(steps, result):
        done.append(await at_once_or_in_turns(work(steps, result), runtime, lock))

    long = asyncio.create_task(answer(turns.MAX_STEPS * 20, "long"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert lock.locked()
    assert turns_of_loop.is_spent
    await asyncio.gather(*[answer(0, number) for number in range(3)])
    assert done == [0, 1, 2]
    await long
    turns_of_loop.charge(turns.MAX_STEPS)
    with pytest.raises(InvalidRequest):
        await at_once_or_in_turns(work(0, InvalidRequest("no")), runtime, lock)
    future = asyncio.get_running_loop().create_future()
    future.set_result(7)
    turns_of_loop.charge(turns.MAX_STEPS)
    assert await at_once_or_in_turns(work(0, future), runtime, lock) == 7
    turns_of_loop.charge(turns.MAX_STEPS)
    assert await at_once_or_in_turns(work(5, 8), runtime, lock) == 8


async def test_long_answers_are_made_one_after_the_other_and_waited_for_together():
    lock = asyncio.Lock()
    begun = []
    made = asyncio.Event()
    futures = [asyncio.get_running_loop().create_future() for _ in range(3)]

    def noted(number):
        yield
        for _ in range(3 * turns.MAX_STEPS):
            begun.append(number)
            yield
        if number == 2:
            made.set()
        return futures[number]

    answers = [asyncio.create_task(at_once_or_in_turns(noted(number), RUNTIME, lock)) for number in range(3)]
    await made.wait()
    assert begun == sorted(begun)
    for number, future in enumerate(futures):
        future.set_result(number)
    assert await asyncio.gather(*answers) == [0, 1, 2]


@pytest.mark.parametrize("waiting_every", [0, 1, 7])
async def test_many_answers_are_collected_in_turns_in_their_order(waiting_every):
    loop = asyncio.get_running_loop()
    count = 20_000
    answers = [
        loop.create_future() if waiting_every and not number % waiting_every else number
        for number in range(count)
    ]
    waiting = [number for number, each in enumerate(answers) if isinstance(each, asyncio.Future)]
    runtime = SimpleNamespace(turns=loop_turns())

    def complete(turn):
        for number in [waiting.pop() for _ in range(min(len(waiting), 2_000))]:
            answers[number].set_result(number)

    found, taken = await in_counted_turns(when_all(answers, list, runtime), complete)
    assert found == list(range(count))
    assert taken > count / 1_000 / 10  # a thousand are ten of a turn's hundred steps


async def test_a_closed_connection_leaves_the_answers_to_those_who_make_them():
    answers = [asyncio.get_running_loop().create_future() for _ in range(200)]
    waiting = asyncio.ensure_future(when_all(answers, list, SimpleNamespace(turns=loop_turns())))
    for _ in range(5):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    assert waiting.cancelled()
    assert not any(each.cancelled() for each in answers)


async def test_a_few_answers_are_collected_at_once():
    assert when_all([1, 2], sum, SimpleNamespace()) == 3


@pytest.mark.parametrize("count", [0, 1, 3, 4, 100])
def test_names_are_sorted_and_each_is_kept_once_in_steps(count, monkeypatch):
    names = [f"n{(number * 37) % 61}" for number in range(count)]
    expected = list(dict.fromkeys(names))
    for size in (1, 3, 1000):
        monkeypatch.setattr(long_answers, "NAMES_OF_STEP", size)
        assert list(work_steps.at_once(long_answers.distinct(names, str))) == expected
        assert work_steps.at_once(long_answers.in_order(names)) == sorted(names)
