"""Samples what the nodes of a target use, from outside, once a second: processor, memory, disk and network.

    with Sampler(target) as sampler:
        ...
    sampler.rows(began_s)

A node is a process with its children. What it has used between its last sample and its end (a kill, a crash)
is not known.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import psutil

from ottla.bench.targets.connections import Carried, Connections
from ottla.bench.targets.memory import memory_of
from ottla.bench.targets.stores import STORE_NODE
from ottla.bench.targets.target import Target

#: The schema in Spark's own language. The driver adds target, run and phase.
SCHEMA: Final = (
    "node string, second int, cpu_s double, resident_bytes long, private_bytes long, read_bytes long, "
    "written_bytes long, received_bytes long, sent_bytes long, tiered_bytes long"
)
_INTERVAL_S: Final = 1.0
#: The maximum share of the time that is spent on reading the sizes of a store's files.
_WALK_SHARE: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """The use of resources by a node in one second; fields in the order of SCHEMA. None: not known."""

    #: The node by role and id: `broker-1`, `controller-101`, `store`.
    node: str
    #: The whole seconds since the phase began.
    second: int
    cpu_s: float | None = None
    resident_bytes: int | None = None
    #: The resident memory without pages shared with files.
    private_bytes: int | None = None
    #: The bytes from and to block devices: reads that the page cache serves are not in it.
    read_bytes: int | None = None
    written_bytes: int | None = None
    #: The bytes on connections that others have opened to the node: clients and other brokers; of a store,
    #: brokers.
    received_bytes: int | None = None
    sent_bytes: int | None = None
    #: The size of all files of the store; None for other nodes.
    tiered_bytes: int | None = None

    def values(self) -> tuple[object, ...]:
        """Return the values for a DataFrame of SCHEMA."""
        return tuple(asdict(self).values())


assert [field.name for field in fields(SampleRow)] == [column.split()[0] for column in SCHEMA.split(", ")]


class Used(NamedTuple):
    """The use of resources by a process and its children since it was started.

    A child that has ended counts in its parent.
    """

    cpu_s: float
    read_bytes: int
    written_bytes: int
    resident_bytes: int
    private_bytes: int


class _Sample(NamedTuple):
    """A sample of a node in one interval; a node that was started or has ended in it has no `used`."""

    #: The bounds of the interval, in seconds since the epoch.
    begin_s: float
    end_s: float
    node: str
    before: Used | None
    used: Used | None
    carried: Carried | None
    tiered_bytes: int | None


class Sampler:
    """A thread that samples the nodes of a target while the block runs."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._samples: list[_Sample] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._store = None if target.store is None else FolderSize(target.store.folder)
        self._ports = dict(target.ports())
        self._connections = _connections(self._ports.values())

    def __enter__(self) -> Self:
        self._before = used_by(self._target.node_pids())
        self._before_s = time.time()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        if self._connections is not None:
            self._connections.close()

    def rows(self, began_s: float, ended_s: float = math.inf) -> list[SampleRow]:
        """Return all rows between these times (seconds since the epoch), with the whole intervals in which they are.

        Nodes do little before clients begin; without that interval a part of the load would be missing. After
        the end clients report for a second or two, in which nodes, JVMs above all, use processor time for
        nothing.
        """
        by_second: dict[tuple[str, int], list[_Sample]] = {}
        for sample in self._samples:
            if sample.end_s > began_s and sample.begin_s < ended_s:
                second = max(0, int((sample.begin_s + sample.end_s) / 2 - began_s))
                by_second.setdefault((sample.node, second), []).append(sample)
        return [_row(node, second, samples) for (node, second), samples in by_second.items()]

    def _run(self) -> None:
        began = time.monotonic()
        is_over, count = False, 0
        while not is_over:
            count += 1
            # A sample that took long does not move the next ones; the last one is of a part of a second.
            is_over = self._is_over.wait(max(0.0, began + count * _INTERVAL_S - time.monotonic()))
            self._sample(is_last=is_over)

    def _sample(self, *, is_last: bool) -> None:
        used = used_by(self._target.node_pids())
        now_s = time.time()
        carried = {} if self._connections is None else self._connections.carried()
        tiered_bytes = None if self._store is None else self._store.bytes(is_exact=is_last)
        nodes = {**dict.fromkeys(self._ports), **dict.fromkeys(used), **dict.fromkeys(self._before)}
        if self._store is not None:
            nodes[STORE_NODE] = None
        for node in nodes:
            new = used.get(node)
            self._samples.append(
                _Sample(
                    begin_s=self._before_s,
                    end_s=now_s,
                    node=node,
                    before=None if new is None else _before(self._before.get(node), new),
                    used=None if new is None else new[1],
                    carried=carried.get(self._ports.get(node, 0)),
                    tiered_bytes=tiered_bytes if node == STORE_NODE else None,
                )
            )
        self._before, self._before_s = used, now_s


