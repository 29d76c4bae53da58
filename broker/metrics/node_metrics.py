"""Metrics of the node that Kafka does not have: background tasks, turns of the loop, threads.

Kafka has no metric of a failed task or a blocked loop; their names begin with `ottla_`.
"""

from collections.abc import Iterable, Sequence

from ottla.broker.metrics.families import Family, Read, Reading, one, own
from ottla.broker.metrics.names import Kind
from ottla.runtime import Pool, Runtime


def families(runtime: Runtime) -> Sequence[Family]:
    """Return the metrics of the node that Kafka does not have."""

    def task_failures() -> Iterable[Reading]:
        return [({"task": name}, count) for name, count in list(runtime.task_failures.items())]

    def usages(at: int) -> Read:
        return lambda: [({"pool": pool.value}, runtime.pool_usage(pool)[at]) for pool in Pool]

    return [
        own("task_failures_total", Kind.COUNTER, "Failures of background tasks; services are started again.",
            task_failures),
        own("loop_stalls_total", Kind.COUNTER, "Turns of the event loop that took longer than 100 ms.",
            one(lambda: None if runtime.loop_stalls is None else runtime.loop_stalls.count)),
        own("loop_longest_stall_seconds", Kind.GAUGE, "The longest of these turns.",
            one(lambda: None if runtime.loop_stalls is None else runtime.loop_stalls.longest_s)),
        own("thread_pool_threads", Kind.GAUGE, "Threads that a pool may have.", usages(0)),
        own("thread_pool_busy_threads", Kind.GAUGE, "Threads of a pool that work.", usages(1)),
        own("thread_pool_waiting_tasks", Kind.GAUGE, "Work that waits for a thread of a pool.", usages(2)),
    ]  # fmt: skip
