"""A disk in memory that fails as disks do: for storage's crash tests.

It keeps what a process sees apart from what remains after a power failure:

    pwrite, truncate ----> file.data             rename, unlink, create ----> directory.entries
                             | fsync                                            | fsync of the directory
                             v                                                  v
                           file.flushed                                       directory.flushed

`after_crash` builds the disk that the next process finds: everything if only the process was killed, else what
was flushed and some of the rest (`Loss`). A `Fault` makes an operation fail, or kills the process in it. All
random draws are from the `Random` that is passed in, so that a seed reproduces a run.

An fsync that fails loses what it should have written: a second one that succeeds does not restore it
(Linux marks the pages clean). A write that fails, and the last one before a kill, leaves any prefix.
"""

import errno as errnos
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import wraps
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakSet

from ottla.storage.files import Buffer, Files, WouldBlock

#: Operations that a Fault can name; those that change something count as one each.
OPERATIONS = ("write", "truncate", "fsync", "create", "rename", "unlink", "make_dir", "read")
CHANGES = frozenset(OPERATIONS) - {"read"}


class Killed(BaseException):
    """The process was killed in the middle of an operation.

    No code may continue: every later operation raises it again.
    """


class Loss(Enum):
    """The part of the unflushed changes that a crash removes."""

    #: Nothing: the process was killed; the operating system has all changes.
    NOTHING = auto()
    #: Everything after some moment: a disk that writes in order.
    SUFFIX = auto()
    #: Any pages, in any order; of each directory's changes those after some moment.
    PAGES = auto()
    #: Any pages and any changes of directories, in any order.
    ANYTHING = auto()
    #: All of it.
    EVERYTHING = auto()


