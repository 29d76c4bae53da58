"""Checks a history against Kafka's guarantees; the names of errors are those of Jepsen's `jepsen.tests.kafka`.

| name | what has happened |
| --- | --- |
| `lost-write` | an acknowledged value was never read, though later values were |
| `unseen` | an acknowledged value was never read, and the end of the log was |
| `duplicate` | a value has two offsets |
| `inconsistent-offsets` | an offset holds two values, or not the one that was acknowledged there |
| `nonmonotonic-poll`, `int-nonmonotonic-poll` | a consumer went back, between two fetches or within one |
| `poll-skip`, `int-poll-skip` | a consumer skipped records that others read |
| `nonmonotonic-send` | a producer's later value is before an earlier one, of two batches |
| `int-nonmonotonic-send` | a producer's later value is before an earlier one, of one batch |
| `int-send-skip` | another value is between the values of one batch: allowed by design |
| `G1a` | a value was read that was certainly not written: its producer received an error, |
|  | or the reader gets committed records and the transaction was aborted |
| `precommitted-read` | a reader of committed records got a value before its producer had decided to commit it |

Values of batches with an unknown outcome may be there or not. The two isolation levels are two views of a
log, which are checked one after the other: to a reader of committed records aborted values were never
written. Of Jepsen's names the cycles G0 and G1c are missing: they need transactions of several partitions.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf

from tests.harness.history import History, Poll, Send

#: Allowed in every history.
ALLOWED = frozenset({"int-send-skip"})
#: With acks=1 a leader's last appends may be lost with it, and others get their offsets.
ALLOWED_WITH_ACKS_1 = ALLOWED | {"lost-write", "unseen", "inconsistent-offsets", "nonmonotonic-send"}
#: After an unclean election (KIP-101, appendix A) a log may lack acknowledged records, and others get the offsets;
#: but each value in it at the end is there once, in order, and no client received an error for it.
ALLOWED_UNCLEAN = ALLOWED | {"lost-write", "unseen", "inconsistent-offsets"}
#: Deleted or compacted records are not read; the others have to be right.
ALLOWED_TRIMMED = ALLOWED | {"lost-write", "unseen", "poll-skip", "int-poll-skip"}

Errors = dict[str, list[str]]


def check(history: History, *, final: Sequence[Poll]) -> Errors:
    """The errors of every partition that are not allowed; `final` are polls of a reader of everything, at the end."""
    polls: dict[tuple[str, int], list[Poll]] = defaultdict(list)
    sends: dict[tuple[str, int], list[Send]] = defaultdict(list)
    last: dict[tuple[str, int], list[Poll]] = defaultdict(list)
    for poll in history.polls:
        polls[poll.topic, poll.partition].append(poll)
    for poll in final:
        last[poll.topic, poll.partition].append(poll)
    for send in history.sends:
        sends[send.topic, send.partition].append(send)
    errors: Errors = {}
    for key in sorted(polls.keys() | sends.keys() | last.keys()):
        for is_read_committed in (False, True):
            at_end = [poll for poll in last[key] if poll.is_read_committed is is_read_committed]
            seen = at_end if key[0] in history.unclean else polls[key] + at_end
            seen = [poll for poll in seen if poll.is_read_committed is is_read_committed]
            if is_read_committed and not seen:
                continue  # no such reader, or nothing was committed
            found = check_partition(
                [_as_committed(send) for send in sends[key]] if is_read_committed else sends[key],
                seen,
                has_all=bool(at_end),
                log_start_offset=_log_start_offset(at_end) if key[0] in history.trimmed else 0,
            )
            allowed = _allowed(history, key[0], sends[key], is_read_committed=is_read_committed)
            for name, cases in found.items():
                if name not in allowed:
                    errors.setdefault(name, []).extend(f"{key[0]}-{key[1]}: {case}" for case in cases)
    return errors


def _allowed(
    history: History, topic: str, sends: Sequence[Send], *, is_read_committed: bool
) -> frozenset[str]:
    if topic in history.unclean:
        # The marker may be lost: then the next one of the producer decides about both transactions.
        return ALLOWED_UNCLEAN | {"G1a", "precommitted-read"} if is_read_committed else ALLOWED_UNCLEAN
    allowed = ALLOWED_WITH_ACKS_1 if any(send.acks != -1 for send in sends) else ALLOWED
    return allowed | ALLOWED_TRIMMED if topic in history.trimmed | history.compacted else allowed


def _as_committed(send: Send) -> Send:
    """The history as a reader of committed records sees it: uncommitted records at its end were not written."""
    is_hidden = send.transaction is not None and not send.transaction.is_committed
    return replace(send, is_ok=False) if is_hidden else send


def _log_start_offset(final: Sequence[Poll]) -> float:
    """The final log start offset; after all records, if none is left."""
    return min((poll.found[0][0] for poll in final), default=inf)


def check_partition(
    sends: Sequence[Send], polls: Sequence[Poll], *, has_all: bool, log_start_offset: float = 0
) -> Errors:
    """The errors of one partition, those that are allowed among them.

    The leader may have removed the producer state before `log_start_offset`: a batch whose acknowledgement was
    lost is sent again, and a follower that was emptied and starts after the first copy accepts the second one.
    """
    errors: Errors = defaultdict(list)
    at: dict[int, set[bytes]] = defaultdict(set)
    offsets: dict[bytes, set[int]] = defaultdict(set)
    for poll in polls:
        for offset, value in poll.found:
            at[offset].add(value)
            offsets[value].add(offset)
    acknowledged = [
        (value, None if send.base_offset is None or send.base_offset < 0 else send.base_offset + number)
        for send in sends
        if send.is_ok
        for number, value in enumerate(send.values)
    ]
    _check_offsets(acknowledged, at, offsets, errors, log_start_offset=log_start_offset)
    _check_written(sends, acknowledged, offsets, highest=max(at, default=-1), has_all=has_all, errors=errors)
    _check_decided(sends, polls, errors)
    _check_polls(polls, sorted(at), errors)
    _check_order(sends, {value: min(places) for value, places in offsets.items()}, errors)
    return {name: cases for name, cases in errors.items() if cases}


def _check_decided(sends: Sequence[Send], polls: Sequence[Poll], errors: Errors) -> None:
    """Readers of committed records wait for the decision."""
    decided = {
        value: send.transaction.decided_s for send in sends if send.transaction for value in send.values
    }
    for poll in polls if decided else ():
        early = [value for _, value in poll.found if poll.time_s < decided.get(value, poll.time_s)]
        if early and poll.is_read_committed:
            errors["precommitted-read"].append(f"{poll.client}: {early}")


def _check_polls(polls: Sequence[Poll], known: Sequence[int], errors: Errors) -> None:
    """Each consumer's offsets increase, and skip nothing."""
    rank = {offset: number for number, offset in enumerate(known)}
    position: dict[str, int] = {}
    for poll in polls:
        read = [offset for offset, _ in poll.found]
        for before, after in pairwise(read):
            if after <= before:
                errors["int-nonmonotonic-poll"].append(f"{poll.client}: {before}, {after}")
            elif rank[after] != rank[before] + 1:
                errors["int-poll-skip"].append(f"{poll.client}: {before}, {after}")
        if (last := position.get(poll.client)) is not None:
            if read[0] <= last:
                errors["nonmonotonic-poll"].append(f"{poll.client}: {last}, {read[0]}")
            elif rank[read[0]] != rank[last] + 1:
                errors["poll-skip"].append(f"{poll.client}: {last}, {read[0]}")
        elif rank[read[0]] != 0:
            errors["poll-skip"].append(f"{poll.client} begins at {read[0]}")
        position[poll.client] = read[-1]


