"""Brokers that list each other in their metadata.

librdkafka removes a broker that a Metadata response does not list, and the requests that wait for it fail with
_DESTROY_BROKER. So a test uses its clients once each broker lists all: one that has just started learns of the others a
moment later, and Kafka's accepts connections before it is unfenced.
"""

from collections.abc import Mapping

from ottla.bench.components.processes import wait_until
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.metadata import MetadataRequest
from tests.harness.blocking_wire import BlockingWire


def listed_at(port: int) -> set[int]:
    """The ids of the brokers in one broker's metadata."""
    with BlockingWire(port) as wire:
        answer = wire.call(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
    return {row.node_id for row in answer.brokers}


def wait_until_listed(ports: Mapping[int, int]) -> None:
    """Wait until each of these running brokers lists all of them, by id and port."""
    found: dict[int, set[int]] = {}

    def are_listed() -> bool:
        found.update({node_id: listed_at(port) for node_id, port in ports.items()})
        return all(listed >= ports.keys() for listed in found.values())

    wait_until(are_listed, detail=lambda: f"the brokers that each lists: {found}")
