"""A whole cluster in one simulation: machines, clients, the judge, and how all of it ends.

    with World(seed=7) as world:
        world.run(story)      # a coroutine function of the world: what happens until everything heals
    world.checked()           # the history held against Kafka's promises

The seed decides everything: a world of the same seed and story gives the same trace.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Self

from cluster_bucket import Bucket
from cluster_clients import Client, Producer
from cluster_consumer import Consumer
from cluster_ending import HEALING_S, Ending
from cluster_judge import Judge
from cluster_machine import Machine
from cluster_questions import Inquirer
from cluster_services import Injected
from cluster_sizes import small_sizes
from cluster_tiers import TierJudge
from cluster_transactions import TransactionalProducer, are_served
from cluster_violated import Violated
from cluster_voters import QuorumOfWorld

from ottla.metadata.image import PartitionImage
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.runtime.simulated import Simulation
from ottla.stories.partition.faulty_files import Killed
from tests.harness.history import History, Poll
from tests.harness.history_checker import Errors, check

Story = Callable[["World"], Coroutine[Any, Any, None]]

#: What is made to happen, and logged with its traceback.
_EXPECTED = (Killed, Injected)


class _Alarm(logging.Handler):
    """Collects the tracebacks that nodes log: none is expected."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.failures: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, _EXPECTED):
            error.add_note(f"logged: {record.getMessage()}")
            self.failures.append(error)
        elif record.levelno == logging.CRITICAL and "AssertionError" in record.getMessage():
            # A node that cannot apply the metadata log stops; that is a bug, unless its disk has failed.
            self.failures.append(Violated(f"EventuallyRuns: {record.getMessage()}"))