def _check_order(sends: Sequence[Send], offsets: dict[bytes, int], errors: Errors) -> None:
    """A producer's values are in the order in which it sent them."""
    last: dict[str, int] = {}
    for send in sends:
        places = [offsets[value] for value in send.values if value in offsets]
        for before, after in pairwise(places):
            if after < before:
                errors["int-nonmonotonic-send"].append(f"{send.client}: {before}, {after}")
            elif after != before + 1:
                errors["int-send-skip"].append(f"{send.client}: {before}, {after}")
        if places and send.client in last and places[0] < last[send.client]:
            errors["nonmonotonic-send"].append(f"{send.client}: {last[send.client]}, {places[0]}")
        if places:
            last[send.client] = places[-1]


def _check_offsets(
    acknowledged: Sequence[tuple[bytes, int | None]],
    at: Mapping[int, set[bytes]],
    offsets: Mapping[bytes, set[int]],
    errors: Errors,
    *,
    log_start_offset: float,
) -> None:
    """One value an offset, one offset a value."""
    kept = {
        value: {place for place in places if place >= log_start_offset} for value, places in offsets.items()
    }
    # The acks' own offsets count as seen, but for where a value stands twice only what was read does.
    for value, offset in acknowledged:
        if offset is not None:
            if at.get(offset, {value}) != {value}:
                errors["inconsistent-offsets"].append(f"{offset}: {value!r} acknowledged, {at[offset]} read")
            if kept.get(value, set()) - {offset}:
                errors["inconsistent-offsets"].append(
                    f"{value!r}: acknowledged at {offset}, read at {offsets[value]}"
                )
    for offset, values in at.items():
        if len(values) > 1:
            errors["inconsistent-offsets"].append(f"{offset}: {values} read")
    for value, places in kept.items():
        if len(places) > 1:
            errors["duplicate"].append(f"{value!r} at {sorted(places)}")


def _check_written(
    sends: Sequence[Send],
    acknowledged: Sequence[tuple[bytes, int | None]],
    offsets: Mapping[bytes, set[int]],
    *,
    highest: int,
    has_all: bool,
    errors: Errors,
) -> None:
    """Acknowledged values are there, and refused ones are not."""
    for value, offset in acknowledged:
        if value not in offsets:
            if offset is not None and offset <= highest:
                errors["lost-write"].append(f"{value!r} at {offset}, read was up to {highest}")
            elif has_all:
                errors["unseen"].append(f"{value!r} at {offset}")
    for send in sends:
        if send.is_ok is False:
            errors["G1a"] += [f"{value!r} of {send.errors}" for value in send.values if value in offsets]
