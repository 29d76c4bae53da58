"""Pages of both formats that are requested at the same time, and what a page leaves behind."""

import asyncio
import gc

from prometheus_client.registry import CollectorRegistry

from ottla.broker.http.request import HttpRequest
from ottla.broker.metrics.collector import NodeCollector
from ottla.broker.metrics.group_metrics import GroupOffset, GroupPass
from ottla.broker.metrics.pages import Pages, TextFormat
from ottla.runtime.simulated import SimulatedRuntime


def request(accept):
    return HttpRequest(path="/metrics", is_head=False, accept=accept, is_persistent=True)


def test_pages_of_both_formats_are_prepared_one_after_the_other():
    """The answers of other brokers to one page were forgotten by the other one, whose lags were missing."""
    runtime = SimulatedRuntime(seed=1)
    events = []

    async def refresh():
        events.append("asked")
        await asyncio.sleep(0.5)
        events.append("answered")

    def prepare():
        for _ in range(300):  # several turns
            yield
        events.append("prepared")

    async def scenario():
        collector = NodeCollector([], prepare, refresh=refresh)
        pages = Pages(runtime, collector, process=CollectorRegistry())
        found = await asyncio.gather(*(pages.respond(request(each.value)) for each in TextFormat))
        assert [each.content_type for each in found] == [each.value for each in TextFormat]

    runtime.run(scenario())
    runtime.simulation.close()
    assert events == ["asked", "answered", "prepared"] * 2


def test_a_scraper_that_is_gone_does_not_cancel_the_page_of_the_others():
    runtime = SimulatedRuntime(seed=1)

    async def refresh():
        await asyncio.sleep(0.5)

    async def scenario():
        collector = NodeCollector([], lambda: iter(()), refresh=refresh)
        pages = Pages(runtime, collector, process=CollectorRegistry())
        gone, stays = [pages.respond(request("")) for _ in range(2)]
        await asyncio.sleep(0.1)
        gone.cancel()
        assert (await stays).content_type == TextFormat.PROMETHEUS.value

    runtime.run(scenario())
    runtime.simulation.close()


def test_the_rows_of_a_page_are_freed_in_turns():
    class Row(GroupOffset):
        freed = 0

        def __del__(self):
            Row.freed += 1

    runtime = SimulatedRuntime(seed=1)

    async def scenario():
        found = GroupPass(runtime, 50_000)
        found.offsets += [Row({}, 0, 0) for _ in range(50_000)]
        gc.collect()
        del found
        assert not Row.freed
        most, before = 0, 0
        while Row.freed < 50_000:
            await asyncio.sleep(0)
            most, before = max(most, Row.freed - before), Row.freed
        assert most <= 10_000

    runtime.run(scenario())
    runtime.simulation.close()
