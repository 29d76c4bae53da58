"""Many partitions that change alike are decided once: the records are those of one decision for each.

About KIP-841, KIP-858, KIP-966, KIP-1303.
"""

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from ottla.controller.membership import brokers
from ottla.controller.partitions import draft, leader_and_isr_updates, partition_change
from ottla.controller.partitions.draft import AlikeChanges, Draft
from ottla.controller.partitions.elect_leaders import ElectionType, elect_leader, election_changes
from ottla.metadata.image import (
    DIRECTORY_LOST,
    DIRECTORY_UNASSIGNED,
    LeaderRecoveryState,
    PartitionImage,
    TopicImage,
)
from ottla.metadata.records import PartitionChangeRecord
from ottla.protocol import steps
from ottla.protocol.errors import KafkaError
from ottla.protocol.local_log import LocalLog
from ottla.stories.elections.machine import Machine, directory

BROKERS = (1, 2, 3)


#: Fields after the ELRs, by which partitions differ that are otherwise the same: replicas that are added, or
#: removed, the state of the leader's recovery, and local logs of which the last replica's begins first.
REST: tuple[dict[str, Any], ...] = (
    {},
    {"adding_replicas": (3,)},
    {"removing_replicas": (3,)},
    {"leader_recovery_state": LeaderRecoveryState.RECOVERING},
    {"local_logs": tuple((each, LocalLog((3 - each) * 10**6, 0, None)) for each in BROKERS)},
)


def all_partitions() -> list[PartitionImage]:
    """Twice each, with other epochs."""
    own = tuple(map(directory, (1, 2, 3)))
    return [
        PartitionImage((1, 2, 3), isr, leader, epoch, epoch + 1, directories, elr, last_known_elr, **rest)
        for isr in ((), (1,), (1, 2), (2, 3), (1, 2, 3))
        for elr in ((), (1,), (3,))
        if not {*isr} & {*elr}
        for leader in (None, *isr[:1])
        for directories in (own, (DIRECTORY_LOST, *own[1:]), (DIRECTORY_UNASSIGNED, *own[1:]))
        for last_known_elr in ((), (1,))
        for epoch in range(2)
        for rest in REST
    ]


def elect(each: Draft, election: ElectionType) -> None:
    """Elect leaders of all partitions, those of each topic twice."""
    changes = election_changes(each, election)
    for topic in each.state.image.topics_by_id.values():
        for index in [*topic.partitions] * 2:
            with suppress(KafkaError):
                elect_leader(changes, topic.name, index, election)


def decided_for_itself(
    self: AlikeChanges, topic: TopicImage, index: int, before: PartitionImage
) -> PartitionChangeRecord | None:
    return self.draft.change(
        topic,
        index,
        self._wanted(before),
        election=self._election,
        unclean_shutdown_replicas=self._unclean_shutdown_replicas,
    )


UPDATES: dict[str, Callable[[Draft], None]] = {
    "fenced": lambda each: steps.at_once(leader_and_isr_updates.remove_from_isrs(each, 1)),
    "unclean": lambda each: steps.at_once(leader_and_isr_updates.remove_from_isrs_and_elrs(each, 1)),
    "unfenced": lambda each: steps.at_once(leader_and_isr_updates.elect_missing_leaders(each)),
    "disk": lambda each: steps.at_once(
        leader_and_isr_updates.remove_offline_replicas(each, 1, [directory(1)])
    ),
    "preferred": lambda each: elect(each, ElectionType.PREFERRED),
    "elected uncleanly": lambda each: elect(each, ElectionType.UNCLEAN),
}


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("min_insync", ["1", "2"])
@pytest.mark.parametrize("unclean", ["false", "true"])
@pytest.mark.parametrize("fenced", [set(), {1}, {2, 3}])
def test_the_records_are_those_of_one_decision_for_each(
    update: str, min_insync: str, unclean: str, fenced: set[int]
):
    machine = Machine(brokers=BROKERS)
    # Next to each other are those that differ in `REST` only, and then any two.
    partitions = all_partitions()
    partitions += Random(4).sample(partitions, len(partitions))
    machine.create("t", *[[1]] * len(partitions))
    machine.create("u", *[[1]] * len(partitions))
    machine.set_config("min.insync.replicas", min_insync, topic="t")
    machine.set_config("unclean.leader.election.enable", unclean, topic="t")
    machine.set_config("remote.storage.enable", "true", topic="t")
    machine.set_config("leader.election.prefer.early.local.log.start.offset", "true", topic="t")
    # The last of "t" are the first of "u", which has other configurations.
    machine.state.image.topics_by_name["t"].partitions.update(enumerate(partitions))
    machine.state.image.topics_by_name["u"].partitions.update(enumerate(reversed(partitions)))

    def drafted() -> Draft:
        made = Draft(machine.state)
        for broker_id in fenced:
            made.set_broker(machine.state.image.brokers[broker_id]._replace(is_fenced=True))
        made.offline.add(directory(1))
        UPDATES[update](made)
        return made

    at_once = drafted()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AlikeChanges, "change", decided_for_itself)
        one_by_one = drafted()
    assert at_once.records == one_by_one.records
    assert [*at_once.partitions()] == [*one_by_one.partitions()]


def test_partitions_that_differ_in_epochs_only_are_decided_once(monkeypatch: pytest.MonkeyPatch):
    """Otherwise a broker that is fenced would block the controller for 15 ms with 1,000 partitions."""
    machine = Machine(brokers=BROKERS)
    machine.create("t", *[[1, 2, 3]] * 50, *[[2, 3, 1]] * 50)
    decided: list[int] = []

    def decide(*args: Any, index: int, **rest: Any) -> object:
        decided.append(index)
        return partition_change.partition_change(*args, index=index, **rest)

    monkeypatch.setattr(draft, "partition_change", decide)
    machine.now_ms += 10**6
    machine.do(brokers.expire_sessions(machine.state, now_ms=machine.now_ms))
    assert decided == [0, 50]
    assert machine.partition("t", 49).leader == 2
    assert machine.partition("t", 99).isr == (2, 3)
