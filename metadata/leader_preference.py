"""LeaderPreference: which of the replicas that may lead have enough local data to be preferred (draft KIP-1303).

    candidates, in assignment order --preference_order--> groups of equivalent ones, the preferred group first

Consumers of a leader with little local data are served from the remote tier. The policy orders replicas that may lead,
and excludes none: if only such a replica is left, it leads. The KIP has had two forms, and both are here:

| form | preferred replicas |
|---|---|
| first draft | those with the lowest local log start; less than `threshold` offsets make no difference |
| May 2026 | *eligible* ones: local data of enough time or bytes, or no candidate has earlier data |

The first form is configured by `leader.election.prefer.early.local.log.start.offset` and
`leader.election.local.log.start.offset.threshold`, the second by `leader.election.eligible.local.log.ms` and
`leader.election.eligible.local.log.bytes`.

Together: eligible ones come before the others, and each of these two parts is grouped by local log start. A replica
whose local log is unknown counts as one with a complete local log, as in the draft: its broker is of a
version that does not report it, or its leader has not reported it yet.

Used by the controller, which elects, and by tools that explain its choice. Everything is off by default: then all
candidates are one group, in assignment order.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ottla.protocol.local_log import LocalLog


class LeaderPreference(NamedTuple):
    """A topic's effective configurations of the policy."""

    prefers_early_start: bool = False
    #: Local log starts that differ by less are equivalent; every difference counts if this is 1 or less.
    start_offset_threshold: int = 10_000
    #: Minimum age of the oldest local record of an eligible replica; None: no such bound.
    eligible_local_ms: int | None = None
    #: Minimum size of the local log of an eligible replica; None: no such bound.
    eligible_local_bytes: int | None = None

    @property
    def is_on(self) -> bool:
        """Whether local logs matter at all."""
        return self.prefers_early_start or self.has_eligibility

    @property
    def has_eligibility(self) -> bool:
        """Whether the form of May 2026 is on: one of its bounds is set."""
        return self.eligible_local_ms is not None or self.eligible_local_bytes is not None


#: Of topics that are not tiered, and by default.
NO_PREFERENCE: Final = LeaderPreference()


def preference_order(
    candidates: Sequence[int],
    local_logs: Mapping[int, LocalLog],
    preference: LeaderPreference,
    *,
    now_ms: int,
) -> list[list[int]]:
    """The candidates in groups, the preferred group first; within a group they keep their order.

    `candidates` are the replicas that may lead now, in assignment order: a replica that cannot lead is no
    measure for the others. `now_ms` is the wall clock, which the age of records is measured against. No
    candidate is left out, and no group is empty.

    >>> starts = {1: 5_000_000, 2: 1_000_050, 3: 1_000_000}
    >>> logs = {replica: LocalLog(start, 0, None) for replica, start in starts.items()}
    >>> preference_order([1, 2, 3], logs, LeaderPreference(prefers_early_start=True), now_ms=0)
    [[2, 3], [1]]
    """
    if not preference.is_on:
        return [list(candidates)] if candidates else []
    starts = {replica: _start_offset(local_logs.get(replica)) for replica in candidates}
    if not preference.has_eligibility:
        return _by_start_offset(candidates, starts, preference)
    lowest = min(starts.values(), default=0)
    # A replica that lacks nothing which another one has is eligible, however little it has: in a young topic none
    # spans the bounds, and a leader with all of the records needs no remote read.
    eligible = [
        replica
        for replica in candidates
        if starts[replica] <= lowest or _spans_a_bound(local_logs[replica], preference, now_ms)
    ]
    others = [replica for replica in candidates if replica not in eligible]
    return _by_start_offset(eligible, starts, preference) + _by_start_offset(others, starts, preference)


def _start_offset(local_log: LocalLog | None) -> int:
    return 0 if local_log is None else local_log.start_offset


def _spans_a_bound(local_log: LocalLog, preference: LeaderPreference, now_ms: int) -> bool:
    """Whether the local data spans the bound of time or that of bytes; one of them is enough."""
    min_ms, min_bytes = preference.eligible_local_ms, preference.eligible_local_bytes
    oldest_ms = local_log.oldest_timestamp_ms
    if min_ms is not None and oldest_ms is not None and now_ms - oldest_ms >= min_ms:
        return True
    return min_bytes is not None and local_log.size_bytes >= min_bytes


def _by_start_offset(
    replicas: Sequence[int], starts: Mapping[int, int], preference: LeaderPreference
) -> list[list[int]]:
    """Groups of replicas whose local log starts are equivalent, the lowest first.

    "Differ by less than the threshold", as the draft has it, is no equivalence: of 0, 9,000 and 18,000 under 10,000 the
    second is like the first and like the third, which are not like each other. A sort by such a comparison depends on
    the algorithm. So each group is anchored at the lowest start that is left: [0, 9,000] and [18,000].
    """
    if not preference.prefers_early_start:
        return [list(replicas)] if replicas else []
    groups = []
    rest = replicas
    while rest:
        end = min(starts[replica] for replica in rest) + max(1, preference.start_offset_threshold)
        groups.append([replica for replica in rest if starts[replica] < end])
        rest = [replica for replica in rest if starts[replica] >= end]
    return groups
