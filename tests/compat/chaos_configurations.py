"""Changes of configuration during chaos: a topic's overrides and the cluster's defaults are set, and unset again.

None of them may cost an acknowledged record, whichever fault is in progress when a node learns of it.
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random

from ottla.config.config_def import AlterOperation
from ottla.metadata.image import ConfigResourceType
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.harness.blocking_wire import BlockingWire

#: Overrides of the topic, None to unset them: how batches are validated, converted, flushed and divided into segments.
TOPIC_VALUES = {
    "compression.type": ("lz4", "zstd", "gzip", "uncompressed", None),
    "message.timestamp.type": ("LogAppendTime", "CreateTime", None),
    "min.insync.replicas": ("1", "2", "3", None),
    "segment.bytes": ("1048576", "4194304", None),
    "segment.ms": ("1000", "600000", None),
    "flush.messages": ("1", "1000", None),
    "index.interval.bytes": ("0", "65536", None),
    "segment.index.bytes": ("1024", "10485760", None),
}
#: Defaults of all brokers: the same through another door, and the numbers of threads and fetchers.
CLUSTER_VALUES = {
    "compression.type": ("snappy", "producer", None),
    "min.insync.replicas": ("2", "3"),  # With eligible leader replicas, the cluster must have one.
    "log.segment.bytes": ("1048576", "2097152", None),
    "log.roll.ms": ("1000", "600000", None),
    "num.replica.fetchers": ("1", "2", None),
    "num.io.threads": ("4", "8", None),
    "num.network.threads": ("2", "4", None),
    "num.recovery.threads.per.data.dir": ("1", "2", None),
    "log.cleaner.threads": ("1", "2", None),
    "background.threads": ("5", "10", None),
}


class Configurations:
    """Changes as the nemesis draws them, sent to any of the brokers, and not waited for: it may be paused or
    cut off.
    """

    def __init__(self, ports: Sequence[int], topic: str) -> None:
        self._ports = ports
        self._resources = (
            (ConfigResourceType.TOPIC, topic, TOPIC_VALUES),
            (ConfigResourceType.BROKER, "", CLUSTER_VALUES),
        )
        self._pool = ThreadPoolExecutor()
        self._answers: list[Future[str]] = []

    def change(self, random: Random) -> str:
        """Set a key of the topic or of the cluster to a drawn value, or unset it.

        Returns what was done, for the story.
        """
        kind, name, keys = random.choice(self._resources)
        key = random.choice(list(keys))
        value = random.choice(keys[key])
        operation = AlterOperation.DELETE if value is None else AlterOperation.SET
        config = AlterableConfig(name=key, config_operation=operation, value=value)
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
        self._answers.append(self._pool.submit(_alter, random.choice(self._ports), resource))
        return f"{key}={'(unset)' if value is None else value} of {name or 'the cluster'}"

    def answers(self) -> Counter[str]:
        """The number of changes by their outcome, once all of them were answered."""
        self._pool.shutdown()
        return Counter(answer.result() for answer in self._answers)


def _alter(port: int, resource: AlterConfigsResource) -> str:
    try:
        with BlockingWire(port) as wire:
            request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
            response = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
    except (OSError, AssertionError) as error:
        return f"no answer: {type(error).__name__}"
    return ErrorCode(response.responses[0].error_code).name
