"""Whether the clients of a workload can be made: librdkafka itself is asked about their configurations."""

from collections.abc import Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaException, Producer

from ottla.bench.workloads.keys import Place
from ottla.bench.workloads.model import Workload

#: Nothing is connected to; librdkafka would warn that it cannot.
_UNUSED: Final = {"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}
_GROUP: Final = {"group.id": "ottla-bench"}


def check_clients(workload: Workload) -> None:
    """Raise WorkloadError for a configuration that librdkafka does not know, or a value that it does not take."""
    for number, phase in enumerate(workload.phases, 1):
        place = Place(f"{workload.name}.toml") / f"phases {number} ({phase.name})"
        for at, producers in enumerate(phase.producers, 1):
            _try(Producer, producers.client, place / f"producers {at}" / "client")
        for at, consumers in enumerate(phase.consumers, 1):
            _try(Consumer, {**_GROUP, **consumers.client}, place / f"consumers {at}" / "client")


def _try(kind: type[Producer | Consumer], configs: Mapping[str, str], place: Place) -> None:
    try:
        client = kind({**_UNUSED, **configs})
    except KafkaException as error:
        raise place.error(f"librdkafka does not take it: {error.args[0].str()}") from error
    if isinstance(client, Consumer):
        client.close()
