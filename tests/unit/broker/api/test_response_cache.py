"""Response cache: a request gets the bytes that it would get without it, whatever has changed in between."""

from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.api.dispatch import (
    MAX_CACHED_REQUEST_BYTES,
    MAX_CACHED_RESPONSE_BYTES,
    MAX_CACHED_RESPONSES,
    Dispatcher,
    RequestKey,
    ResponseCache,
)
from ottla.broker.metadata_cache import MetadataCache
from ottla.metadata.features import ELR_VERSION
from ottla.metadata.image import MetadataImage
from ottla.metadata.records import (
    BrokerEndpoint,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
)
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.codec import encode_request
from ottla.protocol.framing import encode_request_header
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.harness.loop_turns import loop_turns

IDS = {"a": UUID(int=50), "b": UUID(int=51)}


def node(number):
    ports = {"PLAINTEXT": 9092, "OTHER": 9093}
    endpoints = [BrokerEndpoint(name=name, host=f"b{number}", port=port) for name, port in ports.items()]
    return RegisterBrokerRecord(
        broker_id=number, broker_epoch=number, endpoints=endpoints, log_dirs=[UUID(int=1000)]
    )


def topic(name):
    partition = PartitionRecord(
        partition_id=0,
        topic_id=IDS[name],
        replicas=[1, 2],
        isr=[1, 2],
        leader=1,
        directories=[UUID(int=1000)] * 2,
    )
    return [TopicRecord(name=name, topic_id=IDS[name]), partition]


class Broker:
    """A broker with a response cache of its own."""

    def __init__(self):
        self.metadata = MetadataCache(MetadataImage(), kraft_version=lambda: 0)
        self.cluster_id = "cluster"
        # Not at random: the answers of two dispatchers are compared.
        self.now_s = 0.0
        self.runtime = SimpleNamespace(
            random=SimpleNamespace(choice=lambda alive: alive[-1]),
            monotonic=lambda: self.now_s,
            turns=loop_turns(),
        )
        self.long_answers = None
        self.config = SimpleNamespace(auto_create_topics_enable=True)
        self.topic_creator = self
        self.offset = 0
        self.commit(node(1), UnfenceBrokerRecord(id=1, epoch=1), node(2))

    def commit(self, *records):
        self.metadata.on_commit(records, self.offset, self.offset + 1)
        self.offset += 1

    async def create(self, names):
        for name in names:
            self.commit(*topic(name))

    def flip(self, name):
        if self.metadata.topic(name) is None:
            self.commit(*topic(name))
        else:
            self.commit(RemoveTopicRecord(topic_id=IDS[name]))

    def move_leader(self):
        if (found := self.metadata.topic("a")) is not None:
            leader = 3 - found.partitions[0].leader
            self.commit(PartitionChangeRecord(partition_id=0, topic_id=IDS["a"], leader=leader))

    def flip_fenced(self):
        is_fenced = self.metadata.broker(2).is_fenced
        self.commit((UnfenceBrokerRecord if is_fenced else FenceBrokerRecord)(id=2, epoch=2))

    def raise_feature(self):
        self.commit(FeatureLevelRecord(name=ELR_VERSION, feature_level=1 + self.offset % 2))


CHANGES = {
    "topic a": lambda broker: broker.flip("a"),
    "topic b": lambda broker: broker.flip("b"),
    "leader": Broker.move_leader,
    "fenced": Broker.flip_fenced,
    "feature": Broker.raise_feature,
    "nothing": lambda broker: broker.commit(NoOpRecord()),
}


def named(*names):
    return [MetadataRequestTopic(name=name) for name in names]


REQUESTS = {
    "all": lambda: MetadataRequest(topics=None),
    "a, not created": lambda: MetadataRequest(topics=named("a"), allow_auto_topic_creation=False),
    "a, created": lambda: MetadataRequest(topics=named("a")),
    "b by id": lambda: MetadataRequest(topics=[MetadataRequestTopic(topic_id=IDS["b"], name=None)]),
    "operations": lambda: MetadataRequest(topics=named("b"), include_topic_authorized_operations=True),
}


def frame_of(request, version, correlation_id=7):
    header = encode_request_header(ApiKey.METADATA, version, correlation_id, "client")
    return memoryview(bytearray(b"".join((header, encode_request(ApiKey.METADATA, version, request)))))


