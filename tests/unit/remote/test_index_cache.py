"""The cache of remote indexes on the disk (KIP-405): fetched once, verified, bounded, kept over a restart."""

import asyncio
import errno
from dataclasses import replace

import pytest
from reading_support import TieredTwins

from ottla.remote.errors import RemoteResourceNotFound, RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.reading.index_cache import IndexCache
from ottla.remote.reading.index_cache_files import DIRECTORY, IndexFiles
from ottla.remote.reading.settings import RemoteReadSettings
from ottla.remote.storage_manager import IndexType
from ottla.runtime import Pool
from ottla.runtime.simulated import Simulation
from ottla.storage.files import Files
from tests.harness.faulty_store import Fault, from_elsewhere, refuse
from tests.unit.storage.storage_support import NOW_MS

#: The disk space of an empty index, as that of a single batch, and its checksum.
SMALL = 4096


@pytest.fixture
def simulation():
    with Simulation(seed=1) as simulation:
        yield simulation


@pytest.fixture
def twins(simulation, tmp_path):
    """Six copies of one batch each; one has an aborted transaction."""
    twins = TieredTwins(tmp_path, simulation.runtime("broker"))
    simulation.run(twins.cache.start())
    for number in range(5):
        twins.producer.append(producer=1 if number == 4 else None)
        if number == 4:
            twins.producer.end(1, commit=False)
        twins.producer.roll()
    twins.copies = twins.offload(5)
    yield twins
    twins.close()


async def use(cache, copy, index_type=IndexType.OFFSET):
    async with cache.use(copy, index_type) as path:
        return path.read_bytes()


def restarted(simulation, twins, *directories):
    cache = IndexCache(
        IndexFiles(*directories or (twins.cache.files.directory,), files=Files(), store=twins.store),
        runtime=twins.runtime,
        settings=lambda: twins.settings,
    )
    simulation.run(cache.start())
    return cache


def test_the_names_are_kafkas(simulation, twins, tmp_path):
    for index_type in (IndexType.OFFSET, IndexType.TIMESTAMP, IndexType.TRANSACTION):
        simulation.run(use(twins.cache, twins.copies[-1], index_type))
    names = sorted(path.name for path in (tmp_path / DIRECTORY).iterdir())
    stem = "4_AAAAAAAAAAAAAAAAAAAABQ"
    assert names == sorted(
        f"{stem}.{kind}{suffix}" for kind in ("index", "timeindex", "txnindex") for suffix in ("", ".crc32c")
    )
    assert len((tmp_path / DIRECTORY / f"{stem}.txnindex").read_bytes()) == 34


def test_concurrent_uses_fetch_once(simulation, twins):
    twins.runtime.pools[Pool.REMOTE_READS].blocking_s = lambda: 0.1

    async def main():
        await asyncio.gather(*(use(twins.cache, twins.copies[0]) for _ in range(5)))

    simulation.run(main())
    assert twins.store.count("index") == 1


def test_a_failed_fetch_is_an_error_of_all_and_not_kept(simulation, twins):
    twins.runtime.pools[Pool.REMOTE_READS].blocking_s = lambda: 0.1
    twins.store.faults.append(Fault("index", refuse(503)))

    async def main():
        return await asyncio.gather(
            *(use(twins.cache, twins.copies[0]) for _ in range(3)), return_exceptions=True
        )

    assert all(isinstance(each, RemoteStorageError) for each in simulation.run(main()))
    assert simulation.run(use(twins.cache, twins.copies[0])) is not None
    assert twins.store.count("index") == 2


def test_a_use_that_is_cancelled_does_not_cancel_the_fetch(simulation, twins):
    twins.runtime.pools[Pool.REMOTE_READS].blocking_s = lambda: 0.1

    async def main():
        first = asyncio.ensure_future(use(twins.cache, twins.copies[0]))
        second = asyncio.ensure_future(use(twins.cache, twins.copies[0]))
        await asyncio.sleep(0.05)
        first.cancel()
        await second

    simulation.run(main())
    assert twins.store.count("index") == 1


