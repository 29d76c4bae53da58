"""What a node is and does besides Kafka's metrics: background tasks, turns of the loop, connections.

Kafka has no metric of a failed task or a blocked loop; their names begin with `ottla_`.
"""

from collections.abc import Iterable, Sequence

from broker.metrics.families import Family, Reading, one, own
from broker.metrics.names import Kind
from runtime import Runtime


def families(runtime: Runtime) -> Sequence[Family]:
    """The rows of the table."""

    def task_failures() -> Iterable[Reading]:
        return [({"task": name}, count) for name, count in list(runtime.task_failures.items())]

    return [
        own("task_failures_total", Kind.COUNTER, "Failures of background tasks; services are started again.",
            task_failures),
        own("loop_stalls_total", Kind.COUNTER, "Turns of the event loop that took longer than 100 ms.",
            one(lambda: None if runtime.loop_stalls is None else runtime.loop_stalls.count)),
        own("loop_longest_stall_seconds", Kind.GAUGE, "The longest of these turns.",
            one(lambda: None if runtime.loop_stalls is None else runtime.loop_stalls.longest_s)),
    ]  # fmt: skip
