"""A follower's report of its local log (KIP-392, draft KIP-1303), and its leader's use of it."""

import pytest

from ottla.protocol.types import TopicPartition
from ottla.replication.replica_selector import LocalAwareRackReplicaSelector, RackAwareReplicaSelector
from ottla.stories.partition.replicas import ReplicaCluster
from tests.harness.waiting import until

PARTITION = TopicPartition("orders", 0)
TIERED = {"remote.storage.enable": "true"}
EARLY = {"leader.election.prefer.early.local.log.start.offset": "true"}
BY_RACK, BY_LOCAL = RackAwareReplicaSelector, LocalAwareRackReplicaSelector


@pytest.mark.parametrize(("selector", "configs", "is_reported", "is_for_controller"), [
    (None,     TIERED,         False, False),
    (BY_RACK,  TIERED,         False, False),
    (BY_LOCAL, {},             False, False),  # all of it is local
    (BY_LOCAL, TIERED,         True,  False),  # elections do not ask for it
    (BY_LOCAL, TIERED | EARLY, True,  True),
    (None,     TIERED | EARLY, True,  True),
])  # fmt: skip
def test_local_logs_are_reported(simulation, selector, configs, is_reported, is_for_controller):
    async def story():
        cluster = ReplicaCluster(
            simulation, [1, 2], configs=configs, selector=None if selector is None else selector()
        )
        cluster.create("orders", {0: [1, 2]})
        leader, follower = cluster.brokers.values()
        for broker in (leader, follower):
            await broker.listen()
        cluster.elect(PARTITION, 1)
        progress = leader.partition(PARTITION).as_leader().state.followers[2]
        await until(lambda: progress.log_end_offset == 0)
        assert (progress.local_log is not None) == is_reported
        assert bool(leader.reporting) == is_for_controller
        for broker in (leader, follower):
            await broker.stop()

    simulation.run(story())