def connection(listener="PLAINTEXT"):
    return SimpleNamespace(
        session=None, client_host="h", listener_name=listener, is_closed=False, time_reply=lambda _: None
    )


def answer(dispatch, frame, listener="PLAINTEXT"):
    """The whole frame; of an answer that waits, what it is once it has waited."""
    reply = dispatch(frame, connection(listener))
    if isinstance(reply, list):
        return b"".join(reply)
    with pytest.raises(StopIteration) as done:
        reply.send(None)
    return b"".join(done.value.value)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("change"), st.sampled_from(sorted(CHANGES))),
        st.tuples(
            st.just("ask"),
            st.sampled_from(sorted(REQUESTS)),
            st.sampled_from([12, 13]),
            st.sampled_from(["PLAINTEXT", "OTHER"]),
        ),
    ),
    max_size=40,
)


@given(STEPS)
def test_a_response_is_that_of_a_broker_that_caches_none(steps):
    broker, other = Broker(), Broker()
    caching = Dispatcher(broker)
    for step in steps:
        if step[0] == "change":
            CHANGES[step[1]](broker)
            CHANGES[step[1]](other)
        else:
            _, name, version, listener = step
            frame = frame_of(REQUESTS[name](), version)
            assert answer(caching, frame, listener) == answer(Dispatcher(other), frame, listener)


@pytest.mark.parametrize("name", ["all", "a, created"])
def test_a_response_is_made_once_for_each_state(name, monkeypatch):
    cached = []
    put = ResponseCache.put

    def noted(self, request, state, encoded):
        cached.append(state)
        put(self, request, state, encoded)

    monkeypatch.setattr(ResponseCache, "put", noted)
    broker = Broker()
    dispatch = Dispatcher(broker)
    broker.flip("a")
    for correlation_id in (1, 2, 3):
        found = answer(dispatch, frame_of(REQUESTS[name](), 13, correlation_id))
        assert found[:4] == correlation_id.to_bytes(4, "big")
    assert len(cached) == 1
    broker.flip("b")
    answer(dispatch, frame_of(REQUESTS[name](), 13))
    assert len(cached) == 2


def test_a_request_that_creates_a_topic_is_not_answered_from_the_cache():
    broker = Broker()
    dispatch = Dispatcher(broker)
    frame = frame_of(REQUESTS["a, created"](), 13)
    for _ in range(2):
        answer(dispatch, frame)
        assert broker.metadata.topic("a") is not None
        broker.flip("a")


def request_key(number, *, size=10):
    return RequestKey(ApiKey.METADATA, 13, "PLAINTEXT", number.to_bytes(4, "big") * size)


def test_the_oldest_response_is_dropped_and_a_large_one_is_not_cached():
    cache = ResponseCache()
    for number in range(MAX_CACHED_RESPONSES):
        cache.put(request_key(number), 1, b"a")
    cache.put(request_key(0), 2, b"b")  # the newest now
    cache.put(request_key(MAX_CACHED_RESPONSES), 2, b"c")
    assert [cache.get(request_key(number), 1) for number in range(3)] == [None, None, b"a"]
    assert cache.get(request_key(0), 2) == b"b"
    cache.put(request_key(2), 2, bytes(MAX_CACHED_RESPONSE_BYTES + 1))
    assert cache.get(request_key(2), 2) is None


def test_a_large_request_is_not_cached(monkeypatch):
    monkeypatch.setattr(ResponseCache, "put", lambda *_: pytest.fail("cached"))
    request = MetadataRequest(topics=named("x" * MAX_CACHED_REQUEST_BYTES), allow_auto_topic_creation=False)
    answer(Dispatcher(Broker()), frame_of(request, 13))


def test_a_client_that_does_not_reach_the_controller_gets_the_id_of_another_one_without_a_record():
    broker = Broker()
    dispatch, frame = Dispatcher(broker), frame_of(REQUESTS["all"](), 13)
    broker.flip_fenced()
    choices = iter([0, 1])
    broker.runtime.random.choice = lambda alive: alive[next(choices)]
    first = answer(dispatch, frame)
    broker.now_s = 0.099
    assert answer(dispatch, frame) == first
    broker.now_s = 0.1
    assert answer(dispatch, frame) != first
