"""Work in a process of its own, through the runtime that starts it."""

import asyncio
import threading
from pathlib import Path

import psutil
import pytest

from ottla.bench.components.processes import has_ended
from ottla.runtime import Pool
from ottla.runtime.production import run
from ottla.runtime.workers import WorkerFailed

MODULE = "tests.harness.worker_module"


def test_calls_of_several_threads_are_conversations_of_their_own():
    async def main(runtime):
        worker = runtime.worker(MODULE, "doubled:")

        def call(number):
            return worker.call("double", answer=lambda question: number, silence_s=60)

        calls = [runtime.run_blocking(call, number, pool=Pool.UPKEEP) for number in range(8)]
        assert await asyncio.gather(*calls) == [f"doubled: {2 * number}" for number in range(8)]

    run(main)


def test_what_the_caller_raises_cancels_the_call_and_reaches_the_caller():
    async def main(runtime):
        worker = runtime.worker(MODULE, "")

        def refuse(question):
            raise KeyError(question)

        with pytest.raises(KeyError, match=r"which\?"):
            await runtime.run_blocking(
                lambda: worker.call("double", answer=refuse, silence_s=60), pool=Pool.UPKEEP
            )
        process_id = worker.process_id
        answer = await runtime.run_blocking(
            lambda: worker.call("double", answer=len, silence_s=60), pool=Pool.UPKEEP
        )
        assert answer == " 12"
        assert worker.process_id == process_id

    run(main)


def test_an_exception_of_the_handler_is_the_callers():
    async def main(runtime):
        worker = runtime.worker(MODULE, "")
        with pytest.raises(WorkerFailed, match="ValueError: no such request"):
            await runtime.run_blocking(
                lambda: worker.call("nonsense", answer=len, silence_s=60), pool=Pool.UPKEEP
            )

    run(main)


def test_the_end_of_the_runtime_ends_workers_before_the_threads_that_wait_for_them():
    async def main(runtime):
        worker = runtime.worker(MODULE, "")
        is_running = threading.Event()
        call = runtime.loop.create_task(
            runtime.run_blocking(
                lambda: worker.call("hang", answer=lambda _: is_running.set(), silence_s=600),
                pool=Pool.UPKEEP,
            )
        )
        assert await runtime.run_blocking(is_running.wait, 60, pool=Pool.READS)
        await runtime.close()
        with pytest.raises(WorkerFailed, match="has ended"):
            await call

    run(main)


def test_nothing_is_imported_from_the_working_directory(tmp_path, monkeypatch):
    """It may be a folder that others write to, and have folders that are named as our packages are."""
    for package in ("ottla", "tests"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(
            "raise SystemExit('imported from the working directory')"
        )
    monkeypatch.chdir(tmp_path)

    async def main(runtime):
        worker = runtime.worker(MODULE, "")
        call = runtime.run_blocking(lambda: worker.call("double", answer=len, silence_s=60), pool=Pool.UPKEEP)
        assert await call == " 12"

    run(main)


def test_no_other_code_starts_a_python_process():
    root = Path(__file__).parents[3]
    packages = (
        "runtime",
        "protocol",
        "metadata",
        "replication",
        "config",
        "storage",
        "remote",
        "controller",
        "broker",
    )
    files = [file for package in packages for file in (root / package).rglob("*.py")]
    assert [file.name for file in files if '"-m"' in file.read_text()] == ["child_python.py"]


@pytest.mark.parametrize(
    ("request_", "words"), [("hang", "was silent"), ("nonsense", "ValueError"), ("leave", "SystemExit: 3")]
)
def test_a_call_that_fails_ends_no_other_one(request_, words):
    """The next call has another process, and the first process ends with the last one of its calls."""

    async def main(runtime):
        worker = runtime.worker(MODULE, "")
        asked, answered = threading.Event(), threading.Event()

        def answer(question):
            asked.set()
            return answered.wait(60)

        def call(request, answer, silence_s):
            return runtime.run_blocking(
                lambda: worker.call(request, answer=answer, silence_s=silence_s), pool=Pool.UPKEEP
            )

        other = runtime.loop.create_task(call("double", answer, 60))
        assert await runtime.run_blocking(asked.wait, 60, pool=Pool.READS)
        first = worker.process_id
        with pytest.raises(WorkerFailed, match=words):
            await call(request_, len, 0.1 if request_ == "hang" else 60)
        assert worker.process_id is None
        assert await call("double", len, 60) == " 12"
        assert worker.process_id not in (None, first)
        assert not has_ended(psutil.Process(first))
        answered.set()
        assert await other == " 2"
        assert not psutil.pid_exists(first) or has_ended(psutil.Process(first))

    run(main)
