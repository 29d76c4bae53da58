"""The remote store is checked while clients are served; a call of it that hangs is reported."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ottla.broker.tiering.store_checks import INTERVAL_S, StoreChecks
from ottla.remote.observed_store import ObservedStore
from ottla.remote.stores.local_directory import LocalDirectory
from ottla.runtime.simulated import SimulatedRuntime


class Hanging(LocalDirectory):
    """A store whose deletions hang until they are released, as those of a network disk that is gone."""

    begun, released = threading.Event(), threading.Event()

    def delete_log_segment_data(self, metadata):
        self.begun.set()
        assert self.released.wait(30)


@pytest.mark.logs("the remote store cannot be used, so that closed segments stay on the local disks")
def test_a_call_that_hangs_is_one_warning(tmp_path, caplog):
    caplog.set_level("INFO")
    runtime = SimulatedRuntime(seed=1)
    directory = Hanging()
    (tmp_path / "kafka-tiered-storage").mkdir()
    directory.configure({"dir": str(tmp_path)})
    store = ObservedStore(directory, monotonic=runtime.monotonic)

    async def scenario():
        checks = runtime.loop.create_task(StoreChecks(runtime, store, node_id=1).run())
        await asyncio.sleep(1)
        hanging = thread.submit(store.delete_log_segment_data, None)
        assert directory.begun.wait(30)
        await asyncio.sleep(store.silence_s + 3 * INTERVAL_S)
        assert store.is_up is False
        directory.released.set()
        hanging.result()
        await asyncio.sleep(INTERVAL_S)
        checks.cancel()

    with ThreadPoolExecutor(1) as thread:
        runtime.run(scenario())
    runtime.simulation.close()
    assert [record.message.rpartition("disks: ")[2] for record in caplog.records] == [
        "the remote store can be used: it was written, read and deleted from",
        "a call of the store has had no answer for 90 s",
        "the remote store can be used again",
    ]
