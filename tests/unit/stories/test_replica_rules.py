"""Events of replicas: the rule and the function that they name are those that have decided."""

from ottla.stories.partition.replica_stage import ReplicaStage
from ottla.stories.recording import record


def steps(stage, text):
    return record(f"# KIP-101\n\n{text.strip()}\n----\n", stage)


def events(step):
    """Return (line, KIP, function) of each event of a step."""
    return [(event.line, event.kip, event.function.rpartition(".")[2]) for event in step.events]


def test_a_leader_that_restarts_in_its_epoch_does_not_begin_it_again():
    played = steps(
        ReplicaStage(), "replicas A\nA leads e0\nA writes m1\nA dies\nA comes back\nA restarts\nA leads e1"
    )
    led = [any(line.startswith("A leads") for line, *_ in events(step)) for step in played]
    assert led == [False, True, False, False, False, False, True]
