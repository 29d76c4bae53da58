"""A job as the client that its rows are of."""

import time
from dataclasses import dataclass, field

from ottla.bench.generators.rows import Kind, Role, Row
from ottla.bench.generators.tally import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClient:
    """Begins when it is made. Travels to the tasks."""

    #: `job-<number in the phase>`
    name: str
    phase: str
    #: When the phase began, in microseconds since the epoch.
    start_us: int
    began_s: float = field(default_factory=time.time)

    def tally(self, topic: str, role: Role = Role.JOB) -> Tally:
        """Its counts: of seconds as a job, of streams as what it is to them."""
        tally = Tally(self.name, role, topic)
        tally.start_us = self.start_us
        return tally

    def ended(self, topic: str) -> Row:
        """Now. The processor time of JVMs is not known."""
        return self.tally(topic).row(Kind.CLIENT, begin_s=self.began_s, end_s=time.time())
