"""The order in which requests are decided.

About KIP-631.
"""

import asyncio

import pytest

from ottla.controller.decision_lock import DecisionLock


class Requests:
    """Requests that take two turns each, and the order in which they hold the lock."""

    def __init__(self) -> None:
        self.lock = DecisionLock()
        self.order: list[str] = []
        self.holders = 0

    async def decide(self, name: str) -> None:
        await self.lock.acquire(goes_first=name.startswith("heartbeat"))
        self.holders += 1
        assert self.holders == 1
        self.order.append(name)
        await asyncio.sleep(0)
        self.holders -= 1
        self.lock.release()

    async def arrive(self, *names: str) -> list[asyncio.Task[None]]:
        tasks = [asyncio.ensure_future(self.decide(name)) for name in names]
        await asyncio.sleep(0)
        return tasks


async def test_heartbeats_go_first_and_each_class_in_its_order_of_arrival():
    requests = Requests()
    tasks = await requests.arrive("holder", "a", "heartbeat 1", "b", "heartbeat 2")
    await asyncio.gather(*tasks)
    assert requests.order == ["holder", "heartbeat 1", "heartbeat 2", "a", "b"]


async def test_who_arrives_when_the_lock_is_released_waits_behind_those_that_waited():
    requests = Requests()
    tasks = await requests.arrive("holder", "a")
    for number in range(3):
        tasks += await requests.arrive(f"later {number}")
    await asyncio.gather(*tasks)
    assert requests.order == ["holder", "a", "later 0", "later 1", "later 2"]


@pytest.mark.parametrize("is_chosen", [False, True])
@pytest.mark.parametrize("name", ["a", "heartbeat"])
async def test_a_request_that_is_cancelled_while_it_waits_leaves_the_lock_to_the_next(
    name: str, is_chosen: bool
):
    requests = Requests()
    await requests.lock.acquire()
    cancelled, *others = await requests.arrive(name, "b", "c")
    if is_chosen:
        requests.lock.release()
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert cancelled.cancelled()
    if not is_chosen:
        assert not requests.order
        requests.lock.release()
    await asyncio.gather(*others)
    assert requests.order == ["b", "c"]
    await asyncio.wait_for(requests.decide("d"), 1)
