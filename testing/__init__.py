"""A Kafka broker for tests: starts in some 50 ms in the test's own process, and obeys it.

    with ottla.testing.Broker() as broker:
        broker.produce("orders", "one", "two")
        assert broker.values("orders") == [b"one", b"two"]
        with broker.inject_error("PRODUCE", "NOT_LEADER_OR_FOLLOWER").times(2):
            ...

docs/TESTING.md has recipes; the pytest plug-in has the fixtures `ottla_broker`, `ottla_topic` and their like.
"""

from ottla.broker.cluster_client.errors import ClusterError
from ottla.broker.roles.directories import CannotStart
from ottla.protocol.errors import KafkaError
from ottla.testing.broker import Broker
from ottla.testing.cluster import Cluster
from ottla.testing.cluster_methods import ClusterMethods
from ottla.testing.existing import Existing
from ottla.testing.faults import Fault, FaultNeverStruck
from ottla.testing.process_broker import ProcessBroker
from ottla.testing.records import Record

__all__ = [
    "Broker",
    "CannotStart",
    "Cluster",
    "ClusterError",
    "ClusterMethods",
    "Existing",
    "Fault",
    "FaultNeverStruck",
    "KafkaError",
    "ProcessBroker",
    "Record",
]
