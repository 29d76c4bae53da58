"""Rounds of Ottla alone after the timed ones, with nodes of their own: what they report would cost the timed runs processor time.

watched     every load once: turns of the event loop that take too long
profiled    some loads: what the processor time is spent on
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.figures import OTTLA
from bench.harness import Harness
from bench.load_figures import CPU_METRICS
from bench.measures import Measure, Program, T
from bench.profiles import NodeSamples, Profile, profile_of
from bench.targets.profiled import ProfiledCluster, ProfiledServer
from bench.targets.turn_logs import READER, watched
from bench.turns import Turn

#: Of what is not timed: loads that restart nodes take long, and their volume is of no importance here.
REHEARSAL_SCALE: Final = 0.25
#: A load is profiled until so much processor time of all nodes is sampled: 1,500 samples at 250 ticks a second.
_ENOUGH_S: Final = 6.0
_MOST_ROUNDS: Final = 8


def watch(
    program: Program[T],
    measures: Sequence[Measure[T]],
    folder: Path,
    properties: Mapping[str, str],
    *,
    scale: float,
    touch: Callable[[Measure[T]], None],
    say: Callable[[str], None],
) -> dict[str, list[Turn]]:
    """Load -> its turns above the bound. `touch` is called before each load, as before a timed one."""
    turns: dict[str, list[Turn]] = {}
    with watched():
        subject = program.subjects[OTTLA](folder / f"{OTTLA}-watched", properties)
        with Harness([subject], say=say) as harness:
            harness.start()
            for measure in sorted(measures, key=lambda measure: measure.restarts_nodes):
                its_scale = scale * (REHEARSAL_SCALE if measure.restarts_nodes else 1)
                READER.new()  # what was before the load
                if measure.prepare is not None:
                    measure.prepare(subject, its_scale)
                touch(measure)
                measure.run(subject, its_scale)
                turns[measure.title] = READER.new()
                say(f"watched  {measure.name}  {len(turns[measure.title])} turns")
    return turns


def profile(
    program: Program[T],
    measures: Sequence[Measure[T]],
    folder: Path,
    properties: Mapping[str, str],
    *,
    scale: float,
    touch: Callable[[Measure[T]], None],
    say: Callable[[str], None],
) -> list[Profile]:
    """Of the measures that are profiled; none for a program without such. `touch`: see `watch`."""
    chosen = [measure for measure in measures if measure.is_profiled]
    if not chosen or program.profiled is None:
        return []
    profiles = []
    subject = program.profiled(folder / f"{OTTLA}-profiled", properties)
    assert isinstance(subject, ProfiledServer | ProfiledCluster)
    with Harness([subject], say=say) as harness:
        harness.start()
        for measure in chosen:
            metric = next(each.metric for each in measure.figures if each.metric in CPU_METRICS)
            measure.run(subject, scale * REHEARSAL_SCALE)
            subject.samplers.taken()
            rounds: list[tuple[float, list[NodeSamples]]] = []
            while len(rounds) < _MOST_ROUNDS and _sampled_s(rounds) < _ENOUGH_S:
                touch(measure)
                sample = measure.run(subject, scale)
                rounds += [(sample[metric], nodes) for nodes in subject.samplers.taken()]
            profiles.append(profile_of(measure.name, metric, rounds))
            say(f"profiled  {measure.name}")
    return profiles


def _sampled_s(rounds: Sequence[tuple[float, Sequence[NodeSamples]]]) -> float:
    return sum(node.total_s for _, nodes in rounds for node in nodes)
