"""Whether a target can do what a workload asks of it; checked before any load."""

from collections.abc import Iterator
from typing import Final

from ottla.bench.targets.conditions import NEEDS_FILES
from ottla.bench.targets.target import Target, TargetError
from ottla.bench.workloads.model import Action, Event, Job, Workload

_OF_PROCESSES: Final = (Action.KILL, Action.STOP, Action.WIPE, Action.START)


def slows_store(workload: Workload) -> bool:
    """Whether an event of the workload needs a store that can be slow."""
    return any(event.action is Action.SLOW_STORE for event in _events(workload))


def check_fit(workload: Workload, target: Target) -> None:
    """Raise TargetError if there are too few brokers, or an event cannot be carried out."""
    for topic in workload.topics:
        if topic.replicas > len(target.brokers):
            raise TargetError(
                f"{target.name} has {len(target.brokers)} broker(s): {workload.name} needs {topic.replicas} for the "
                f"replicas of {topic.name}"
            )
    for phase in workload.phases:
        if any(job.job is Job.TIER_READ for job in phase.jobs) and target.store is None:
            raise TargetError(
                f"{target.name} does not fit {workload.name}: tier-read reads a store that the bench has started, "
                "with --start"
            )
    up: set[int | None] = {broker.broker_id for broker in target.brokers}
    for event in _events(workload):
        where = f"{target.name} does not fit {workload.name}: the event {event.name!r}"
        _check_means(event, target, where)
        if event.action in _OF_PROCESSES:
            _check_broker(event, target, up, where)


def _events(workload: Workload) -> Iterator[Event]:
    """Yield the events in the order in which they are carried out."""
    for phase in workload.phases:
        yield from phase.events


def _check_means(event: Event, target: Target, where: str) -> None:
    if target.nodes is None and event.action in _OF_PROCESSES:
        raise TargetError(
            f"{where} would {event.action.value} a broker, and only brokers that were started by --start "
            "may be disturbed"
        )
    if event.action is Action.SLOW_STORE and (target.store is None or not target.store.can_be_slow):
        raise TargetError(f"{where} slows the store down, which works with --start ottla --store minio only")
    if event.until in NEEDS_FILES and (target.nodes is None or not target.has_tier):
        raise TargetError(
            f"{where} waits until a topic is {event.until.value}, which is seen with a remote tier and --start only"
        )


def _check_broker(event: Event, target: Target, up: set[int | None], where: str) -> None:
    """Check a broker's event, and follow which brokers are up.

    The check ends once a leader goes down that is unknown before the run.
    """
    known = [broker.broker_id for broker in target.brokers]
    if event.broker is not None and event.broker not in known:
        raise TargetError(f"{where} concerns broker {event.broker}; there are {', '.join(map(str, known))}")
    if event.action is Action.WIPE and len(known) == 1:
        raise TargetError(f"{where} would wipe the only broker, and nothing would be left of its topics")
    if event.broker is None:
        up.add(None)
        return
    goes_down = event.action in (Action.KILL, Action.STOP)
    if None not in up and goes_down != (event.broker in up):
        raise TargetError(
            f"{where} would {event.action.value} broker {event.broker}, "
            f"which {'is down' if goes_down else 'runs'} by then"
        )
    if goes_down:
        up.discard(event.broker)
    elif event.action is Action.START:
        up.add(event.broker)
