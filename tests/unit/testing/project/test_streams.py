"""A project's tests of its stream processors: FastStream on two clients, and coroutines of asyncio and of trio.

`tests/spark/test_wheel.py` runs them beside test_orders.py, in an environment with the wheel.
"""

import asyncio

import faststream.confluent
import faststream.kafka
import pytest

#: The two clients of FastStream: confluent-kafka and aiokafka.
BROKERS = {"confluent": faststream.confluent.KafkaBroker, "aiokafka": faststream.kafka.KafkaBroker}


@pytest.mark.parametrize("client", BROKERS)
async def test_a_processor_writes_what_it_has_read(ottla_broker, ottla_topic, ottla_group, client):
    application = BROKERS[client](ottla_broker.bootstrap_servers, logger=None)

    @application.subscriber(ottla_topic, group_id=ottla_group, auto_offset_reset="earliest")
    @application.publisher(f"{ottla_topic}-priced")
    async def price(order: dict) -> dict:
        return {**order, "price": 3 * order["count"]}

    async with application:
        await application.start()
        await application.publish({"count": 2}, ottla_topic)
        [record] = await ottla_broker.aio.wait_for_records(f"{ottla_topic}-priced", 1)
    assert record.value == b'{"count":2,"price":6}'


@pytest.mark.parametrize("client", BROKERS)
async def test_a_poison_pill_does_not_stop_a_processor(ottla_broker, ottla_topic, ottla_group, client):
    application = BROKERS[client](ottla_broker.bootstrap_servers, logger=None)
    handled = asyncio.Queue()

    @application.subscriber(ottla_topic, group_id=ottla_group, auto_offset_reset="earliest")
    async def count(number: int) -> None:
        await handled.put(number)

    await ottla_broker.aio.produce(ottla_topic, b"not a number", "7")
    async with application:
        await application.start()
        assert await asyncio.wait_for(handled.get(), 10) == 7


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_coroutines_of_either_loop(ottla_broker, ottla_topic, anyio_backend):
    async with ottla_broker.aio.recording(ottla_topic, ["x"]):
        await ottla_broker.aio.produce(ottla_topic, "x")
    assert await ottla_broker.aio.values(ottla_topic) == [b"x"]
