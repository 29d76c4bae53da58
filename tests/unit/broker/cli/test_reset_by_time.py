"""`ottla groups reset-offsets --to-datetime` while a leader moves: what a broker refuses is no answer."""

from confluent_kafka import Consumer

from ottla.testing import Broker
from tests.compat.commands import Commands


def test_a_refusal_is_not_taken_for_a_time_after_all_records():
    with Broker() as broker:
        ottla = Commands(broker.bootstrap_servers)
        broker.produce("t", "old", timestamp_ms=1_000)
        broker.produce("t", "young", timestamp_ms=1_700_000_000_000)
        consumer = Consumer(broker.consumer_config("g"))
        consumer.subscribe(["t"])
        assert consumer.poll(20) is not None
        consumer.commit(asynchronous=False)
        consumer.close()
        # The end, for the lag; the log's start and its end; and then the offset of the time.
        with broker.inject_error("LIST_OFFSETS", "NOT_LEADER_OR_FOLLOWER", client="ottla").on_call(4):
            ottla.run(
                "groups",
                "reset-offsets",
                "g",
                "--topic",
                "t",
                "--to-datetime",
                "2001-01-01T00:00:00Z",
                "--execute",
            )
        assert broker.committed("g") == {("t", 0): 1}