#: What a random crash may remove; EVERYTHING is one of the results of SUFFIX.
RANDOM_LOSSES = (Loss.NOTHING, Loss.SUFFIX, Loss.PAGES, Loss.ANYTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The `nth` (from 1) of the operations of this kind, below the path, fails;
    with `is_lasting` all later ones, too.
    """

    #: One of OPERATIONS; None: any of CHANGES.
    operation: str | None
    nth: int
    #: As `errno.ENOSPC`; None: the process dies.
    errno: int | None
    under: Path = Path("/")
    is_lasting: bool = False


class _Change(NamedTuple):
    """Something that was not flushed when it happened; `moment` orders the changes of the whole disk."""

    moment: int
    position: int
    #: None: the file was made `position` bytes long.
    data: bytes | None


class _Content(NamedTuple):
    """A file's content: `data`, and zeros from there up to `size`, which are not stored (indexes are
    preallocated).
    """

    data: bytes = b""
    size: int = 0


_NOTHING = _Content()


@dataclass(slots=True, eq=False)
class _File:
    #: As in _Content.
    data: bytearray = field(default_factory=bytearray)
    size: int = 0
    flushed: _Content = _NOTHING
    pending: list[_Change] = field(default_factory=list)
    modified_ms: int = 0
    #: Those that a reader may still use: what is written to the file is seen in them.
    mappings: "WeakSet[mmap.mmap]" = field(default_factory=WeakSet)

    @classmethod
    def of(cls, content: _Content, modified_ms: int) -> "_File":
        """A file of which everything is on the disk."""
        return cls(bytearray(content.data), content.size, content, [], modified_ms)

    def content(self) -> _Content:
        return _Content(bytes(self.data), self.size)

    def read(self, position: int, size: int) -> bytes:
        found = bytes(memoryview(self.data)[position : position + size])
        return found.ljust(max(min(size, self.size - position), 0), b"\0")

    def truncate(self, size: int) -> None:
        del self.data[size:]
        self.size = size
        for mapping in self.mappings:
            if size < len(mapping):  # to touch it is SIGBUS; a reader finds no batch here
                mapping[size:] = b"\xff" * (len(mapping) - size)

    def write(self, position: int, written: bytes) -> None:
        for mapping in self.mappings:
            if position < len(mapping):
                end = min(position + len(written), len(mapping))
                mapping[position:end] = written[: end - position]
        if len(self.data) < position:
            self.data.extend(bytes(position - len(self.data)))
        self.data[position : position + len(written)] = written
        self.size = max(self.size, len(self.data))


class _Renaming(NamedTuple):
    """Names and what they name from then on (None: nothing); happens as a whole."""

    moment: int
    names: tuple[tuple[str, "_Node | None"], ...]


@dataclass(slots=True, eq=False)
class _Directory:
    entries: "dict[str, _Node]" = field(default_factory=dict)
    flushed: "dict[str, _Node]" = field(default_factory=dict)
    pending: list[_Renaming] = field(default_factory=list)


_Node = _File | _Directory


_F = TypeVar("_F", bound=Callable[..., Any])


def _operation(method: _F) -> _F:
    """An operation that waits for the disk: a thread may be stopped before it, and after it."""
    name = method.__name__

    @wraps(method)
    def stopping(self: "FaultyFiles", file: Path | int, *args: Any, **named: Any) -> Any:
        if self.on_operation is None:
            return method(self, file, *args, **named)
        path = file if isinstance(file, Path) else self._open[file][1]
        self.on_operation(name, path)
        result = method(self, file, *args, **named)
        self.on_operation(name, path)
        return result

    return cast(_F, stopping)


class FaultyFiles(Files):
    """Files in memory that inject failures, delays, and the loss of unflushed changes in a crash."""

    def __init__(self, *, random: Random, now_ms: int = 0) -> None:
        self.random = random
        self.now_ms = now_ms
        self.faults: list[Fault] = []
        #: Operations so far: a test counts them in a first run, and fails each of them in the following ones.
        self.counts: dict[str, int] = dict.fromkeys(OPERATIONS, 0)
        #: Where an fsync has failed, but not killed the process: the files in there lack what it should have written.
        self.directories_with_lost_pages: frozenset[Path] = frozenset()
        self._root = _Directory()
        self._open: dict[int, tuple[_Node, Path]] = {}
        self._next_fd = 1000
        self._moment = 0
        self._locked: set[_Node] = set()
        self._fault_counts: dict[Fault, int] = {}
        self._is_dead = False
        #: Called when a fault kills the process, before `Killed` is raised: to stop the whole process at once.
        self.on_death: Callable[[], None] = lambda: None
        #: Called before and after each operation that waits for the disk: where threads are simulated, they stop there.
        self.on_operation: Callable[[str, Path], None] | None = None
        #: Whether what is read is in memory: a broker reads it in a thread otherwise.
        self.has_in_memory: Callable[[], bool] = lambda: True
        #: Makes locks between threads, where these are simulated.
        self.mutexes: Callable[[], AbstractContextManager[object]] = super().new_mutex

    # -- failing -----------------------------------------------------------------------------------

    def fail(
        self,
        operation: str | None,
        *,
        nth: int = 1,
        errno: int | None,
        under: Path = Path("/"),
        is_lasting: bool = False,
    ) -> None:
        """Let the `nth` operation of this kind from now on fail, as a `Fault` describes it."""
        assert operation is None or operation in OPERATIONS, operation
        fault = Fault(operation=operation, nth=nth, errno=errno, under=under, is_lasting=is_lasting)
        self.faults.append(fault)
        self._fault_counts[fault] = 0

    def die(self) -> None:
        """The process is killed here: a thread that continues must not change the disk any more."""
        self._is_dead = True

    def _fault(self, operation: str, path: Path) -> OSError | None:
        """The error that this operation is to end with; raises Killed if the process was killed before."""
        if self._is_dead:
            raise Killed
        self.counts[operation] += 1
        for fault in self.faults:
            if fault.operation not in (operation, None) or (fault.operation is None and operation == "read"):
                continue
            if not path.is_relative_to(fault.under):
                continue
            self._fault_counts[fault] += 1
            count = self._fault_counts[fault]
            if count == fault.nth or (fault.is_lasting and count > fault.nth):
                if fault.errno is None:
                    self.on_death()
                    self._is_dead = True
                    return OSError("killed")
                return OSError(fault.errno, f"Injected {errnos.errorcode[fault.errno]}", str(path))
        return None

    def _may(self, operation: str, path: Path) -> None:
        if error := self._fault(operation, path):
            self._raise(error)

    def _raise(self, error: OSError) -> None:
        if self._is_dead:
            raise Killed
        raise error

    def _now(self) -> int:
        self._moment += 1
        return self._moment

    # -- after a crash -----------------------------------------------------------------------------

    def after_kill(self) -> "FaultyFiles":
        """The disk that the next process finds after a kill: what was not flushed may still be lost by
        a later crash.
        """
        self._is_dead = True
        survivor = FaultyFiles(random=self.random, now_ms=self.now_ms)
        survivor._root, survivor._moment = self._root, self._moment
        survivor.directories_with_lost_pages = self.directories_with_lost_pages
        return survivor

    def after_crash(self, random: Random, loss: Loss) -> "FaultyFiles":
        """The disk that the next process finds; this object is not used any more."""
        self._is_dead = True
        image = FaultyFiles(random=random, now_ms=self.now_ms)
        moment = random.randint(0, self._moment) if loss is Loss.SUFFIX else self._moment
        page_bytes = random.choice((64, 512, 4096))
        known: dict[_Node, _Node] = {}
        image._root = _surviving(self._root, random, loss, moment, page_bytes, known)
        image._moment = self._moment
        return image

    def flip_bit(self, path: Path) -> int:
        """Change one bit of the file, on the disk itself; where."""
        file = self._file(path)
        at = self.random.randrange(file.size)
        bit = 1 << self.random.randrange(8)
        file.write(at, bytes((file.read(at, 1)[0] ^ bit,)))
        file.flushed = file.content()
        file.pending.clear()
        return at

    def tear(self, path: Path, size: int) -> None:
        """Cut the file off, on the disk itself."""
        file = self._file(path)
        file.truncate(min(size, file.size))
        file.flushed = file.content()
        file.pending.clear()

    def hand_over(self, path: Path, taker: "FaultyFiles", target: Path) -> None:
        """Move a directory to another disk; it is on that disk at once."""
        node = self._node(path)
        self._rename_entries(self._directory(path.parent), (path.name, None))
        taker._rename_entries(taker._directory(target.parent), (target.name, node))

    def contents(self, path: Path = Path("/")) -> dict[Path, bytes]:
        """Every file below the path, as a process sees it."""
        return dict(_walk(path, self._node(path)))

    def flushed_contents(self) -> dict[Path, bytes]:
        """Every file as it is after a loss of power, without zeros at its end that were never written."""
        return dict(_walk_flushed(Path("/"), self._root))

    # -- the tree ----------------------------------------------------------------------------------

    def _find(self, path: Path) -> _Node | None:
        node: _Node | None = self._root
        for part in path.parts[1:]:
            if not isinstance(node, _Directory):
                return None
            node = node.entries.get(part)
        return node

    def _node(self, path: Path) -> _Node:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errnos.ENOENT, "No such file or directory", str(path))
        return node

    def _file(self, path: Path) -> _File:
        node = self._node(path)
        if not isinstance(node, _File):
            raise IsADirectoryError(errnos.EISDIR, "Is a directory", str(path))
        return node

    def _directory(self, path: Path) -> _Directory:
        node = self._node(path)
        if not isinstance(node, _Directory):
            raise NotADirectoryError(errnos.ENOTDIR, "Not a directory", str(path))
        return node

    def _rename_entries(self, directory: _Directory, *names: tuple[str, _Node | None]) -> None:
        for name, node in names:
            if node is None:
                directory.entries.pop(name, None)
            else:
                directory.entries[name] = node
        directory.pending.append(_Renaming(self._now(), names))

    # -- open files --------------------------------------------------------------------------------

    @_operation
    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        """Implement the method of Files."""
        if self._is_dead:
            raise Killed
        node = self._find(path)
        if node is None and create:
            self._may("create", path)
            parent = self._directory(path.parent)
            node = _File(modified_ms=self.now_ms)
            self._rename_entries(parent, (path.name, node))
        if node is None:
            node = self._node(path)
        fd = self._next_fd
        self._next_fd += 1
        self._open[fd] = node, path
        return fd

    def open_to_keep(self, path: Path) -> int:
        """Implement the method of Files."""
        # These descriptors are numbered in order, and are none of the process.
        return self.open(path, write=True)

    def close(self, fd: int) -> None:
        """Implement the method of Files."""
        node, _ = self._open.pop(fd)
        self._locked.discard(node)

    def _opened(self, fd: int) -> tuple[_File, Path]:
        node, path = self._open[fd]
        assert isinstance(node, _File), path
        return node, path

    @_operation
    def pread(self, fd: int, size: int, position: int, *, may_block: bool = True) -> bytes:
        """Implement the method of Files."""
        file, path = self._opened(fd)
        if not may_block and not self.has_in_memory():
            raise WouldBlock(path)
        self._may("read", path)
        return file.read(position, size)

    def is_cached(self, fd: int, size: int, position: int, *, step: int = 128 * 1024) -> bool:
        """Implement the method of Files."""
        return self.has_in_memory()

    @_operation
    def pwrite(self, fd: int, data: Buffer, position: int) -> None:
        """Implement the method of Files."""
        file, path = self._opened(fd)
        error = self._fault("write", path)
        written = bytes(data)
        if error is not None:
            written = written[: self.random.randint(0, len(written))]
        if written:
            file.write(position, written)
            file.pending.append(_Change(self._now(), position, written))
            file.modified_ms = self.now_ms
        if error is not None:
            self._raise(error)

    def writev(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        """Implement the method of Files."""
        self.pwrite(fd, b"".join(buffers), position)

    @_operation
    def truncate(self, fd: int, size: int) -> None:
        """Implement the method of Files."""
        file, path = self._opened(fd)
        self._may("truncate", path)
        if file.size != size:
            file.truncate(size)
            file.pending.append(_Change(self._now(), size, None))
            file.modified_ms = self.now_ms

    def size(self, fd: int) -> int:
        """Implement the method of Files."""
        return self._opened(fd)[0].size

    @_operation
    def map(self, fd: int, size: int) -> mmap.mmap:
        """Implement the method of Files."""
        mapping = mmap.mmap(-1, size)
        file, _ = self._opened(fd)
        data = file.data[:size]
        mapping[: len(data)] = data
        file.mappings.add(mapping)
        return mapping

    @_operation
    def fsync(self, fd: int) -> None:
        """Implement the method of Files."""
        node, path = self._open[fd]
        error = self._fault("fsync", path)
        if error is None and isinstance(node, _File):
            node.flushed = _applied(node.flushed, node.pending)
        elif error is None and isinstance(node, _Directory):
            for renaming in node.pending:
                _rename(node.flushed, renaming)
        if error is not None and not self._is_dead:
            self.directories_with_lost_pages |= {path if isinstance(node, _Directory) else path.parent}
        if error is None or not self._is_dead:
            node.pending.clear()
        if error is not None:
            self._raise(error)

    # -- by path -----------------------------------------------------------------------------------

    @_operation
    def read(self, path: Path) -> bytes:
        """Implement the method of Files."""
        file = self._file(path)
        self._may("read", path)
        return file.read(0, file.size)

    @_operation
    def rename(self, source: Path, target: Path) -> None:
        """Implement the method of Files."""
        node = self._node(source)
        self._may("rename", source)
        assert source.parent == target.parent, (source, target)
        self._rename_entries(self._directory(source.parent), (source.name, None), (target.name, node))

    @_operation
    def unlink(self, path: Path) -> None:
        """Implement the method of Files."""
        if self._find(path) is not None:
            self._may("unlink", path)
            self._rename_entries(self._directory(path.parent), (path.name, None))

    def exists(self, path: Path) -> bool:
        """Implement the method of Files."""
        return self._find(path) is not None

    def is_dir(self, path: Path) -> bool:
        """Implement the method of Files."""
        return isinstance(self._find(path), _Directory)

    @_operation
    def list(self, directory: Path) -> "list[str]":
        """Implement the method of Files."""
        self._may("read", directory)
        return sorted(self._directory(directory).entries)

    def size_of(self, path: Path) -> int | None:
        """Implement the method of Files."""
        node = self._find(path)
        return node.size if isinstance(node, _File) else None

    def modified_ms(self, path: Path) -> int:
        """Implement the method of Files."""
        return self._file(path).modified_ms

    def set_modified_ms(self, path: Path, modified_ms: int) -> None:
        """Implement the method of Files."""
        self._file(path).modified_ms = modified_ms

    def make_dir(self, path: Path) -> bool:
        """Implement the method of Files."""
        is_new = False
        for parent in (*reversed(path.parents), path):
            if self._find(parent) is None:
                self._may("make_dir", parent)
                self._rename_entries(self._directory(parent.parent), (parent.name, _Directory()))
                is_new = True
        return is_new

    def remove_tree(self, path: Path) -> None:
        """Implement the method of Files."""
        node = self._find(path)
        if isinstance(node, _Directory):
            for name in sorted(node.entries):
                self.remove_tree(path / name)
        self.unlink(path)

    def copy_prefix(self, source_fd: int, target_fd: int, size: int) -> None:
        """Implement the method of Files."""
        data = self.pread(source_fd, size, 0)
        if len(data) < size:
            raise OSError(errnos.EIO, f"File ends at {len(data)} instead of {size}")
        self.pwrite(target_fd, data, 0)

    def usage(self, path: Path) -> tuple[int, int]:
        """Implement the method of Files."""
        self._may("read", path)
        return 1 << 40, 1 << 39

    def new_mutex(self) -> AbstractContextManager[object]:
        """Implement the method of Files."""
        return self.mutexes()

    def lock(self, path: Path) -> int | None:
        """Implement the method of Files."""
        fd = self.open(path, write=True, create=True)
        node, _ = self._open[fd]
        if node in self._locked:
            del self._open[fd]
            return None
        self._locked.add(node)
        return fd


# -- what survives ---------------------------------------------------------------------------------------


def _applied(content: _Content, changes: Sequence[_Change]) -> _Content:
    file = _File.of(content, 0)
    for _, position, written in changes:
        if written is None:
            file.truncate(position)
        else:
            file.write(position, written)
    return file.content()


def _rename(entries: dict[str, _Node], renaming: _Renaming) -> None:
    for name, node in renaming.names:
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _surviving(
    directory: _Directory, random: Random, loss: Loss, moment: int, page_bytes: int, known: dict[_Node, _Node]
) -> _Directory:
    """The directory as it is after the crash; `known`: what was made of files that have two names by now."""
    if loss is Loss.NOTHING:
        entries = dict(directory.entries)
    else:
        entries = dict(directory.flushed)
        kept = directory.pending
        if loss is Loss.EVERYTHING:
            kept = []
        elif loss is Loss.SUFFIX:
            kept = [renaming for renaming in kept if renaming.moment <= moment]
        elif loss is Loss.PAGES:
            kept = kept[: random.randint(0, len(kept))]
        else:
            kept = [renaming for renaming in kept if random.random() < 0.5]
        for renaming in kept:
            _rename(entries, renaming)
    new = _Directory()
    for name, node in sorted(entries.items()):
        if node not in known:
            if isinstance(node, _Directory):
                known[node] = _surviving(node, random, loss, moment, page_bytes, known)
            else:
                content = _surviving_content(node, random, loss, moment, page_bytes)
                known[node] = _File.of(content, node.modified_ms)
        new.entries[name] = new.flushed[name] = known[node]
    return new


def _surviving_content(file: _File, random: Random, loss: Loss, moment: int, page_bytes: int) -> _Content:
    changes = file.pending
    if loss is Loss.NOTHING:
        return file.content()
    if loss is Loss.SUFFIX:
        return _applied(file.flushed, [change for change in changes if change.moment <= moment])
    if not changes or loss is Loss.EVERYTHING:
        return file.flushed
    # Each page as it was at one of a few moments, the length as it was at one of them; all of them between two cuts:
    # a file system does not give a file that was cut off its old blocks back behind the cut, among new ones.
    begins, ends, cut = _between_cuts(file, random.choice((0, len(changes), random.randint(0, len(changes)))))
    counts = {begins, ends, random.randint(begins, ends), random.randint(begins, ends)}
    states = [_applied(file.flushed, changes[:count]) for count in sorted(counts)]
    older = [*states, _applied(file.flushed, changes[: random.randint(0, begins)])]
    size = random.choice(states).size
    stored = min(size, max(len(state.data) for state in states))
    pages = []
    for start in range(0, stored, page_bytes):
        page = random.choice(older if start + page_bytes <= cut else states).data[start : start + page_bytes]
        pages.append(page.ljust(page_bytes, b"\0"))
    return _Content(b"".join(pages)[:stored], size)


def _between_cuts(file: _File, moment: int) -> tuple[int, int, int]:
    """Two counts of changes between which the file was not made shorter; and the smallest that it had been before."""
    begins, cut, size = 0, 0, file.flushed.size
    for count, (_, position, written) in enumerate(file.pending, start=1):
        if written is None and position < size:
            if count > moment:
                return begins, count - 1, cut
            begins, cut = count, min(cut, position) if begins else position
        size = position if written is None else max(size, position + len(written))
    return begins, len(file.pending), cut


def _walk(path: Path, node: _Node) -> Iterator[tuple[Path, bytes]]:
    if isinstance(node, _File):
        yield path, node.read(0, node.size)
    else:
        for name, child in sorted(node.entries.items()):
            yield from _walk(path / name, child)


def _walk_flushed(path: Path, node: _Node) -> Iterator[tuple[Path, bytes]]:
    if isinstance(node, _File):
        yield path, node.flushed.data
    else:
        for name, child in sorted(node.flushed.items()):
            yield from _walk_flushed(path / name, child)