class World:
    """A simulated cluster of `brokers` and `controllers`; combined nodes have both roles where possible."""

    def __init__(
        self,
        seed: int,
        *,
        brokers: int = 3,
        controllers: int = 3,
        is_combined: bool = True,
        spares: int | None = None,
        settings: Mapping[str, object] | None = None,
        sizes: Mapping[str, float] | None = None,
        is_quiet: bool = True,
    ) -> None:
        """The `settings` are of every node; for sizes see `cluster_sizes`.

        With `spares`, voters are in the metadata log and change (KIP-853): so many controllers are none of the first.

        Unless it `is_quiet`, nodes' warnings are logged.
        """
        self._is_quiet = is_quiet
        self.seed = seed
        self.random = Random(seed)
        self._patches = ExitStack()
        self._patched = small_sizes(Random(f"sizes {seed}"), sizes or {})
        #: The remote tier of all brokers.
        self.bucket = Bucket(Random(f"bucket {seed}"))
        self.simulation = Simulation(seed=seed)
        self.simulation.loop.set_exception_handler(self._on_loop_exception)
        self.bucket.call_later = self.simulation.loop.call_later
        self.history = History()
        self.failures: list[BaseException] = []
        #: (machine, why): nodes that gave up by themselves.
        self.given_up: list[tuple[Machine, BaseException]] = []
        self.mishaps: list[str] = []
        both = min(brokers, controllers) if is_combined else 0
        shapes = [(node_id, "broker,controller") for node_id in range(1, both + 1)]
        shapes += [(node_id, "broker") for node_id in range(both + 1, brokers + 1)]
        shapes += [(100 + node_id, "controller") for node_id in range(both + 1, controllers + 1)]
        quorum = QuorumOfWorld(seed, shapes, spares)
        shapes += quorum.spares
        #: Whether voters are in the metadata log, and change.
        self.is_dynamic = spares is not None
        self.machines = [
            Machine(
                self.simulation,
                self.random,
                node_id=node_id,
                roles=roles,
                quorum=quorum.property,
                initial_voters=quorum.initial,
                settings={**(settings or {}), **quorum.settings_of(roles)},
                on_failure=self._on_node_failure,
                before_death=lambda: self._check(is_interrupted=True),
            )
            for node_id, roles in shapes
        ]
        for machine in self.machines:
            machine.on_loop_wait = partial(self._on_loop_wait, machine)
        self.bucket.disks = {machine.node_id: machine for machine in self.machines}
        self.tiers = TierJudge(self.bucket, self.history.unclean)
        self.judge = Judge(self.machines, self.history, self.tiers)
        self.history.on_poll = self._on_poll
        #: Topics whose tiering is switched on; and whether also off, with their copies deleted.
        self.switched: dict[str, bool] = {}
        self._clients: list[Client] = []
        self.consumers: list[Consumer] = []
        self.tasks: list[asyncio.Task[Any]] = []
        #: Clients end what they are about, and no more.
        self.is_stopping = False
        self._is_over = False
        self.final: list[Poll] = []
        self._alarm = _Alarm()
        record = self.simulation.network.conditions.record

        def record_and_check(event: str) -> None:
            record(event)
            self._check()

        self.simulation.network.conditions.record = record_and_check

    def __enter__(self) -> Self:
        self._patches.enter_context(self._patched)
        self._patches.enter_context(self.bucket.is_open())
        self._patches.enter_context(are_served())
        logging.getLogger().addHandler(self._alarm)
        if self._is_quiet:
            logging.disable(logging.WARNING)  # nodes complain of each other all the time here
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self._alarm)
        logging.disable(logging.NOTSET)
        self._is_over = True
        for machine in self.machines:
            machine.is_over = True
            machine.resume()
            machine.kill()
        self.simulation.close()
        self._patches.close()

    # -- running ---------------------------------------------------------------------------------------

    def run(self, story: Story) -> None:
        """Start, run the story, heal, and check what is left. Raises Violated, and whatever failed."""
        self.simulation.run(self._whole(story))
        assert self.judge.check_count > 100, self.judge.check_count

    async def _whole(self, story: Story) -> None:
        main = asyncio.ensure_future(self._run_story(story))
        while not main.done():
            await asyncio.wait([main], timeout=0.05)
            self._check()
            self._raise_failures()
        await main
        self._raise_failures()

    async def _run_story(self, story: Story) -> None:
        for machine in self.machines:
            machine.start()
        await self.until("all nodes serve", lambda: all(machine.is_serving for machine in self.machines))
        await story(self)
        ending = Ending(self)
        await ending.heal()
        await ending.look()
        for client in self._clients:
            await client.close()

    def checked(self) -> Errors:
        """The errors of the history that are not allowed."""
        return check(self.history, final=self.final)

    def _check(self, *, is_interrupted: bool = False) -> None:
        if self.failures or self._is_over:
            return
        try:
            with self.simulation.threads.paused():
                self.judge.check(is_interrupted=is_interrupted)
        except Violated as error:
            self.failures.append(error)

    def _on_loop_wait(self, machine: Machine, path: Path) -> None:
        # But for a truncation of a metadata log that removes whole segments and shortens the one before them.
        if path != Path(machine.config.metadata_log_dir) / "__cluster_metadata-0":
            self.failures.append(Violated(f"TheLoopDoesNotWait: fsync of {path} outside of a thread"))

    def _on_poll(self, poll: Poll) -> None:
        try:
            self.judge.on_poll(poll)
        except Violated as error:
            self.failures.append(error)

    def _raise_failures(self) -> None:
        failures = [*self.failures, *self._alarm.failures]
        failures += [each for each in self.simulation.failures if not isinstance(each, _EXPECTED)]
        if failures:
            self.simulation.failures.clear()
            raise failures[0]
        self.simulation.failures.clear()

    def _on_loop_exception(self, _: object, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context["message"])
        if not isinstance(error, Killed):
            error.add_note(context["message"])
            self.failures.append(error)

    def _on_node_failure(self, machine: Machine, error: BaseException) -> None:
        self.given_up.append((machine, error))
        self.note(f"{machine} gives up: {error}")

    def note(self, what: str) -> None:
        """Add a line to the trace, which shows the course of a failing seed."""
        self.mishaps.append(f"{self.now:.3f} {what}")
        self.simulation.record(what)

    @property
    def now(self) -> float:
        """The virtual time in seconds."""
        return self.simulation.loop.time()

    async def until(self, what: str, holds: Callable[[], bool], *, within_s: float = HEALING_S) -> None:
        """Wait for something that has to come. Raises Violated."""
        deadline = self.now + within_s
        while not holds():
            if self.now > deadline:
                raise Violated(f"{what}: not within {within_s} s")
            await asyncio.sleep(0.05)

    # -- clients ---------------------------------------------------------------------------------------

    @property
    def brokers(self) -> list[Machine]:
        """The machines with a broker."""
        return [machine for machine in self.machines if machine.is_broker]

    @property
    def broker_ids(self) -> list[int]:
        return [machine.node_id for machine in self.brokers]

    def client(self, name: str) -> Client:
        """One for requests of the story's own."""
        client = Client(self.simulation, Random(self.random.getrandbits(64)), self.broker_ids, name=name)
        self._clients.append(client)
        return client

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replicas: int = 3,
        is_unclean: bool = False,
        is_deletable: bool = False,
        **configs: object,
    ) -> None:
        """Create it, however often that has to be tried.

        Where it `is_unclean`, leaders may be elected that lack records; where it `is_deletable`, operators may delete
        records. Other exceptions follow from the configurations.
        """
        history, judge = self.history, self.judge
        if is_unclean:
            history.unclean.add(name)
        if is_deletable:
            judge.deleted.update({(name, index): 0 for index in range(partitions)})
        if "retention_ms" in configs or "retention_bytes" in configs:
            judge.aging.add(name)
        if is_deletable or name in judge.aging:
            history.trimmed.add(name)
        if configs.get("cleanup_policy") == "compact":
            history.compacted.add(name)
        client = self.client(f"admin-{name}")
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            configs=[
                CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
                for key, value in configs.items()
            ],
        )
        while True:
            response = await client.request_any(
                ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic], timeout_ms=2000)
            )
            if response.topics[0].error_code in (ErrorCode.none, ErrorCode.topic_already_exists):
                return
            await asyncio.sleep(0.1)

    def produce(
        self,
        topic: str,
        partition: int = 0,
        *,
        acks: int = -1,
        keys: int = 0,
        pause_s: float = 0.05,
        is_idempotent: bool = True,
        is_transactional: bool = False,
    ) -> None:
        """A producer that writes until the end."""
        producer = (TransactionalProducer if is_transactional else Producer)(
            self.simulation,
            Random(self.random.getrandbits(64)),
            self.broker_ids,
            self.history,
            name=f"p{len(self._clients)}",
            topic=topic,
            partition=partition,
            acks=acks,
            keys=keys,
            is_idempotent=is_idempotent,
        )
        self._clients.append(producer)
        self.begin(producer.produce(pause_s=pause_s, is_over=lambda: self.is_stopping))

    def consume(
        self,
        topic: str,
        partition: int = 0,
        *,
        rack: str = "",
        validates: bool = False,
        is_read_committed: bool = False,
    ) -> None:
        """A consumer that reads until the end."""
        consumer = self.consumer(
            f"c{len(self._clients)}",
            topic,
            partition,
            self.history,
            rack=rack,
            validates=validates,
            is_read_committed=is_read_committed,
        )
        self.consumers.append(consumer)
        self.begin(consumer.consume(is_over=lambda position: self.is_stopping))

    def ask(self, topic: str, partition: int = 0, *, pause_s: float = 0.05) -> None:
        """A client that asks for offsets until the end."""
        inquirer = Inquirer(
            self.simulation,
            Random(self.random.getrandbits(64)),
            self.broker_ids,
            self.judge,
            name=f"i{len(self._clients)}",
            topic=topic,
            partition=partition,
        )
        self._clients.append(inquirer)
        self.begin(inquirer.ask(pause_s=pause_s, is_over=lambda: self.is_stopping))

    def consumer(
        self,
        name: str,
        topic: str,
        partition: int,
        history: History,
        *,
        rack: str = "",
        validates: bool = False,
        is_read_committed: bool = False,
        replica: int | None = None,
    ) -> Consumer:
        """A consumer that does not read yet, and adds what it sees to this history."""
        consumer = Consumer(
            self.simulation,
            Random(self.random.getrandbits(64)),
            self.broker_ids,
            history,
            name=name,
            topic=topic,
            partition=partition,
            rack=rack,
            validates=validates,
            is_read_committed=is_read_committed,
            replica=replica,
        )
        self._clients.append(consumer)
        return consumer

    def begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run it; the end waits for it."""
        self.tasks.append(self.simulation.loop.create_task(coroutine))

    def partitions(self) -> Iterator[tuple[str, int, PartitionImage]]:
        """All partitions, as the newest metadata has them."""
        for topic in self.judge.image.topics_by_id.values():
            for index, partition in topic.partitions.items():
                yield topic.name, index, partition
