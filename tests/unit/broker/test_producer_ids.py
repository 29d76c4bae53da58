"""Blocks of producer ids: asked for in time, each id once, failures returned to the requests that wait."""

import asyncio

import pytest

from ottla.broker.producer_ids import ProducerIdManager
from ottla.protocol.errors import CoordinatorLoadInProgress, ErrorCode, StaleBrokerEpoch
from ottla.protocol.messages.allocate_producer_ids import AllocateProducerIdsResponse

BLOCK = 10


class Controller:
    def __init__(self) -> None:
        self.next_id = 1000
        self.requests = []
        self.failures = []

    async def __call__(self, request):
        self.requests.append(request)
        await asyncio.sleep(0.01)
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return AllocateProducerIdsResponse(error_code=failure)
        first, self.next_id = self.next_id, self.next_id + BLOCK
        return AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=BLOCK)


@pytest.fixture
def controller():
    return Controller()


@pytest.fixture
def ids(simulation, controller):
    return ProducerIdManager(
        controller, broker_id=1, broker_epoch=lambda: 7, runtime=simulation.runtime("broker")
    )


# KIP-730
def test_each_id_once_over_many_blocks(simulation, controller, ids):
    async def main():
        return await asyncio.gather(*[ids.next() for _ in range(35)])

    assert simulation.run(main()) == list(range(1000, 1035))
    assert {(request.broker_id, request.broker_epoch) for request in controller.requests} == {(1, 7)}


def test_the_next_block_is_there_before_this_one_is_used_up(simulation, controller, ids):
    async def main():
        await ids.next()
        for _ in range(BLOCK - 2):
            assert ids.try_next() is not None
        assert len(controller.requests) == 1
        await asyncio.sleep(0.1)
        assert len(controller.requests) == 2
        return [ids.try_next() for _ in range(2)]

    assert simulation.run(main()) == [1009, 1010]


def test_failures_are_tried_again(simulation, controller, ids):
    controller.failures = [ErrorCode.broker_id_not_registered, StaleBrokerEpoch()]

    async def main():
        return await ids.next()

    assert simulation.run(main()) == 1000
    assert len(controller.requests) == 3


def test_a_controller_that_assigns_none(simulation, controller, ids):
    controller.failures = [ErrorCode.not_controller] * 20

    async def main():
        with pytest.raises(CoordinatorLoadInProgress):
            await ids.next()
        return await ids.next()

    assert simulation.run(main()) == 1000
