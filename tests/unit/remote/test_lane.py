"""Lane: one kind of task for many partitions; in virtual time (KIP-405, remote.log.manager.task.*)."""

import asyncio
from logging import WARNING

import pytest

from ottla.remote.errors import RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.log_manager.backoff import backoff_ms
from ottla.remote.log_manager.lane import Lane, NotYet
from ottla.remote.log_manager.settings import RemoteLogManagerSettings
from ottla.runtime.simulated import SimulatedRuntime


@pytest.fixture
def runtime():
    runtime = SimulatedRuntime(seed=1)
    yield runtime
    runtime.simulation.close()


class Tasks:
    """Tasks that take a second; a partition has as many in a row as `left` says, and fails as often as
    `failures` says.
    """

    def __init__(self, runtime, *, permits=2, **settings):
        self.runtime = runtime
        self.permits = permits
        self.settings = RemoteLogManagerSettings(retry_jitter=0.0, **settings)
        self.left = {}
        self.failures = {}
        self.error = RetriableRemoteStorageError("503")
        self.prepared = []
        self.began = []
        self.running = set()
        self.most_running = 0
        self.lane = Lane(
            "the test of",
            runtime=runtime,
            settings=lambda: self.settings,
            permits=lambda: self.permits,
            prepare=self.prepare,
        )

    def prepare(self, key):
        self.prepared.append((round(self.runtime.monotonic(), 3), key))
        return self.work(key) if self.left.get(key) else None

    async def work(self, key):
        assert key not in self.running
        self.running.add(key)
        self.most_running = max(self.most_running, len(self.running))
        self.began.append((round(self.runtime.monotonic(), 3), key))
        await asyncio.sleep(1)
        self.running.remove(key)
        if self.failures.get(key):
            self.failures[key] -= 1
            raise self.error
        self.left[key] -= 1
        return True

    def times_of(self, key):
        return [at for at, each in self.began if each == key]


def play(runtime, story):
    async def run():
        await story()

    runtime.run(run())


def test_idle_partitions_are_prepared_once_an_interval_and_have_no_task(runtime):
    tasks = Tasks(runtime)

    async def story():
        service = runtime.supervise(tasks.lane.run, name="lane")
        for key in range(1000):
            tasks.lane.add(key)
        await asyncio.sleep(95)
        assert len(tasks.prepared) == 4000
        assert {at for at, _ in tasks.prepared} == {0, 30, 60, 90}
        assert tasks.lane.running == 0
        service.cancel()

    play(runtime, story)


def test_a_permit_that_returns_without_a_task_is_used(runtime):
    """Calls of the store that were abandoned have all permits; no task runs, and no timer is set, when they end."""
    tasks = Tasks(runtime, permits=0)
    tasks.left = {"a": 1}

    async def story():
        service = runtime.supervise(tasks.lane.run, name="lane")
        tasks.lane.add("a")
        await asyncio.sleep(3600)
        assert tasks.left == {"a": 1}
        tasks.permits = 1
        await asyncio.sleep(3)
        assert tasks.left == {"a": 0}
        service.cancel()

    play(runtime, story)


def test_permits_bound_the_running_tasks_and_partitions_take_turns(runtime):
    tasks = Tasks(runtime)
    tasks.left = {"a": 3, "b": 3, "c": 1}

    async def story():
        service = runtime.supervise(tasks.lane.run, name="lane")
        for key in "abc":
            tasks.lane.add(key)
        await asyncio.sleep(10)
        assert tasks.most_running == 2
        assert [key for _, key in tasks.began] == ["a", "b", "c", "a", "b", "a", "b"]
        tasks.permits = 1  # dynamic
        tasks.left = {"a": 2, "b": 2}
        tasks.most_running = 0
        tasks.lane.wake("a")
        tasks.lane.wake("b")
        await asyncio.sleep(10)
        assert tasks.most_running == 1
        assert tasks.left == {"a": 0, "b": 0}
        service.cancel()

    play(runtime, story)


@pytest.mark.logs("has failed, the next attempt")
def test_failures_are_retried_with_back_off_and_logged_once_in_a_row(runtime, caplog):
    tasks = Tasks(runtime, retry_backoff_ms=500, retry_backoff_max_ms=4000)
    tasks.left, tasks.failures = {"a": 1, "b": 1}, {"a": 6}

    async def story():
        service = runtime.supervise(tasks.lane.run, name="lane")
        tasks.lane.add("a")
        tasks.lane.add("b")
        await asyncio.sleep(60)
        assert tasks.times_of("a") == [0, 1.5, 3.5, 6.5, 11.5, 16.5, 21.5]
        assert tasks.times_of("b") == [0]
        assert tasks.lane.failing == 0
        service.cancel()

    play(runtime, story)
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 1


