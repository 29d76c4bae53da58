"""Any history: brokers come, go, fall silent and lie about nothing; topics come and go; invariants hold throughout."""

from contextlib import suppress
from random import Random
from uuid import UUID

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ottla.controller.membership import brokers
from ottla.controller.partitions.topics import create_topics, delete_topics
from ottla.metadata.image import MetadataImage, PartitionImage
from ottla.protocol.errors import DuplicateBrokerRegistration
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.stories.elections.machine import CLUSTER_ID, Machine, directory

BROKERS = (1, 2, 3)

events = st.lists(
    st.tuples(
        st.sampled_from(
            ["start clean", "start unclean", "beat", "beat", "beat", "leave", "silence", "create", "delete"]
        ),
        st.sampled_from(BROKERS),
    ),
    max_size=60,
)


class History:
    def __init__(self, *, elr: bool) -> None:
        self.machine = Machine(elr=elr)
        self.machine.set_config("min.insync.replicas", "2")
        self.random = Random(5)
        self.topics = 0

    def step(self, event: str, broker_id: int) -> None:
        known = self.machine.state.image.brokers.get(broker_id)
        match event:
            case "start clean" | "start unclean":
                epoch = known.epoch if known and event == "start clean" else -1
                self.start(broker_id, previous_epoch=epoch)
            case "beat" | "leave" if known is not None:
                request = BrokerHeartbeatRequest(
                    broker_id=broker_id,
                    broker_epoch=known.epoch,
                    current_metadata_offset=len(self.machine.log) - 1,
                    want_shut_down=event == "leave",
                )
                self.machine.do(brokers.heartbeat(self.machine.state, request, now_ms=self.machine.now_ms))
            case "silence":
                self.machine.now_ms += 4_000
                while self.machine.do(
                    brokers.expire_sessions(self.machine.state, now_ms=self.machine.now_ms)
                ):
                    pass
            case "create":
                self.topics += 1
                topic = CreatableTopic(name=f"t{self.topics}", num_partitions=2, replication_factor=broker_id)
                self.machine.do(create_topics(self.machine.state, CreateTopicsRequest(topics=[topic])))
            case "delete":
                state = DeleteTopicState(name=f"t{broker_id}")
                self.machine.do(delete_topics(self.machine.state, DeleteTopicsRequest(topics=[state])))

    def start(self, broker_id: int, *, previous_epoch: int) -> None:
        levels = {"metadata.version": (7, 33), "eligible.leader.replicas.version": (0, 1)}
        request = BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=UUID(int=self.random.getrandbits(128)),
            rack=None,
            log_dirs=[directory(broker_id)],
            previous_broker_epoch=previous_epoch,
            features=[
                Feature(name=name, min_supported_version=first, max_supported_version=last)
                for name, (first, last) in levels.items()
            ],
        )
        with suppress(DuplicateBrokerRegistration):  # its predecessor's session is not over
            self.machine.do(brokers.register(self.machine.state, request, now_ms=self.machine.now_ms))

    def partitions(self) -> dict[tuple[UUID, int], PartitionImage]:
        return {(topic.topic_id, index): p for topic, index, p in self.machine.state.partitions()}


def check(before: PartitionImage | None, now: PartitionImage, state: object, *, elr: bool) -> None:
    assert set(now.isr) <= set(now.replicas)
    assert set(now.elr) <= set(now.replicas)
    assert not set(now.isr) & set(now.elr)
    assert elr or now.isr, "without an ELR the last known leader is kept"
    assert elr or not now.elr
    if now.leader is not None:
        assert now.leader in now.isr
        assert state.is_active(now.leader)
    if before is not None:
        assert now.leader_epoch >= before.leader_epoch
        assert now.partition_epoch >= before.partition_epoch
        assert (now == before) == (now.partition_epoch == before.partition_epoch)
        if now.leader not in (before.leader, None):
            assert now.leader_epoch > before.leader_epoch
            # A clean election: the leader was in sync, or as good; or else it was the last leader (KIP-966).
            assert now.leader in (*before.isr, *before.elr, *before.last_known_elr)


@settings(max_examples=150, deadline=None)
@given(events=events, elr=st.booleans())
@example(  # a broker that was let go and speaks once more
    events=[("leave", 1), ("leave", 2), ("create", 1), ("leave", 3), ("beat", 3), ("beat", 3)], elr=False
)
def test_every_history(events: list[tuple[str, int]], elr: bool):
    history = History(elr=elr)
    for broker_id in BROKERS:
        history.step("start unclean", broker_id)
        history.step("beat", broker_id)
    before: dict[tuple[UUID, int], PartitionImage] = {}
    for event, broker_id in events:
        history.step(event, broker_id)
        now = history.partitions()
        for key, partition in now.items():
            check(before.get(key), partition, history.machine.state, elr=elr)
        before = now
    # A controller that starts now finds what this one knows.
    image = MetadataImage()
    image.replay_all(history.machine.log)
    assert image == history.machine.state.image