@pytest.mark.parametrize("kind", ["index", "timeindex", "txnindex"])
def test_impossible_content_is_refused(simulation, twins, kind):
    twins.store.faults.append(Fault(kind, from_elsewhere(b"<html>Service Unavailable</html>")))
    with pytest.raises(RemoteStorageError, match="damaged"):
        simulation.run(use(twins.cache, twins.copies[-1], IndexType(kind)))
    assert len(twins.cache) == 0
    assert list(twins.cache.files.directory.iterdir()) == []


def test_an_index_larger_than_its_segment_is_refused(simulation, twins):
    twins.store.faults.append(Fault("index", from_elsewhere(bytes(100_000))))
    with pytest.raises(RemoteStorageError, match="larger"):
        simulation.run(use(twins.cache, twins.copies[0]))
    assert list(twins.cache.files.directory.iterdir()) == []


def test_an_index_that_is_sent_in_part_leaves_nothing_on_the_disk(simulation, twins, monkeypatch):
    """The limit of the cache does not count it, and no later use may replace it."""

    class Broken:
        parts = iter([b"part"])

        def read(self, size=-1):
            for part in self.parts:
                return part
            raise ConnectionResetError

        def close(self):
            pass

    monkeypatch.setattr(twins.store, "fetch_index", lambda copy, index_type: Broken())
    with pytest.raises(RetriableRemoteStorageError, match="ConnectionResetError"):
        simulation.run(use(twins.cache, twins.copies[0]))
    assert list(twins.cache.files.directory.iterdir()) == []


@pytest.mark.parametrize("operation", ["write_atomically", "rename"])
def test_an_index_that_does_not_fit_on_the_disk_leaves_nothing_there(
    simulation, twins, monkeypatch, operation
):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(twins.cache.files.files, operation, fail)
    with pytest.raises(OSError, match="No space"):
        simulation.run(use(twins.cache, twins.copies[0]))
    assert list(twins.cache.files.directory.iterdir()) == []


def test_a_transaction_index_that_is_not_there_is_empty(simulation, twins):
    twins.store.faults += [Fault("txnindex", refuse(404)), Fault("index", refuse(404))]
    assert simulation.run(use(twins.cache, twins.copies[0], IndexType.TRANSACTION)) == b""
    with pytest.raises(RemoteResourceNotFound):
        simulation.run(use(twins.cache, twins.copies[0]))


# -- restart -----------------------------------------------------------------------------------------


def test_a_restart_keeps_what_is_complete(simulation, twins):
    data = [simulation.run(use(twins.cache, copy)) for copy in twins.copies]
    directory = twins.cache.files.directory
    names = sorted(path.name for path in directory.iterdir())
    (directory / "7_AAAAAAAAAAAAAAAAAAAABw.index.tmp").write_bytes(b"half")
    (directory / "8_AAAAAAAAAAAAAAAAAAAABw.index").write_bytes(b"without a checksum")
    (directory / "9_AAAAAAAAAAAAAAAAAAAABw.index.crc32c").write_bytes(b"without an index")
    cache = restarted(simulation, twins)
    assert sorted(path.name for path in directory.iterdir()) == names
    assert len(cache) == len(twins.copies)
    assert cache.size_bytes == twins.cache.size_bytes
    assert [simulation.run(use(cache, copy)) for copy in twins.copies] == data
    assert twins.store.count("index") == len(twins.copies)
    cache.close()


