"""One Spark task: its clients in threads, its side of the control channel, and the rows at the end."""

import contextlib
import resource
import sys
import threading
import time
from collections.abc import Iterator
from typing import Final

from ottla.bench.generators.assignment import ConnectionsPlan, ConsumerPlan, Plan, ProducerPlan, TaskPlan
from ottla.bench.generators.connections import ConnectionsClient
from ottla.bench.generators.consumer import ConsumerClient
from ottla.bench.generators.control import ControlClient, Message
from ottla.bench.generators.librdkafka import LibrdkafkaError
from ottla.bench.generators.producer import ProducerClient
from ottla.bench.generators.rows import Kind, Row
from ottla.bench.generators.running import ClientFailed, Orders

_PROGRESS_S: Final = 1.0
#: How long a busy client keeps the others of its task waiting; Python's own 5 ms would be most of a latency.
_SWITCH_S: Final = 0.0005

_Client = ProducerClient | ConsumerClient | ConnectionsClient


def run_task(plans: Iterator[TaskPlan]) -> Iterator[Row]:
    """Run the plans of a partition, one after the other, and yield their rows; for `RDD.mapPartitions`."""
    for plan in plans:
        yield from _Task(plan).run()


class _Task:
    def __init__(self, plan: TaskPlan) -> None:
        self._plan = plan
        self._orders = Orders()
        producers = sum(isinstance(each, ProducerPlan) for each in plan.plans)
        self._clients = [(each, _client(each, sharers=producers)) for each in plan.plans]
        self._lock = threading.Lock()
        self._unready = len(plan.plans)
        self._producing = producers
        self._ended: dict[str, tuple[float, float]] = {}

    def run(self) -> Iterator[Row]:
        plan = self._plan
        # Of open files: a client of librdkafka has about ten.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        sys.setswitchinterval(_SWITCH_S)
        cpu_s = time.process_time()
        with ControlClient(plan.control, index=plan.index, token=plan.token) as self._control:
            # A task whose driver is gone has no reader for its rows.
            self._control.listen(self._obey, self._orders.stop)
            if not self._producing:
                self._control.send("produced")
            threads = [
                threading.Thread(target=self._run_client, args=pair, name=pair[0].name)
                for pair in self._clients
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(_PROGRESS_S)
                    self._report_progress()
            self._control.send("done")
        yield from self._rows((time.process_time() - cpu_s) / len(self._clients))

    def _run_client(self, plan: Plan, client: _Client) -> None:
        try:
            with contextlib.ExitStack() as stack:
                client.open(stack)
                self._note_ready()
                start_us = self._orders.await_start()
                began_s = time.time()
                try:
                    client.run(self._orders, start_us)
                finally:
                    self._ended[plan.name] = (began_s, time.time())
                    client.finish()
        except (ClientFailed, LibrdkafkaError, OSError) as error:
            self._control.send("failed", text=str(error))
        except Exception as error:
            # A bug; without a word the driver would wait for this client.
            self._control.send("failed", text=f"{plan.name}: {error!r}")
            raise
        finally:
            if isinstance(plan, ProducerPlan):
                self._note_produced()

    def _note_ready(self) -> None:
        with self._lock:
            self._unready -= 1
            if not self._unready:
                self._control.send("ready")

    def _note_produced(self) -> None:
        with self._lock:
            self._producing -= 1
            if not self._producing:
                self._report_progress()
                self._control.send("produced")

    def _report_progress(self) -> None:
        counts = {
            plan.name: (client.tally.records, client.tally.payload_bytes, client.tally.errors)
            for plan, client in self._clients
        }
        self._control.send("progress", counts=counts)

    def _obey(self, message: Message) -> None:
        match message["kind"]:
            case "start":
                self._orders.start(message["at_us"])
            case "ends":
                self._orders.ends = {
                    topic: {int(partition): offset for partition, offset in ends.items()}
                    for topic, ends in message["ends"].items()
                }
            case "over":
                self._orders.over.set()
            case "stop":
                self._orders.stop()

    def _rows(self, cpu_s: float) -> Iterator[Row]:
        """Yield the rows of all clients.

        `cpu_s` is each client's share of the task's processor time, which the library's threads are a part
        of.
        """
        for plan, client in self._clients:
            yield from client.rows()
            if plan.name in self._ended:
                begin_s, end_s = self._ended[plan.name]
                late = client.lateness() if isinstance(client, ProducerClient) else None
                yield client.tally.row(Kind.CLIENT, begin_s=begin_s, end_s=end_s, cpu_s=cpu_s, latency=late)


def _client(plan: Plan, *, sharers: int) -> _Client:
    match plan:
        case ProducerPlan():
            return ProducerClient(plan, sharers=sharers)
        case ConsumerPlan():
            return ConsumerClient(plan)
        case ConnectionsPlan():
            return ConnectionsClient(plan)
