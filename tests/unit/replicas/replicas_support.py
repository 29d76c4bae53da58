"""Partitions on real logs in a temporary folder, and record batches to put into them."""

from pathlib import Path
from random import Random
from uuid import UUID

from broker.replicas.partition import Partition
from protocol.metadata.image import PartitionImage
from protocol.records.builder import build_batch
from protocol.records.record import Record
from protocol.types import TopicPartition
from storage.files import Files
from storage.log import Log
from storage.log_config import LogConfig

NODE_ID = 1
TOPIC_ID = UUID(int=0xA)
NOW_MS = 1_700_000_000_000


def batch(*values: bytes, timestamp: int = NOW_MS, key: bytes | None = None, **fields) -> bytearray:
    records = [Record(offset, timestamp, key, value, ()) for offset, value in enumerate(values)]
    return bytearray(build_batch(records, **fields))


def image(
    *, leader: int | None = NODE_ID, epoch: int = 0, partition_epoch: int | None = None, **fields
) -> PartitionImage:
    replicas = fields.pop("replicas", (NODE_ID,))
    return PartitionImage(
        replicas=replicas,
        isr=fields.pop("isr", replicas),
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=epoch if partition_epoch is None else partition_epoch,
        **fields,
    )


class PartitionOnDisk:
    """One partition with its log, and the keys it has signalled."""

    def __init__(self, folder: Path, **config) -> None:
        self.signals: list[object] = []
        self.topic_partition = TopicPartition("t", 0)
        self.log = Log.open(
            folder / "t-0",
            config=LogConfig(**config),
            topic_partition=self.topic_partition,
            topic_id=TOPIC_ID,
            now_ms=NOW_MS,
            files=Files(),
            random=Random(1),
        )
        self.partition = Partition(
            self.topic_partition,
            topic_id=TOPIC_ID,
            node_id=NODE_ID,
            log=self.log,
            signal=self.signals.append,
        )

    def append(self, *values: bytes, acks: int = -1, **fields):
        return self.partition.append_records(batch(*values, **fields), required_acks=acks, now_ms=NOW_MS)
