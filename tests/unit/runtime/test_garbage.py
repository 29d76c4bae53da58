"""Garbage collections of a node that serves: all requests wait for the end of one."""

import gc

import pytest

from ottla.runtime.garbage import collect_briefly

_MOST_OBJECTS = 15_000
#: What the test itself makes between two collections.
_SLACK = 100


@pytest.fixture(autouse=True)
def _thresholds():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_a_collection_visits_few_objects_however_many_are_new():
    visited = []

    def on_collection(phase, info):
        if phase == "start" and info["generation"] < 2:
            visited.append(sum(len(gc.get_objects(each)) for each in range(info["generation"] + 1)))

    gc.collect()  # what other tests have left is old from here on
    collect_briefly()
    gc.callbacks.append(on_collection)
    try:
        kept = [[number] for number in range(200_000)]  # as the partitions of a new topic
    finally:
        gc.callbacks.remove(on_collection)
    assert len(kept) // _MOST_OBJECTS < len(visited)
    assert max(visited) < _MOST_OBJECTS + _SLACK
