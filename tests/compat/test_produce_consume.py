"""Records go in by one client library and come out by another, as they were."""

import pytest

from tests.compat.clients import CLIENTS, CODECS, Message

ALL_KINDS = [
    Message(b"plain"),
    Message(b"with key", b"key"),
    Message(b"with headers", b"key", (("h1", b"v1"), ("h1", b"again"), ("empty", b""))),
    Message(b"", b"empty value"),
    Message(None, b"tombstone"),
    Message(b"empty key", b""),
    Message(bytes(range(256)) * 40, "schlüssel".encode()),
]

by_client = pytest.mark.parametrize("producer", CLIENTS, ids=lambda client: client.name)
by_consumer = pytest.mark.parametrize("consumer", CLIENTS, ids=lambda client: client.name)


@by_client
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_of_every_producer_is_read_by_every_consumer(server, topic, producer, codec):
    offsets = producer.produce(server.bootstrap, topic, ALL_KINDS, codec=codec)
    assert offsets == list(range(len(ALL_KINDS)))
    for consumer in CLIENTS:
        assert consumer.consume(server.bootstrap, topic, len(ALL_KINDS)) == ALL_KINDS, consumer.name


@by_client
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(server, topic, producer, acks):
    first, *messages = [Message(f"{number}".encode()) for number in range(100)]
    producer.produce(server.bootstrap, topic, [first])  # it waits for the leader: else clients get errors
    producer.produce(server.bootstrap, topic, messages, acks=acks)
    assert CLIENTS[0].consume(server.bootstrap, topic, 100) == [first, *messages]


@by_client
@by_consumer
def test_a_message_of_ten_megabytes(server, topic, producer, consumer):
    large = [Message(b"small before"), Message(b"x" * 10_000_000, b"large"), Message(b"small after")]
    producer.produce(server.bootstrap, topic, large)
    assert consumer.consume(server.bootstrap, topic, len(large)) == large
