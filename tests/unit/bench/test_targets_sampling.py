"""Nodes are measured from outside: real processes that compute, write, have children, end and are replaced."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

from ottla.bench.components.processes import wait_until
from ottla.bench.targets.sampling import FolderSize, Sampler, used_by
from ottla.bench.targets.settings import file_system_of

#: Computes for so long, then waits for the end of its input.
BUSY = (
    "import sys, time; end = time.process_time() + {}\n"
    "while time.process_time() < end: pass\n"
    "print('done', flush=True); sys.stdin.read()"
)


def process(code):
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def end(child):
    child.communicate("", timeout=30)


class Nodes:
    """A target of which only the processes matter; they can be replaced."""

    def __init__(self, store=None):
        self.pids = {}
        self.store = None if store is None else SimpleNamespace(folder=store)

    def node_pids(self):
        return {node: child.pid for node, child in self.pids.items()}

    def ports(self):
        return {}


def test_processor_time_is_what_the_node_and_its_children_took_in_the_block():
    nodes = Nodes()
    parent = (
        f"import subprocess, sys; child = subprocess.run([sys.executable, '-c', {BUSY.format(0.3)!r}], "
        "stdin=subprocess.DEVNULL, capture_output=True); print('done', flush=True); sys.stdin.read()"
    )
    nodes.pids["broker-1"] = process(BUSY.format(0.2))
    nodes.pids["broker-1"].stdout.readline()  # before: not counted
    nodes.pids["broker-2"] = process("import sys; sys.stdin.readline(); " + parent)
    before = time.time()
    with Sampler(nodes) as sampler:
        nodes.pids["broker-2"].stdin.write("go\n")
        nodes.pids["broker-2"].stdin.flush()
        nodes.pids["broker-2"].stdout.readline()
    cpu_s = {node: sum(row.cpu_s for row in sampler.rows(before) if row.node == node) for node in nodes.pids}
    for child in nodes.pids.values():
        end(child)
    assert cpu_s["broker-1"] < 0.1
    assert 0.3 <= cpu_s["broker-2"] < 2  # its child has ended, and counts


def test_what_is_used_after_the_end_does_not_count():
    nodes = Nodes()
    child = nodes.pids["broker-1"] = process("import sys; sys.stdin.readline()\n" + BUSY.format(0.3))
    before = time.time()
    with Sampler(nodes) as sampler:
        wait_until(lambda: sampler.rows(before), interval_s=0.1)
        ended = time.time()
        wait_until(lambda: sampler.rows(ended)[1:], interval_s=0.1)  # the interval of the end is over
        child.stdin.write("go\n")
        child.stdin.flush()
        child.stdout.readline()
    end(child)
    assert sum(row.cpu_s for row in sampler.rows(before)) >= 0.3
    assert sum(row.cpu_s for row in sampler.rows(before, ended)) < 0.1


def test_a_process_in_the_place_of_another_one_begins_at_zero():
    nodes = Nodes()
    old = nodes.pids["broker-1"] = process(BUSY.format(1.0))
    old.stdout.readline()
    before = time.time()
    with Sampler(nodes) as sampler:
        end(old)
        new = nodes.pids["broker-1"] = process(BUSY.format(0.1))
        new.stdout.readline()
    end(new)
    cpu_s = sum(row.cpu_s or 0 for row in sampler.rows(before))
    assert 0.1 <= cpu_s < 1.0


def test_what_is_written_to_a_disk_and_held_in_memory(tmp_path):
    nodes = Nodes()
    code = (
        f"import os, sys; sys.stdin.readline(); data = os.urandom(30 << 20); f = open({str(tmp_path / 'f')!r}, 'wb'); "
        "f.write(data); f.flush(); os.fsync(f.fileno()); print('done', flush=True); sys.stdin.read()"
    )
    child = nodes.pids["broker-1"] = process(code)
    before = time.time()
    with Sampler(nodes) as sampler:
        child.stdin.write("go\n")
        child.stdin.flush()
        child.stdout.readline()
    rows = sampler.rows(before)
    end(child)
    assert max(row.private_bytes for row in rows) > 30 << 20
    assert all(row.resident_bytes > row.private_bytes for row in rows)
    if file_system_of(tmp_path) != "tmpfs":
        assert sum(row.written_bytes for row in rows) >= 30 << 20


def test_seconds_count_from_the_given_time_and_a_node_that_ends_has_no_figures():
    nodes = Nodes()
    child = nodes.pids["broker-1"] = process("import sys; sys.stdin.read()")
    before = time.time()
    with Sampler(nodes) as sampler:
        wait_until(lambda: sampler.rows(before), interval_s=0.1)
        end(child)
        wait_until(lambda: sampler.rows(before)[-1].cpu_s is None, interval_s=0.1)
    rows = sampler.rows(before)
    assert rows[0].cpu_s is not None
    assert rows[0].received_bytes is None  # no ports are known
    assert rows[-1].private_bytes is None
    seconds = [row.second for row in rows]
    assert seconds == sorted(set(seconds))
    assert 0 <= seconds[0] < 10  # more than 0 on a machine that has stood still for as long
    later = [row.second for row in sampler.rows(before + 1)]
    assert later == [second - 1 for second in seconds if second >= 1]


def test_the_size_of_a_store_is_that_of_all_its_files(tmp_path):
    with Sampler(Nodes(store=tmp_path / "not-yet")) as sampler:
        (tmp_path / "not-yet" / "a").mkdir(parents=True)
        (tmp_path / "not-yet" / "a" / "1.log").write_bytes(bytes(1000))
        (tmp_path / "not-yet" / "2").write_bytes(bytes(24))
        (tmp_path / "not-yet" / "a link").symlink_to("2")
    assert [(row.node, row.tiered_bytes) for row in sampler.rows(0)] == [("store", 1024 + 1)]


def test_a_large_folder_is_read_in_a_fiftieth_of_the_time(tmp_path):
    (tmp_path / "one").write_bytes(b"x")
    # It is read from 10 s to 12 s.
    size = FolderSize(tmp_path, clock=iter([10, 12, 50, 109, 110, 110]).__next__)
    assert size.bytes() == 1
    (tmp_path / "another one").write_bytes(b"x")
    assert [size.bytes() for _ in range(3)] == [1, 1, 2]


def test_the_last_sample_has_the_size_of_the_store_as_it_is(tmp_path, monkeypatch):
    """The figure of the result is read once more, even where reading took so long that the next time were
    hours away.
    """
    monkeypatch.setattr("ottla.bench.targets.sampling._WALK_SHARE", 1e-12)
    with Sampler(Nodes(store=tmp_path)) as sampler:
        wait_until(lambda: sampler.rows(0))
        (tmp_path / "1.log").write_bytes(bytes(1000))
    assert sampler.rows(0)[-1].tiered_bytes == 1000


def test_a_node_whose_process_has_ended_is_left_out():
    child = process("")
    end(child)
    assert used_by({"broker-1": child.pid, "broker-2": os.getpid()}).keys() == {"broker-2"}
