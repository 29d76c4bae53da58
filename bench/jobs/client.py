"""The client of a Spark job, under whose name its rows are yielded."""

import time
from dataclasses import dataclass, field

from ottla.bench.generators.rows import Kind, Role, Row
from ottla.bench.generators.tally import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClient:
    """A Spark job as a client of the phase; it begins when it is created, and is sent to the tasks."""

    #: The name of the job: `job-<number in the phase>`.
    name: str
    phase: str
    #: The beginning of the phase, in microseconds since the epoch.
    start_us: int
    began_s: float = field(default_factory=time.time)

    def tally(self, topic: str, role: Role = Role.JOB) -> Tally:
        """Return a tally of the job: of seconds in the role JOB, of streams as producer or consumer."""
        tally = Tally(self.name, role, topic)
        tally.start_us = self.start_us
        return tally

    def ended(self, topic: str) -> Row:
        """Return the row of the client, which ends now. The processor time of JVMs is not known."""
        return self.tally(topic).row(Kind.CLIENT, begin_s=self.began_s, end_s=time.time())