_NOTHING: Final = Used(0.0, 0, 0, 0, 0)


def _before(before: tuple[object, Used] | None, new: tuple[object, Used]) -> Used:
    """Return the earlier use of the same process; nothing if it is a new process."""
    return before[1] if before is not None and before[0] == new[0] else _NOTHING


def _row(node: str, second: int, samples: Iterable[_Sample]) -> SampleRow:
    samples = list(samples)
    known = [(each.before, each.used) for each in samples if each.before and each.used]
    carried = [each.carried for each in samples if each.carried is not None]
    tiered = [each.tiered_bytes for each in samples if each.tiered_bytes is not None]
    return SampleRow(
        node=node,
        second=second,
        # A child whose parent does not wait for it takes its share with it.
        cpu_s=sum(max(0.0, new.cpu_s - old.cpu_s) for old, new in known) if known else None,
        resident_bytes=max((new.resident_bytes for _, new in known), default=None),
        private_bytes=max((new.private_bytes for _, new in known), default=None),
        read_bytes=sum(max(0, new.read_bytes - old.read_bytes) for old, new in known) if known else None,
        written_bytes=sum(max(0, new.written_bytes - old.written_bytes) for old, new in known)
        if known
        else None,
        received_bytes=sum(each.received for each in carried) if carried else None,
        sent_bytes=sum(each.sent for each in carried) if carried else None,
        tiered_bytes=tiered[-1] if tiered else None,
    )


def used_by(pids: Mapping[str, int]) -> dict[str, tuple[object, Used]]:
    """Return, for each node that runs, the identity of its process, and its use of resources."""
    children: dict[int, list[int]] = {}
    for process in psutil.process_iter(["ppid"]):
        children.setdefault(process.info["ppid"], []).append(process.pid)
    found: dict[str, tuple[object, Used]] = {}
    for node, pid in pids.items():
        try:
            identity = (pid, psutil.Process(pid).create_time())
            found[node] = (identity, _used(_family(pid, children)))
        except (psutil.Error, OSError):  # it has just ended
            continue
    return found


def _family(pid: int, children: Mapping[int, list[int]]) -> list[int]:
    return [pid, *(each for child in children.get(pid, ()) for each in _family(child, children))]


def _used(pids: Iterable[int]) -> Used:
    cpu_s = 0.0
    read = written = resident = private = 0
    for pid in pids:
        process = psutil.Process(pid)
        times, disk, memory = process.cpu_times(), process.io_counters(), memory_of(pid)
        cpu_s += times.user + times.system + times.children_user + times.children_system
        read += disk.read_bytes
        written += disk.write_bytes
        resident += memory[0]
        private += memory[1]
    return Used(cpu_s, read, written, resident, private)


def _connections(ports: Iterable[int]) -> Connections | None:
    try:
        return Connections(list(ports))
    except OSError:  # another system than Linux, or a kernel without sock_diag: not known
        return None


class FolderSize:
    """The size of all files of a folder; read again less often when there are many."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._bytes = 0
        self._next_s = 0.0

    def bytes(self, *, is_exact: bool = False) -> int:
        """Return the size now, or with many files, the one of a while ago unless it is to be exact.

        It is read again after fifty times as long as reading it has taken.
        """
        began_s = self._clock()
        if is_exact or began_s >= self._next_s:
            self._bytes = sum(_sizes(str(self._folder)))
            took_s = self._clock() - began_s
            self._next_s = began_s + took_s / _WALK_SHARE
        return self._bytes


def _sizes(folder: str) -> Iterable[int]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _sizes(entry.path)
                else:
                    yield entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:  # not made yet, or removed meanwhile
        return
