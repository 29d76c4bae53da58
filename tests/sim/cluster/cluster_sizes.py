"""Sizes of a small world: what real brokers do with megabytes, simulated ones do with the few bytes and
records that they have.

Reads are lent from mapped files, records are read from the disk in a thread, batches are validated in a thread:
each begins at a size that no batch of a simulation reaches. Here each begins at a size that is drawn, in some
worlds at none. High watermarks wait for records that follow closely, and few do: in some worlds most of them wait.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from unittest.mock import patch

from ottla.remote.log_manager.settings import RemoteLogManagerSettings

#: Where each stands -> what it may be.
CHOICES = {
    "ottla.storage.segment_reader.LEND_BYTES": (100, 300, 128 * 1024),
    # Which responses get a buffer of their own; followers use theirs again.
    "ottla.broker.network.client.SHARED_BYTES": (100, 1000, 64 * 1024),
    "ottla.storage.segment_reader.WARM_TAIL_BYTES": (0, 400, 16 * 1024 * 1024),
    "ottla.storage.validation.QUICK_RECORDS": (0, 1, 500),
    # What is joined is copied, and lent no longer.
    "ottla.broker.network.connection.JOIN_BYTES": (0, 16 * 1024),
    # How much of a response a follower appends at once: one batch, two, or mostly all.
    "ottla.broker.replicas.following.append_turns.PART_COST": (0, 50_000, 2 * 1024 * 1024, 2 * 1024 * 1024),
    "ottla.broker.replicas.following.append_turns.TURN_COST": (0, 1024 * 1024),
    "ottla.broker.replicas.following.append_turns.SMALL_BYTES": (0, 4 * 1024),
    "ottla.broker.replicas.reading.high_watermark_delay.EXPECTED_WITHIN_S": (10, 0.000_75),
    # Which Fetches are read in turns of the event loop, and how long a turn is.
    "ottla.broker.replicas.reading.fetch.MAX_ROWS_AT_ONCE": (0, 1, 200),
    "ottla.broker.replicas.reading.read_from_log.ROWS_OF_STEP": (1, 32),
    # The same of Produce requests.
    "ottla.broker.api.k00_produce.MAX_ROWS_AT_ONCE": (0, 1, 100),
    "ottla.broker.api.k00_produce.ROWS_OF_STEP": (1, 4),
    "ottla.runtime.turns.MAX_STEPS": (1, 100),
    # How many members of a group are answered in one turn.
    "ottla.broker.groups.shard_runtime.ANSWERS_OF_TURN": (1, 20),
    # Which decisions of a controller take several turns, and how much of one is in each step of them.
    "ottla.controller.controller.MAX_RECORDS_IN_ONE_TURN": (0, 1, 200),
    "ottla.controller.metadata_log.new_batches.RECORDS_OF_STEP": (1, 100),
}
SMALLEST = {name: min(sizes) for name, sizes in CHOICES.items()}


#: Changes of the remote tier's metadata are given up after seconds; in production after two minutes,
#: by no configuration.
_DEADLINES = partial(RemoteLogManagerSettings, metadata_deadline_ms=2_500)


@contextmanager
def small_sizes(random: Random, wanted: Mapping[str, float]) -> Iterator[None]:
    """Set small sizes while a world exists; those that the story does not name are drawn."""
    with ExitStack() as patches:
        for name, sizes in CHOICES.items():
            patches.enter_context(patch(name, wanted.get(name, random.choice(sizes))))
        patches.enter_context(patch("ottla.broker.tiering.settings.RemoteLogManagerSettings", _DEADLINES))
        yield
