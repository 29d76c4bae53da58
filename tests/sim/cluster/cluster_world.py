"""A whole cluster in one simulation: machines, clients, the judge, and how all of it ends.

    with World(seed=7) as world:
        world.run(story)      # a coroutine function of the world: what happens until everything heals
    world.checked()           # the history held against Kafka's promises

The seed decides everything: a world of the same seed and story gives the same trace.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from random import Random
from typing import Any, Self

from cluster_clients import Client, Producer
from cluster_consumer import Consumer
from cluster_judge import Judge, Violated
from cluster_ledger import Batch, Committed, batches_of, records_in
from cluster_machine import CONTROLLER_PORT, Machine
from cluster_questions import Inquirer

from broker.runtime.simulated import Simulation
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from protocol.metadata.image import PartitionImage
from storage.log import Log
from tests.harness.faulty_files import Killed
from tests.harness.history import History, Poll
from tests.harness.history_checker import Errors, check

#: How long the cluster may take to be whole again when nothing fails any more.
HEALING_S = 40.0

Story = Callable[["World"], Coroutine[Any, Any, None]]


class _Alarm(logging.Handler):
    """Collects the tracebacks that nodes log: nobody expects one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.failures: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None and not isinstance(record.exc_info[1], Killed):
            error = record.exc_info[1]
            error.add_note(f"logged: {record.getMessage()}")
            self.failures.append(error)