@pytest.mark.logs("is damaged")
@pytest.mark.parametrize(
    "change", [lambda data: data[:-8], lambda data: bytes([data[0] ^ 1]) + data[1:], lambda data: b""]
)
def test_a_damaged_file_is_fetched_again(simulation, twins, change):
    """A flipped bit in a transaction index would return aborted records as committed ones."""
    copy = twins.copies[-1]
    data = simulation.run(use(twins.cache, copy, IndexType.TRANSACTION))
    (path,) = twins.cache.files.directory.glob("*.txnindex")
    path.write_bytes(change(data))
    cache = restarted(simulation, twins)
    assert simulation.run(use(cache, copy, IndexType.TRANSACTION)) == data
    assert twins.store.count("txnindex") == 2
    cache.close()


@pytest.mark.logs("is an index of the same segment")
@pytest.mark.parametrize("is_newer", [True, False])
def test_of_two_files_for_one_index_the_newest_is_kept(simulation, twins, caplog, is_newer):
    """The content of a disk is no assertion: a directory may have been copied, or repaired by hand."""
    copy = twins.copies[0]
    data = simulation.run(use(twins.cache, copy))
    files = twins.cache.files
    (path,) = files.directory.glob("*.index")
    other = path.with_name(path.name.replace("0_", "17_", 1))
    for suffix in ("", ".crc32c"):
        other.with_name(other.name + suffix).write_bytes(path.with_name(path.name + suffix).read_bytes())
    files.files.set_modified_ms(path, NOW_MS)
    files.files.set_modified_ms(other, NOW_MS + (1 if is_newer else -1))
    cache = restarted(simulation, twins)
    kept = other if is_newer else path
    assert sorted(files.directory.iterdir()) == [kept, kept.with_name(kept.name + ".crc32c")]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert len(cache) == 1
    assert cache.size_bytes == twins.cache.size_bytes
    assert simulation.run(use(cache, copy)) == data
    assert twins.store.count("index") == 1
    cache.close()


# -- bounds ------------------------------------------------------------------------------------------


def test_the_least_recently_used_goes_first(simulation, twins):
    twins.settings = RemoteReadSettings(index_cache_bytes=3 * SMALL)
    for number in (0, 1, 2, 0, 3):
        simulation.run(use(twins.cache, twins.copies[number]))
    simulation.run(asyncio.sleep(1))
    kept = {int(path.name.partition("_")[0]) for path in twins.cache.files.directory.iterdir()}
    assert kept == {0, 2, 3}
    assert twins.cache.size_bytes == 3 * SMALL
    # The limit is dynamic.
    twins.settings = replace(twins.settings, index_cache_bytes=SMALL)
    twins.cache.resize()
    assert twins.cache.size_bytes == SMALL


def test_an_index_in_use_stays(simulation, twins):
    twins.settings = RemoteReadSettings(index_cache_bytes=SMALL)

    async def main():
        async with twins.cache.use(twins.copies[0], IndexType.OFFSET) as path:
            for copy in twins.copies[1:]:
                await use(twins.cache, copy)
            twins.cache.remove_segments([twins.copies[0].segment_id.id])
            await asyncio.sleep(1)
            assert path.exists()

    simulation.run(main())
    assert twins.cache.size_bytes <= SMALL


@pytest.mark.parametrize(("ttl_ms", "kept"), [(60_000, 1), (None, 3)])
def test_what_is_not_used_for_long_goes(simulation, twins, ttl_ms, kept):
    """remote.log.index.file.cache.ttl.ms counts from the last use."""
    twins.settings = RemoteReadSettings(index_cache_ttl_ms=ttl_ms)

    async def main():
        for copy in twins.copies[:3]:
            await use(twins.cache, copy)
        for _ in range(4):
            await asyncio.sleep(30)
            await use(twins.cache, twins.copies[0])
        return len(twins.cache)

    assert simulation.run(main()) == kept


def test_the_indexes_of_a_deleted_segment_go(simulation, twins):
    simulation.run(use(twins.cache, twins.copies[-1]))
    simulation.run(use(twins.cache, twins.copies[-1], IndexType.TRANSACTION))
    twins.cache.remove_segments([twins.copies[-1].segment_id.id])
    simulation.run(asyncio.sleep(1))
    assert list(twins.cache.files.directory.iterdir()) == []


