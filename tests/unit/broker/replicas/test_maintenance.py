"""A background task that fails is logged, and ends nothing but itself."""

import asyncio

import pytest

from ottla.broker.replicas.log_maintenance import LogMaintenance
from ottla.config.load import load_config
from ottla.runtime.simulated import Simulation
from ottla.storage.background import BackgroundJob


class Logs:
    """A log manager whose every step may fail."""

    def __init__(self):
        self.done = []
        self.calls = 0

    def fails(self):
        raise ValueError("a bug")

    def maintain(self, now_ms):
        self.calls += 1
        if self.calls == 1:
            self.fails()
        return [
            BackgroundJob(name="bad run", run=self.fails, finish=lambda: self.done.append("bad run")),
            BackgroundJob(name="bad finish", run=lambda: self.done.append("bad finish"), finish=self.fails),
            BackgroundJob(name="good", run=lambda: self.done.append("good")),
        ]

    def clean_one(self, now_ms, *, throttle):
        self.calls += 1
        if self.calls == 1:
            self.fails()
        return BackgroundJob(name="clean", run=self.fails)


@pytest.mark.parametrize("task", ["_maintain", "_clean"])
def test_the_background_goes_on(tmp_path, caplog, task):
    logs = Logs()
    config = load_config(data_dir=tmp_path, overrides=["log.initial.task.delay.ms=0"])
    with Simulation(seed=1) as simulation:
        runtime = simulation.runtime("broker")

        async def main():
            maintenance = LogMaintenance(runtime, logs, lambda: config, after_retention=lambda: None)
            running = asyncio.ensure_future(getattr(maintenance, task)())
            await asyncio.sleep(100)
            assert not running.done()
            running.cancel()

        simulation.run(main())
    assert "a bug" in caplog.text
    assert 3 <= logs.calls <= 101  # a job that fails is not tried again without a pause
    if task == "_maintain":
        assert logs.done[:3] == ["bad run", "bad finish", "good"]


@pytest.mark.logs("choosing a log to clean failed")
def test_the_pause_of_compaction_begins_again_when_its_length_is_altered(tmp_path):
    """A day's pause that is altered to a second is over in a second, as with Kafka, which restarts its cleaners."""
    logs = Logs()
    config = load_config(data_dir=tmp_path, overrides=["log.cleaner.backoff.ms=86400000"])
    with Simulation(seed=1) as simulation:
        runtime = simulation.runtime("broker")

        async def main():
            nonlocal config
            maintenance = LogMaintenance(runtime, logs, lambda: config, after_retention=lambda: None)
            running = asyncio.ensure_future(maintenance._clean())
            await asyncio.sleep(10)
            maintenance.on_config_changed()  # of something else
            assert logs.calls == 0
            config = config.with_dynamic({"log.cleaner.backoff.ms": "1000"}, {})
            maintenance.on_config_changed()
            await asyncio.sleep(1.5)
            running.cancel()

        simulation.run(main())
    assert logs.calls == 1


def test_all_parts_of_a_job_are_run(tmp_path, caplog):
    """A failed part ends the job."""
    done = []

    def parts(count, *, bad=None):
        def run():
            done.append(count)
            if count == bad:
                raise ValueError("a bug")

        return BackgroundJob(
            name="part", run=run, finish=lambda: parts(count - 1, bad=bad) if count else None
        )

    with Simulation(seed=1) as simulation:
        runtime = simulation.runtime("broker")
        config = load_config(data_dir=tmp_path)
        maintenance = LogMaintenance(runtime, Logs(), lambda: config, after_retention=lambda: None)
        assert simulation.run(maintenance._run(parts(3)))
        assert done == [3, 2, 1, 0]
        assert not simulation.run(maintenance._run(parts(7, bad=6)))
        assert done[4:] == [7, 6]
    assert "a bug" in caplog.text
