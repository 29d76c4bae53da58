"""The next step of a remote partition remover (KIP-405): tables, and every order of its steps."""

from random import Random

import pytest
from remote_support import copy_of

from ottla.protocol.remote.records import RemoteLogSegmentState as S
from ottla.protocol.remote.records import RemotePartitionDeleteState as P
from ottla.remote.partition_deletion import (
    MAX_COPIES,
    MAX_LOOKED,
    DeleteCopies,
    LookFurther,
    PartitionDeletion,
    Wait,
    WriteState,
)

STARTED, FINISHED, DELETING = S.COPY_SEGMENT_STARTED, S.COPY_SEGMENT_FINISHED, S.DELETE_SEGMENT_STARTED
WAIT_MS = 1000


def copies(*states):
    return Listed(copy_of(number, number, number + 1, state=state) for number, state in enumerate(states, 1))


class Listed(list):
    """Copies as a cache has them."""

    def segment_ids(self):
        return iter([each.segment_id.id for each in self])

    def with_id(self, segment_id):
        return next((each for each in self if each.segment_id.id == segment_id), None)


def short(step):
    """The step, with copies by number."""
    match step:
        case WriteState(state=state):
            return state.name.removeprefix("DELETE_PARTITION_")
        case Wait(until_ms=until_ms):
            return f"wait {until_ms}"
        case LookFurther():
            return "look"
        case DeleteCopies(copies=found, unfinished=unfinished):
            verbs = ("delete", found), ("remove", unfinished)
            return ", ".join(
                " ".join([verb, *(str(each.segment_id.id.int) for each in some)])
                for verb, some in verbs
                if some
            )


@pytest.mark.parametrize(("state", "found", "step"), [
    (None,       [],                            "MARKED"),
    (None,       [FINISHED],                    "MARKED"),
    (P.DELETE_PARTITION_MARKED,  [FINISHED],    "STARTED"),
    (P.DELETE_PARTITION_STARTED, [],            "FINISHED"),
    (P.DELETE_PARTITION_STARTED, [FINISHED],    "delete 1"),
    # Another broker has begun: to expire it, or as the remover before this one.
    (P.DELETE_PARTITION_STARTED, [DELETING],    "delete 1"),
    (P.DELETE_PARTITION_STARTED, [STARTED],     "remove 1"),
    (P.DELETE_PARTITION_STARTED, [STARTED, FINISHED, DELETING], "delete 2 3, remove 1"),
    # The deletion was finished, and then a leader that did not know of it has copied another segment.
    (P.DELETE_PARTITION_FINISHED, [STARTED],    "MARKED"),
])  # fmt: skip
def test_the_first_step(state, found, step):
    assert short(PartitionDeletion(unfinished_ms=WAIT_MS).next_step(state, copies(*found), now_ms=7)) == step


def test_an_unfinished_copy_is_removed_at_once_and_again_when_nothing_can_write_it_any_more():
    deletion = PartitionDeletion(unfinished_ms=WAIT_MS)
    found = copies(STARTED)

    def step(now_ms):
        return short(deletion.next_step(P.DELETE_PARTITION_STARTED, found, now_ms=now_ms))

    assert step(100) == "remove 1"
    assert step(200) == "remove 1"  # it has failed, and is repeated
    deletion.on_removed(found)
    assert step(300) == "wait 1100"
    found += [copy_of(2, 2, 3, state=STARTED)]
    assert step(1099) == "remove 2"
    assert step(1100) == "delete 1, remove 2"
    del found[0]
    deletion.on_removed(found)
    assert step(1101) == "wait 2099"
    assert step(2099) == "delete 2"
    found.clear()
    assert step(2100) == "FINISHED"


def test_an_unfinished_copy_that_is_finished_meanwhile_is_deleted_at_once():
    deletion = PartitionDeletion(unfinished_ms=WAIT_MS)
    deletion.next_step(P.DELETE_PARTITION_STARTED, copies(STARTED), now_ms=0)
    assert short(deletion.next_step(P.DELETE_PARTITION_STARTED, copies(FINISHED), now_ms=1)) == "delete 1"