class World:
    """See the module. By default three nodes that are broker and controller; else `brokers` and `controllers`."""

    def __init__(
        self,
        seed: int,
        *,
        brokers: int = 3,
        controllers: int = 0,
        settings: Mapping[str, object] | None = None,
        is_quiet: bool = True,
    ) -> None:
        """With `controllers`, those are nodes of their own; `settings` are of every node.

        Unless it `is_quiet`, nodes' warnings are logged.
        """
        self._is_quiet = is_quiet
        self.seed = seed
        self.random = Random(seed)
        self.simulation = Simulation(seed=seed)
        self.simulation.loop.set_exception_handler(self._on_loop_exception)
        self.history = History()
        self.failures: list[BaseException] = []
        #: (machine, why): nodes that gave up by themselves.
        self.given_up: list[tuple[Machine, BaseException]] = []
        self.mishaps: list[str] = []
        shapes = [(node_id, "broker,controller") for node_id in range(1, brokers + 1)]
        if controllers:
            shapes = [(node_id, "broker") for node_id in range(1, brokers + 1)]
            shapes += [(100 + node_id, "controller") for node_id in range(1, controllers + 1)]
        voters = ",".join(f"{id}@n{id}:{CONTROLLER_PORT}" for id, roles in shapes if "controller" in roles)
        self.machines = [
            Machine(
                self.simulation,
                self.random,
                node_id=node_id,
                roles=roles,
                voters=voters,
                settings=settings or {},
                on_failure=self._on_node_failure,
                before_death=self._check,
            )
            for node_id, roles in shapes
        ]
        self.judge = Judge(self.machines, self.history)
        self.history.on_poll = self._on_poll
        self._clients: list[Client] = []
        self._consumers: list[Consumer] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._is_stopping = False
        self._is_over = False
        self.final: list[Poll] = []
        self._alarm = _Alarm()
        record = self.simulation.network.record

        def record_and_check(event: str) -> None:
            record(event)
            self._check()

        self.simulation.network.record = record_and_check

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self._alarm)
        if self._is_quiet:
            logging.disable(logging.WARNING)  # nodes complain of each other all the time here
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self._alarm)
        logging.disable(logging.NOTSET)
        self._is_over = True
        for machine in self.machines:
            machine.resume()
            machine.kill()
        self.simulation.close()

    # -- running ---------------------------------------------------------------------------------------

    def run(self, story: Story) -> None:
        """Start, tell the story, heal, and look at what is left. Raises Violated, and whatever failed."""
        self.simulation.run(self._whole(story))
        assert self.judge.check_count > 100, self.judge.check_count

    async def _whole(self, story: Story) -> None:
        main = asyncio.ensure_future(self._tell(story))
        while not main.done():
            await asyncio.wait([main], timeout=0.05)
            self._check()
            self._raise_failures()
        await main
        self._raise_failures()

    async def _tell(self, story: Story) -> None:
        for machine in self.machines:
            machine.start()
        await self.until("all nodes serve", lambda: all(machine.is_serving for machine in self.machines))
        await story(self)
        await self._heal()
        await self._look_at_the_end()
        for client in self._clients:
            await client.close()

    def checked(self) -> Errors:
        """The errors of the history that are not allowed."""
        return check(self.history, final=self.final)

    def _check(self) -> None:
        if self.failures or self._is_over:
            return
        try:
            self.judge.check()
        except Violated as error:
            self.failures.append(error)

    def _on_poll(self, poll: Poll) -> None:
        try:
            self.judge.on_poll(poll)
        except Violated as error:
            self.failures.append(error)

    def _raise_failures(self) -> None:
        failures = [*self.failures, *self._alarm.failures]
        failures += [each for each in self.simulation.failures if not isinstance(each, Killed)]
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
        """For the trace, and for whoever looks at a failing seed."""
        self.mishaps.append(f"{self.now:.3f} {what}")
        self.simulation.record(what)

    @property
    def now(self) -> float:
        """Virtual seconds."""
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
        self, topic: str, partition: int = 0, *, acks: int = -1, keys: int = 0, pause_s: float = 0.05
    ) -> None:
        """A producer that writes until the end."""
        producer = Producer(
            self.simulation,
            Random(self.random.getrandbits(64)),
            self.broker_ids,
            self.history,
            name=f"p{len(self._clients)}",
            topic=topic,
            partition=partition,
            acks=acks,
            keys=keys,
        )
        self._clients.append(producer)
        self.begin(producer.produce(pause_s=pause_s, is_over=lambda: self._is_stopping))

    def consume(self, topic: str, partition: int = 0, *, rack: str = "", validates: bool = False) -> None:
        """A consumer that reads until the end."""
        name = f"c{len(self._clients)}"
        consumer = self._consumer(name, topic, partition, self.history, rack=rack, validates=validates)
        self._consumers.append(consumer)
        self.begin(consumer.consume(is_over=lambda position: self._is_stopping))

    def ask(self, topic: str, partition: int = 0, *, pause_s: float = 0.05) -> None:
        """Somebody who asks for offsets until the end."""
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
        self.begin(inquirer.ask(pause_s=pause_s, is_over=lambda: self._is_stopping))

    def _consumer(
        self,
        name: str,
        topic: str,
        partition: int,
        history: History,
        *,
        rack: str = "",
        validates: bool = False,
    ) -> Consumer:
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
        )
        self._clients.append(consumer)
        return consumer

    def begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run it; the end waits for it."""
        self._tasks.append(self.simulation.loop.create_task(coroutine))

    # -- the end ---------------------------------------------------------------------------------------

    async def _heal(self) -> None:
        """Nothing fails any more: everybody comes back, and the clients end."""
        self.note("healing")
        network = self.simulation.network
        network.delays_s.clear()
        for machine in self.machines:
            for other in self.machines:
                network.heal(machine.host, other.host)
        for machine in self.machines:
            machine.files.faults.clear()
            machine.resume()
            if machine.runtime is not None:
                machine.runtime.blocking_s = None

        def all_serve() -> bool:
            for machine in self.machines:
                machine.files.faults.clear()
                machine.start()
                if machine.has_offline_directory:
                    machine.stop()
            return all(machine.is_serving for machine in self.machines)

        await self.until("EventuallyRuns", all_serve)
        await self.until("EventuallyUnfenced", self._all_unfenced)
        self._is_stopping = True
        if self._tasks:
            _, waiting = await asyncio.wait(self._tasks, timeout=HEALING_S)
            if waiting:
                open_sends = [send for send in self.history.sends if send.ended_s is None]
                raise Violated(f"EventuallyWriteIsAcceptedOrRejected: {open_sends}")
            for task in self._tasks:
                task.result()
        await self.until("EventuallyReassignmentCompletes", self._no_reassignment)
        await self.until("EventuallyAcknowledgedValueFullyReplicated", self._isrs_are_full)
        await self.until("EventuallyDirectoriesAreKnown", self._directories_are_known)
        await self.until("EventuallyMetadataConverges", self._metadata_is_one)

    def _all_unfenced(self) -> bool:
        brokers = self.judge.image.brokers
        return all(id in brokers and not brokers[id].is_fenced for id in self.broker_ids)

    def partitions(self) -> Iterator[tuple[str, int, PartitionImage]]:
        """All partitions, as the newest metadata has them."""
        for topic in self.judge.image.topics_by_id.values():
            for index, partition in topic.partitions.items():
                yield topic.name, index, partition

    def _no_reassignment(self) -> bool:
        return not any(each.adding_replicas or each.removing_replicas for _, _, each in self.partitions())

    def _isrs_are_full(self) -> bool:
        return all(
            set(each.isr) == set(each.replicas) and each.leader is not None
            for _, _, each in self.partitions()
        ) and all(
            len({self._ends(name, index, id) for id in each.replicas}) == 1
            for name, index, each in self.partitions()
        )

    def _ends(self, topic: str, index: int, broker_id: int) -> tuple[int, int] | None:
        """(log end, high watermark) of a replica."""
        broker = next(machine for machine in self.machines if machine.node_id == broker_id).broker
        partition = None if broker is None else broker.replicas.hosted.get((topic, index))
        return None if partition is None else (partition.log.log_end_offset, partition.log.high_watermark)

    def _directories_are_known(self) -> bool:
        """Each replica is where the controllers believe it, and nothing is on its way (KIP-858)."""
        for machine in self.brokers:
            assert machine.broker is not None
            logs = machine.broker.replicas.logs
            if logs.future_logs:
                return False
            for name, index, image in self.partitions():
                if machine.node_id in image.replicas:
                    place = image.directories[image.replicas.index(machine.node_id)]
                    log = machine.broker.replicas.hosted[name, index].log
                    if logs.directory_ids[log.directory.parent] != place:
                        return False
        return True

    def _metadata_is_one(self) -> bool:
        images = [machine.metadata for machine in self.machines]
        offsets = {None if image is None else image.last_applied_offset for image in images}
        if len(offsets) > 1:
            return False
        first = images[0]
        assert first is not None
        for image in images[1:]:
            assert image is not None
            if image.image != first.image:
                raise Violated("MetadataLogMatching: images of the same offset differ")
        return True

    async def _look_at_the_end(self) -> None:
        """Replicas are equal, byte for byte, and everything that was acknowledged can be read."""
        await self.until("EventuallyRecordsAreDeleted", self._deletions_are_everywhere)
        for name, index, image in self.partitions():
            logs = [
                machine.broker.replicas.hosted[name, index].log
                for machine in self.brokers
                if machine.node_id in image.replicas and machine.broker is not None
            ]
            start = max(log.log_start_offset for log in logs)
            if name in self.history.compacted:
                contents = [_last_values(log) for log in logs]
            else:
                contents = [_content(log, start) for log in logs]
            if any(content != contents[0] for content in contents):
                raise Violated(f"LogMatching: {name}-{index} differs: {contents}")
        everything = History(unclean=self.history.unclean, trimmed=self.history.trimmed)
        written = {(send.topic, send.partition) for send in self.history.sends}
        for topic, partition in sorted(written):
            if topic not in self.judge.image.topics_by_name:
                continue
            image = self.judge.image.topics_by_name[topic].partitions[partition]
            ends = self._ends(topic, partition, image.replicas[0])
            assert ends is not None
            reader = self._consumer(f"final-{topic}-{partition}", topic, partition, everything)
            await self._read_until(reader, ends[1])
            if topic in self.history.unclean:
                await self._compare_views(reader)
            if topic in self.history.compacted:
                self._compare_last_values(reader)
        self.judge.look_at_acknowledged(self.history.sends)
        self.final = everything.polls
        self.history.errors += everything.errors
        if self.history.errors:
            raise Violated(f"clients were told: {self.history.errors[:3]}")

    async def _read_until(self, reader: Consumer, end: int) -> None:
        """Until it has, and knows that this is what the leader has, too."""
        reader.agreed_epoch = -1
        try:
            await asyncio.wait_for(
                reader.consume(is_over=lambda position: position >= end and reader.agreed_epoch >= 0),
                HEALING_S,
            )
        except TimeoutError:
            text = f"{reader.topic}-{reader.partition} cannot be read by {reader.name}: at {reader.position} of {end}"
            raise Violated(text) from None

    async def _compare_views(self, reader: Consumer) -> None:
        """Whoever has been told of all truncations has what a reader finds that was there for none (KIP-320)."""
        for consumer in self._consumers:
            if (consumer.topic, consumer.partition) == (reader.topic, reader.partition):
                await self._read_until(consumer, reader.position)
                if consumer.view != reader.view:
                    raise Violated(
                        f"TruncationDetected: {consumer.name} has {consumer.view}, not {reader.view}"
                    )

    def _compare_last_values(self, reader: Consumer) -> None:
        """Whoever has read, a little late or all at the end, knows each key's last value."""
        end, last = self.judge.last_values(reader.topic, reader.partition)
        for consumer in (reader, *self._consumers):
            if (consumer.topic, consumer.partition) == (reader.topic, reader.partition):
                known = {each.key: (each.offset, each.value) for each in consumer.view}
                if consumer.position >= end and known != last:
                    raise Violated(f"LastValuesAreKept: {consumer.name} has {known}, committed is {last}")

    def _deletions_are_everywhere(self) -> bool:
        """Followers begin where their leader does, or behind that."""
        start = self.judge.log_start_offset
        return all(
            start(name, index, replica) >= start(name, index, image.leader)
            for name, index, image in self.partitions()
            if image.leader is not None and (name, index) in self.judge.deleted
            for replica in image.replicas
        )


def _content(log: Log, start: int) -> tuple[int, list[tuple[Batch, bytes]]]:
    """A replica: where it ends, and its bytes from `start` on."""
    end = log.log_end_offset
    batches = batches_of(log, start, end)
    return end, [
        (batch, bytes(data))
        for batch, (_, data) in zip(batches, log.records_since(start) if start < end else (), strict=True)
    ]


def _last_values(log: Log) -> dict[bytes | None, tuple[int, Committed]]:
    """What a reader of all of it knows in the end."""
    records = records_in(log, log.log_start_offset, log.log_end_offset)
    return {record.key: (offset, record) for offset, record in records.items()}
