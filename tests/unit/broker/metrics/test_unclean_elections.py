"""Unclean elections are counted once each, by the active controller, from the committed metadata."""

from uuid import UUID

import pytest

from ottla.broker.metrics.quorum_metrics import ControllerTable
from ottla.metadata.image import MetadataImage
from ottla.metadata.records import PartitionChangeRecord, PartitionRecord, TopicRecord

TOPIC_ID = UUID(int=7)
RECOVERED, RECOVERING = 0, 1


class Controller:
    is_active = True

    def __init__(self):
        self.image = MetadataImage()


def elected(leader, recovery=-1):
    return PartitionChangeRecord(
        partition_id=0, topic_id=TOPIC_ID, leader=leader, isr=[leader], leader_recovery_state=recovery
    )


@pytest.mark.parametrize(("is_active", "counted"), [(True, 2), (False, 0)])
def test_unclean_elections_are_counted(is_active, counted):
    controller = Controller()
    controller.is_active = is_active
    table = ControllerTable(None, controller)
    created = PartitionRecord(partition_id=0, topic_id=TOPIC_ID, replicas=[1, 2], isr=[1, 2], leader=1)
    for records in (
        [TopicRecord(name="t", topic_id=TOPIC_ID), created],
        [elected(2)],
        [elected(1, RECOVERING)],
        [PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, removing_replicas=[2])],
        [PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, leader_recovery_state=RECOVERED)],
        [elected(2, RECOVERING)],
    ):
        table.on_metadata(controller.image.replay_all(records), controller.image)
    [family] = [each for each in table.families() if each.name.endswith("uncleanleaderelections_total")]
    assert [value for _, value in family.read()] == [counted]
