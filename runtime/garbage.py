"""The garbage collector of a node: its thresholds at the start and in service, and collections of young objects.

| | begins after | visits |
|---|---|---|
| `collect_rarely` | 50,000 new objects | them; a million every 20 times |
| `collect_briefly` | 5,000 new objects | them, and every second time those of the time before |
| `collect_young` | it is called | all objects that are younger than the last collection of this kind |

All requests wait for a collection. CPython counts the collections of the last kind, whether a threshold or
`collect_young` begins them: all objects are visited after 3,500 of both. So each call of `collect_young` brings that
nearer, and its callers free or add thousands of objects between two calls. No other module sets thresholds or starts
collections in a node.
"""

import gc


def collect_rarely() -> None:
    """Let the garbage collector run rarely while a node starts.

    The replay of the metadata log creates 100,000s of objects, and hardly a cycle.
    """
    gc.set_threshold(50_000, 20, 50)


def collect_briefly() -> None:
    """Let the garbage collector visit fewer objects at a time, after a node has started.

    A collection visits some 15,000 objects, in 1 to 3 ms. With the thresholds of the start it is 50,000 objects, for
    4 to 17 ms, or a million. Requests leave hardly a cycle: all objects are visited as seldom as by the thresholds of
    the start, once in 50,000,000 new ones (1,000 partitions: 50 ms).
    """
    gc.set_threshold(5_000, 1, 3_500)


def collect_young() -> None:
    """Let the garbage collector visit the young objects now, which are old then: some thousand in a millisecond.

    A container that is young when it has become large is visited with all of its objects, twice; one that is old
    already while it grows is not.
    """
    if gc.isenabled():
        gc.collect(1)
