"""A LogManager in a folder of a test."""

from random import Random
from uuid import UUID

from ottla.config.log_config import LogConfig
from ottla.protocol.types import TopicPartition
from ottla.storage.files import Files
from ottla.storage.manager.log_manager import LogManager
from tests.unit.storage.storage_support import NOW_MS, batch

TOPIC_ID = UUID(int=7)
A, B = TopicPartition("a", 0), TopicPartition("b.c_d-e", 1)
CONFIG = LogConfig(segment_bytes=1000)


def open_manager(*paths, **options):
    random = Random(1)
    options = {
        "files": Files(), "cluster_id": "cluster", "node_id": 3, "random": random, "now_ms": NOW_MS,
        "directory_id": lambda: UUID(int=random.getrandbits(128)), "default_config": CONFIG, **options,
    }  # fmt: skip
    return LogManager.open(list(paths), **options)


def append(log, count=1, **fields):
    for _ in range(count):
        log.append_as_leader(batch(**fields), leader_epoch=0, now_ms=NOW_MS)


def run(jobs):
    for job in jobs:
        job.complete()


def delete(manager, topic_partition):
    """Delete a partition's logs, and put all that is deleted aside."""
    manager.delete(topic_partition)
    for _ in manager.rename_deleted(NOW_MS):
        pass


def crash(manager):
    """Leave the directory as a killed process does."""
    for log in manager.logs.values():
        log.close_files()
    manager.unlock()