def test_a_step_is_bounded():
    many = copies(*[FINISHED] * (MAX_COPIES + 1))
    step = PartitionDeletion(unfinished_ms=WAIT_MS).next_step(P.DELETE_PARTITION_STARTED, many, now_ms=0)
    assert len(step.copies) == MAX_COPIES


class Counted(dict):
    """Copies by id, and how many were read."""

    read_count = 0

    def segment_ids(self):
        return iter(list(self))

    def with_id(self, segment_id):
        self.read_count += 1
        return self.get(segment_id)


@pytest.mark.parametrize("share", [1, 2, 1000])
def test_each_copy_is_read_a_few_times_however_many_there_are(share):
    """One in `share` is unfinished."""
    count = 5000
    found = Counted(
        (each.segment_id.id, each)
        for each in copies(*(STARTED if number % share == 0 else FINISHED for number in range(count)))
    )
    deletion = PartitionDeletion(unfinished_ms=WAIT_MS)
    steps, now_ms, most = 0, 0, 0
    while True:
        before = found.read_count
        step = deletion.next_step(P.DELETE_PARTITION_STARTED, found, now_ms=now_ms)
        most = max(most, found.read_count - before)
        if isinstance(step, WriteState):
            break
        if isinstance(step, Wait):
            now_ms = step.until_ms
        elif isinstance(step, DeleteCopies):
            for each in step.copies:
                del found[each.segment_id.id]
            deletion.on_removed(step.unfinished)
        steps += 1
    assert not found
    assert most <= MAX_LOOKED
    assert found.read_count < 6 * count
    assert steps < 6 * count / MAX_COPIES


class Story:
    """A partition of a deleted topic: objects, records, writers that do not know yet, and removers that are killed."""

    def __init__(self, random):
        self.random = random
        self.now_ms = 0
        self.state = None
        self.copies = {}
        self.objects = set()
        #: copy -> until when its leader may still write it
        self.writers = {}
        self.deletion = PartitionDeletion(unfinished_ms=WAIT_MS)
        for number in range(random.randrange(6)):
            state = random.choice([STARTED, FINISHED, DELETING])
            self.copies[number] = copy_of(number, number, number + 1, state=state)
            if state is STARTED:
                self.writers[number] = random.randrange(WAIT_MS)
            self.objects.add(number)

    def write(self):
        """A leader writes an object of a copy that it has begun."""
        for number, until_ms in self.writers.items():
            if self.now_ms <= until_ms and self.random.random() < 0.5:
                self.objects.add(number)

    def step(self):
        found = Listed(self.copies.values())
        match self.deletion.next_step(self.state, found, now_ms=self.now_ms):
            case WriteState(state=state):
                assert state is not P.DELETE_PARTITION_FINISHED or not self.copies
                self.state = state
            case DeleteCopies(copies=found, unfinished=unfinished):
                for each in found[: self.random.randrange(len(found) + 1)]:  # it may fail in between
                    number = each.segment_id.id.int
                    self.objects.discard(number)
                    if self.random.random() < 0.5:
                        del self.copies[number]
                    else:
                        self.copies[number] = copy_of(number, number, number + 1, state=DELETING)
                if self.random.random() < 0.7:
                    self.objects -= {each.segment_id.id.int for each in unfinished}
                    if self.random.random() < 0.7:
                        self.deletion.on_removed(unfinished)
            case LookFurther():
                pass
            case Wait(until_ms=until_ms):
                assert until_ms > self.now_ms
                self.now_ms = self.random.choice([self.now_ms, until_ms])


@pytest.mark.parametrize("seed", range(300))
def test_no_object_is_left_in_whatever_order_removers_and_writers_run(seed):
    random = Random(seed)
    story = Story(random)
    for _ in range(10_000):
        if story.state is P.DELETE_PARTITION_FINISHED:
            break
        story.now_ms += random.randrange(100)
        story.write()
        story.step()
        if random.random() < 0.02:  # the remover is killed, another one continues
            story.deletion = PartitionDeletion(unfinished_ms=WAIT_MS)
    assert story.state is P.DELETE_PARTITION_FINISHED
    story.now_ms += 10 * WAIT_MS
    story.write()
    assert story.objects == set()