@pytest.mark.logs("has failed, the next attempt")
def test_what_a_store_refuses_for_good_is_one_error_and_tried_again_rarely(runtime, caplog):
    tasks = Tasks(runtime, retry_backoff_ms=500, retry_backoff_max_ms=4000)
    tasks.left, tasks.failures = {"a": 1}, {"a": 3}
    tasks.error = RemoteStorageError("the name is too long")

    async def story():
        service = runtime.supervise(tasks.lane.run, name="lane")
        tasks.lane.add("a")
        await asyncio.sleep(60)
        assert tasks.times_of("a") == [0, 5, 10, 15]
        service.cancel()

    play(runtime, story)
    assert [each.levelname for each in caplog.records if each.levelno >= WARNING] == ["ERROR"]


@pytest.mark.parametrize(
    ("left", "failures", "error"),
    [(1, 2, MemoryError()), (2, 1, asyncio.CancelledError())],
    ids=["any kind", "something that the work awaits is cancelled by others"],
)
@pytest.mark.logs("has failed, the next attempt")
def test_an_exception_of_any_kind_is_retried(runtime, left, failures, error):
    tasks = Tasks(runtime)
    tasks.left, tasks.failures, tasks.error = {"a": left}, {"a": failures}, error

    async def story():
        service = runtime.supervise(tasks.lane.run, name="lane")
        tasks.lane.add("a")
        await asyncio.sleep(20)
        assert tasks.left == {"a": 0}
        service.cancel()

    play(runtime, story)


def test_what_is_not_possible_yet_is_no_failure(runtime, caplog):
    tasks = Tasks(runtime)
    is_ready = False

    def prepare(key):
        if not is_ready:
            raise NotYet("metadata")
        return tasks.work(key)

    tasks.left = {"a": 1}
    tasks.lane = Lane(
        "the test of", runtime=runtime, settings=lambda: tasks.settings, permits=lambda: 1, prepare=prepare
    )

    async def story():
        nonlocal is_ready
        service = runtime.supervise(tasks.lane.run, name="lane")
        tasks.lane.add("a")
        await asyncio.sleep(1)
        assert tasks.lane.failing == 0
        is_ready = True
        await asyncio.sleep(2)
        assert tasks.left == {"a": 0}
        service.cancel()

    play(runtime, story)
    assert [each for each in caplog.records if each.levelname in ("WARNING", "INFO")] == []


def test_a_partition_that_is_added_again_while_its_task_runs_has_one_task(runtime):
    tasks = Tasks(runtime)
    tasks.left = {"a": 2}

    async def story():
        service = runtime.supervise(tasks.lane.run, name="lane")
        tasks.lane.add("a")
        await asyncio.sleep(0.5)
        tasks.lane.remove("a")
        assert "a" not in tasks.lane
        tasks.lane.add("a")
        await asyncio.sleep(5)
        assert tasks.times_of("a") == [0, 1]
        tasks.lane.remove("a")
        tasks.left = {"a": 1}
        tasks.lane.wake("a")
        await asyncio.sleep(60)
        assert tasks.left == {"a": 1}
        service.cancel()

    play(runtime, story)


def test_a_stop_cancels_what_runs(runtime):
    tasks = Tasks(runtime)
    tasks.left = {"a": 1}

    async def story():
        service = runtime.supervise(tasks.lane.run, name="lane")
        tasks.lane.add("a")
        await asyncio.sleep(0.5)
        service.cancel()
        await asyncio.gather(service, return_exceptions=True)
        assert tasks.lane.running == 0
        await asyncio.sleep(5)
        assert tasks.left == {"a": 1}

    play(runtime, story)


class _Bug(Exception):
    pass


@pytest.mark.logs("it is started again")
@pytest.mark.parametrize("after_s", [0.0, 0.5])
def test_a_service_that_has_failed_finds_the_partitions_again_that_were_running(runtime, after_s):
    """It also finds a partition whose task has not begun."""
    tasks = Tasks(runtime)
    tasks.left = {"a": 2, "b": 1}
    #: Of the next looks at the permits.
    failures = []

    def permits():
        if failures and (failure := failures.pop(0)) is not None:
            raise failure
        return 2

    async def story():
        tasks.lane._permits = permits
        service = runtime.supervise(tasks.lane.run, name="lane")
        await asyncio.sleep(0.1)
        tasks.lane.add("a")
        if after_s:
            await asyncio.sleep(after_s)
            tasks.running.clear()
            failures.append(_Bug())
        else:
            failures.extend([None, _Bug()])
        tasks.lane.add("b")
        await asyncio.sleep(20)
        assert tasks.left == {"a": 0, "b": 0}
        service.cancel()

    with pytest.raises(BaseExceptionGroup) as raised:
        play(runtime, story)
    assert [type(each) for each in raised.value.exceptions] == [_Bug]


@pytest.mark.parametrize(
    ("failures", "pause_ms"), [(1, 500), (2, 1000), (3, 2000), (7, 30_000), (1_000_000, 30_000)]
)
def test_the_back_off_doubles_up_to_its_bound(runtime, failures, pause_ms):
    settings = RemoteLogManagerSettings(retry_jitter=0.0)
    assert backoff_ms(failures, settings, runtime.random) == pause_ms
    jittered = [backoff_ms(failures, RemoteLogManagerSettings(), runtime.random) for _ in range(200)]
    assert pause_ms * 0.8 <= min(jittered) < pause_ms < max(jittered) <= pause_ms * 1.2
