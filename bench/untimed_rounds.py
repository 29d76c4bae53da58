"""Rounds after the timed ones, with nodes of their own: their reports would cost the timed runs processor time.

watched     every load once: long turns of Ottla's event loops; and the floor's, under the loads that it takes
profiled    some loads: the parts of Ottla's processor time
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic

from ottla.bench.figures import CPU_METRICS, FLOOR, OTTLA
from ottla.bench.harness import Harness, Measure, Program, T
from ottla.bench.profiles import NodeSamples, Profile, profile_of
from ottla.bench.targets.profiled import ProfiledCluster, ProfiledServer, Samplers
from ottla.bench.targets.turn_logs import READER, watched
from ottla.bench.turns import Turn

#: The scale of rounds that are not timed: loads that restart nodes take long, and their volume is of no
#: importance here.
REHEARSAL_SCALE: Final = 0.25
#: A load is profiled until so much processor time of all nodes is sampled: 1,500 samples at 250 ticks a second.
_ENOUGH_S: Final = 6.0
_MOST_ROUNDS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation(Generic[T]):
    """The rounds of observation in one section."""

    program: Program[T]
    measures: Sequence[Measure[T]]
    folder: Path
    properties: Mapping[str, str]
    scale: float
    #: (bytes): called before so much is written, as before a timed load.
    touch: Callable[[float], None]
    say: Callable[[str], None]

    def watch(self) -> dict[str, list[Turn]]:
        """Return load -> the turns of Ottla's event loops above the bound."""
        return self._watch(OTTLA, self.program.subjects[OTTLA], self.measures)

    def watch_floor(self) -> dict[str, list[Turn]]:
        """Return load -> the turns of the floor's event loops above the bound; none where there is no floor.

        These are the loads that the floor takes.
        """
        measures = [measure for measure in self.measures if measure.has_floor]
        if self.program.floor is None or not measures:
            return {}
        return self._watch(FLOOR, self.program.floor, measures)

    def _watch(
        self, name: str, make: Callable[[Path, Mapping[str, str]], T], measures: Sequence[Measure[T]]
    ) -> dict[str, list[Turn]]:
        turns: dict[str, list[Turn]] = {}
        with watched():
            subject = make(self.folder / f"{name}-watched", self.properties)
            with Harness([subject], say=self.say) as harness:
                harness.start()
                for measure in sorted(measures, key=lambda measure: measure.restarts_nodes):
                    scale = self.scale * (REHEARSAL_SCALE if measure.restarts_nodes else 1)
                    READER.new()  # what was before the load
                    if measure.prepare is not None:
                        self.touch(measure.prepared_bytes)
                        measure.prepare(subject, scale)
                    self.touch(measure.written_bytes)
                    measure.run(subject, scale)
                    turns[measure.title] = READER.new()
                    self.say(f"watched  {name}  {measure.name}  {len(turns[measure.title])} turns")
        return turns

    def profile(self) -> list[Profile]:
        """Return the profiles of the measures that are profiled; none for a program without such."""
        chosen = [measure for measure in self.measures if measure.is_profiled]
        if not chosen or self.program.profiled is None:
            return []
        subject = self.program.profiled(self.folder / f"{OTTLA}-profiled", self.properties)
        assert isinstance(subject, ProfiledServer | ProfiledCluster)
        with Harness([subject], say=self.say) as harness:
            harness.start()
            return [self._profile(measure, subject, subject.samplers) for measure in chosen]

    def _profile(self, measure: Measure[T], subject: T, samplers: Samplers) -> Profile:
        metric = next(each.metric for each in measure.figures if each.metric in CPU_METRICS)
        measure.run(subject, self.scale * REHEARSAL_SCALE)
        samplers.taken()
        rounds: list[tuple[float, list[NodeSamples]]] = []
        while len(rounds) < _MOST_ROUNDS and _sampled_s(rounds) < _ENOUGH_S:
            self.touch(measure.written_bytes)
            sample = measure.run(subject, self.scale)
            rounds += [(sample[metric], nodes) for nodes in samplers.taken()]
        self.say(f"profiled  {measure.name}")
        return profile_of(measure.name, metric, rounds)


def _sampled_s(rounds: Sequence[tuple[float, Sequence[NodeSamples]]]) -> float:
    return sum(node.total_s for _, nodes in rounds for node in nodes)
