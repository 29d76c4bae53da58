"""Tiered topics that live for seconds: they are written, copied, and deleted, wherever their copying is then."""

import asyncio
from random import Random

from cluster_clients import BACKOFF_S, Producer
from cluster_world import World

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState


async def fleeting(world: World, number: int, configs: dict[str, object]) -> None:
    """One topic, until it is deleted."""
    name = f"fleeting-{number}"
    await world.create_topic(name, **configs)
    producer = Producer(
        world.simulation,
        Random(world.random.getrandbits(64)),
        world.broker_ids,
        world.history,
        name=f"{name}-producer",
        topic=name,
        partition=0,
        acks=1,
    )
    writing = asyncio.ensure_future(producer.produce(pause_s=0.02, is_over=lambda: False))
    await asyncio.sleep(world.random.choice((0.5, 1.5, 3.0)))
    writing.cancel()
    await asyncio.wait([writing])
    await producer.close()
    client = world.client(f"{name}-admin")
    world.note(f"delete {name}")
    while name in world.judge.image.topics_by_name:
        response = await client.request_any(
            ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=1000)
        )
        if response.responses[0].error_code in (ErrorCode.none, ErrorCode.unknown_topic_or_partition):
            return
        await asyncio.sleep(BACKOFF_S)
