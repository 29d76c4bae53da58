"""The same workload, shorter: `--seconds-factor`, and the rounds of a warm-up."""

from dataclasses import replace
from typing import Final

from bench.workloads.model import Action, Event, Phase, Producers, SparkJob, Workload

#: Of one round of a warm-up, about.
_ROUND_S: Final = 4.0
#: Of what is produced by number instead of by time, in a round.
_RECORDS_FACTOR: Final = 0.1
#: What changes topics only: it belongs to what is warmed up. Brokers are left alone then.
_HARMLESS: Final = {Action.ALTER_TOPIC, Action.WAIT}
#: The option of Spark jobs that says how many records they write.
_RECORDS: Final = "records"


def scaled(workload: Workload, factor: float) -> Workload:
    """All times and numbers of records times `factor`."""
    return replace(workload, phases=[_scaled(phase, factor, factor) for phase in workload.phases])


def warm_up_of(workload: Workload) -> Workload:
    """One round: all clients and jobs for a moment, brokers are not touched."""
    total_s = sum(phase.seconds or 0.0 for phase in workload.phases)
    factor = min(1.0, _ROUND_S / total_s) if total_s else 1.0
    phases = []
    for phase in workload.phases:
        events = [event for event in phase.events if event.action in _HARMLESS]
        short = _scaled(replace(phase, events=events), factor, min(factor, _RECORDS_FACTOR))
        if short.producers or short.consumers or short.connections or short.jobs or short.events:
            phases.append(short)
    return replace(workload, phases=phases)


def _scaled(phase: Phase, seconds: float, records: float) -> Phase:
    return replace(
        phase,
        seconds=None if phase.seconds is None else phase.seconds * seconds,
        producers=[_scaled_producers(each, records) for each in phase.producers],
        jobs=[_scaled_job(each, records) for each in phase.jobs],
        events=[_scaled_event(each, seconds) for each in phase.events],
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