def test_an_index_is_fetched_again_after_its_removal_is_complete(simulation, twins):
    """Otherwise the removal could remove the new files."""
    data = simulation.run(use(twins.cache, twins.copies[0]))
    twins.runtime.pools[Pool.REMOTE_READS].blocking_s = lambda: 0.1

    async def main():
        twins.cache.remove_segments([twins.copies[0].segment_id.id])
        return await use(twins.cache, twins.copies[0])

    assert simulation.run(main()) == data
    simulation.run(asyncio.sleep(1))
    assert simulation.run(use(twins.cache, twins.copies[0])) == data


# The log directory of the cache fails


@pytest.mark.logs("fails: indexes of the remote tier are written to")
def test_when_its_directory_fails_the_next_one_has_new_indexes(simulation, twins, tmp_path, caplog):
    """Indexes of the failed directory are fetched again; the first use of one may fail, and no other."""
    first, second = tmp_path / "a" / DIRECTORY, tmp_path / "b" / DIRECTORY
    cache = IndexCache(
        IndexFiles(first, tmp_path / "broken" / "x" / DIRECTORY, second, files=Files(), store=twins.store),
        runtime=twins.runtime,
        settings=lambda: twins.settings,
    )
    (tmp_path / "broken").write_text("no directory")
    simulation.run(cache.start())
    known, others = twins.copies[:3], twins.copies[3:]
    for copy in known:
        simulation.run(use(cache, copy))
    (tmp_path / "a").rename(tmp_path / "a.gone")
    (tmp_path / "a").write_text("no directory")
    with pytest.raises(OSError, match="Not a directory"):
        simulation.run(use(cache, known[0]))
    for copy in (*known, *others, *known):
        assert simulation.run(use(cache, copy)) is not None
    assert cache.files.directory == second
    assert len(list(second.glob("*.index"))) == 5
    assert len(cache) == 5
    warnings = [each for each in caplog.records if "are written to" in each.getMessage()]
    assert len(warnings) == 1
    cache.close()


def test_an_oserror_of_the_store_is_no_failure_of_a_directory(simulation, twins, tmp_path):
    """A plug-in may raise that of its socket."""

    def reset(body):
        raise ConnectionResetError(errno.ECONNRESET, "reset by peer")

    first = twins.cache.files.directory
    cache = restarted(simulation, twins, first, tmp_path / "b" / DIRECTORY)
    twins.store.faults.append(Fault("index", reset))
    with pytest.raises(RetriableRemoteStorageError, match="reset by peer"):
        simulation.run(use(cache, twins.copies[0]))
    assert cache.files.directory == first
    assert simulation.run(use(cache, twins.copies[0])) is not None
    cache.close()


@pytest.mark.logs("fails: indexes of the remote tier are written to")
def test_when_all_directories_fail_the_use_does(simulation, twins, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    cache = IndexCache(
        IndexFiles(tmp_path / "a" / DIRECTORY, tmp_path / "b" / DIRECTORY, files=Files(), store=twins.store),
        runtime=twins.runtime,
        settings=lambda: twins.settings,
    )
    simulation.run(cache.start())
    for name in ("a", "b"):
        (tmp_path / name).rename(tmp_path / f"{name}.gone")
        (tmp_path / name).write_text("no directory")
    for _ in range(2):
        with pytest.raises(OSError, match="Not a directory"):
            simulation.run(use(cache, twins.copies[0]))
    (tmp_path / "b").unlink()
    (tmp_path / "b").mkdir()
    simulation.run(use(cache, twins.copies[0]))
    cache.close()
    # At the next start the first directory is there again: nothing stays in the others.
    (tmp_path / "a").unlink()
    assert (
        restarted(simulation, twins, tmp_path / "a" / DIRECTORY, tmp_path / "b" / DIRECTORY).size_bytes == 0
    )
    assert list((tmp_path / "b").iterdir()) == []
