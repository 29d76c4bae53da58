"""A simulated broker that leads a tiered partition, with a real LocalDirectory."""

from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.control import EndTransactionMarker, build_end_transaction_marker
from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.protocol.types import TopicPartition
from ottla.storage.log import AppendOrigin
from ottla.stories.partition.remote_tier import TIERED, RemoteTier
from ottla.stories.partition.replicas import ReplicaCluster

ORDERS = TopicPartition("orders", 0)
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class OneLeader:
    """A broker that leads a tiered partition, without followers."""

    def __init__(self, simulation, tmp_path, **configs):
        self.tier = RemoteTier(tmp_path)
        configs = {name.replace("_", "."): value for name, value in configs.items()}
        self.cluster = ReplicaCluster(simulation, [1], tier=self.tier, configs=TIERED | configs)
        self.cluster.create("orders", {0: [1]})
        self.cluster.elect(ORDERS, 1)
        self.broker = self.cluster.brokers[1]

    @property
    def own(self):
        return self.tier.brokers[1]

    @property
    def partition(self):
        return self.broker.partition(ORDERS)

    @property
    def log(self):
        return self.partition.log

    def write(self, *values, **producer):
        for value in values:
            now_ms = self.broker.runtime.now_ms()
            batch = build_batch(simple_records([(None, value.encode())], timestamp=now_ms), **producer)
            self.partition.as_leader().append_records(bytearray(batch), required_acks=1, now_ms=now_ms)

    def end_transaction(self, *, producer_id):
        now_ms = self.broker.runtime.now_ms()
        marker = build_end_transaction_marker(
            EndTransactionMarker(is_commit=True, coordinator_epoch=0, timestamp=now_ms),
            producer_id=producer_id,
            producer_epoch=0,
        )
        self.log.append_as_leader(
            bytearray(marker),
            leader_epoch=self.partition.leader_epoch,
            now_ms=now_ms,
            origin=AppendOrigin.COORDINATOR,
        )
        self.partition.as_leader().advance_high_watermark()

    def write_segment(self, *values):
        self.write(*values)
        self.log.roll(self.broker.runtime.now_ms())

    def alter(self, **configs):
        self.cluster.configs |= {name.replace("_", "."): value for name, value in configs.items()}
        self.log.update_config(self.cluster.topic_config("orders"))
        self.own.on_role(self.partition)

    def copies(self):
        return [(each.start_offset, each.end_offset, each.state) for each in self.tier.copies()]
