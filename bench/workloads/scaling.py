"""Shorter versions of the same workload: `--seconds-factor`, and the rounds of a warm-up."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ottla.bench.workloads.model import Action, Event, Phase, Producers, SparkJob, Start, Workload

#: The seconds of the producers in a round of a warm-up.
_ROUND_S: Final = 2.0
#: The factor, in a round, of records that are produced by number instead of by time.
_RECORDS_FACTOR: Final = 0.1
#: The actions that change topics only; they are a part of the warm-up, and brokers are left alone.
_HARMLESS: Final = {Action.ALTER_TOPIC, Action.WAIT}
#: The option of Spark jobs that says how many records they write.
_RECORDS: Final = "records"


def scaled(workload: Workload, factor: float) -> Workload:
    """Return the workload with all times and numbers of records times `factor`."""
    return replace(workload, phases=[_scaled(phase, factor) for phase in workload.phases])


def warm_up_of(workload: Workload) -> Workload:
    """Return one round, of few seconds: everything that clients do, at the same time where that is possible.

    Producers and what reads at the tail; changes of topics, and what they wait for; each job; what reads a whole topic.
    """
    return replace(workload, phases=list(_round(workload)))


def _round(workload: Workload) -> Iterator[Phase]:
    producers = [
        _scaled_producers(each, _RECORDS_FACTOR) for phase in workload.phases for each in phase.producers
    ]
    consumers = [each for phase in workload.phases for each in phase.consumers]
    at_the_tail = [each for each in consumers if each.start is Start.END]
    others = [each for each in consumers if each.start is not Start.END]
    idle = next((phase.connections for phase in workload.phases if phase.connections), None)
    if producers or at_the_tail or idle:
        yield Phase(
            name="produce", seconds=_ROUND_S, producers=producers, consumers=at_the_tail, connections=idle
        )
    events = [event for phase in workload.phases for event in phase.events if event.action in _HARMLESS]
    if events:
        yield Phase(name="settle", events=[replace(event, at_s=0.0) for event in events])
    for phase in workload.phases:
        if phase.jobs:
            yield replace(phase, jobs=[_scaled_job(job, _RECORDS_FACTOR) for job in phase.jobs], events=())
    if others:
        yield Phase(name="consume", consumers=others)


def _scaled(phase: Phase, factor: float) -> Phase:
    return replace(
        phase,
        seconds=None if phase.seconds is None else phase.seconds * factor,
        producers=[_scaled_producers(each, factor) for each in phase.producers],
        jobs=[_scaled_job(each, factor) for each in phase.jobs],
        events=[_scaled_event(each, factor) for each in phase.events],
    )


def _scaled_producers(producers: Producers, factor: float) -> Producers:
    if producers.records is None:
        return producers
    return replace(producers, records=max(producers.count, round(producers.records * factor)))


def _scaled_job(job: SparkJob, factor: float) -> SparkJob:
    if _RECORDS not in job.options:
        return job
    count = max(1, round(int(job.options[_RECORDS]) * factor))
    return replace(job, options={**job.options, _RECORDS: str(count)})


def _scaled_event(event: Event, factor: float) -> Event:
    return replace(event, at_s=event.at_s * factor)
