"""The local directory keeps the contract, and has the layout of Kafka's LocalTieredStorage."""

import errno
import os
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from remote_support import PARTITION, copy_of

from ottla.protocol.errors import InvalidConfig
from ottla.protocol.types import TopicPartition
from ottla.remote.errors import RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.segment_metadata import TopicIdPartition
from ottla.remote.storage_manager import IndexType
from ottla.remote.stores import local_directory
from ottla.remote.stores.local_directory import DirectoryStore, LocalDirectory
from ottla.remote.stores.object_storage import Source, key_of, parse_key
from ottla.remote.testing import RemoteStorageManagerContract, Segment, read


class TestContract(RemoteStorageManagerContract):
    @pytest.fixture
    def manager(self, tmp_path):
        manager = LocalDirectory()
        manager.configure({"dir": str(tmp_path / "tier"), "broker.id": 1})
        manager.create()
        return manager

    def test_the_layout_is_that_of_kafkas_local_tiered_storage(self, manager, segment, tmp_path):
        copied = segment(11).copy_to(manager)
        root = tmp_path / "tier" / "kafka-tiered-storage"
        (partition,) = root.iterdir()
        assert partition.name.startswith("orders-3-")
        assert len(partition.name) == len("orders-3-") + 22
        stems = {path.name.partition(".")[0] for path in partition.iterdir()}
        (stem,) = stems
        assert stem.startswith("00000000000000000011-")
        assert sorted(path.suffix for path in partition.iterdir()) == sorted(
            [".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".leader_epoch_checkpoint"]
        )
        manager.delete_log_segment_data(copied.metadata)
        assert list(root.iterdir()) == []

    @pytest.mark.parametrize("size", [220, 230, 231, 232, 249])
    def test_topic_names_of_every_length(self, manager, segment, size, tmp_path):
        """A file system has no name of more than 255 characters; a folder of a longer one is two."""
        root = tmp_path / "tier" / "kafka-tiered-storage"
        copied = segment(11, topic="x" * size, size=100).copy_to(manager)
        other = segment(12, topic="x" * (size - 1) + "y", size=100).copy_to(manager)
        assert read(manager.fetch_log_segment(copied.metadata, start_position=0)) == copied.log
        listed = [each.key for each in manager.store.list()]
        assert listed == sorted(listed)
        assert {key_of(copied.metadata), key_of(other.metadata)} < set(listed)
        only = [each.segment_id for each in manager.list_objects(copied.metadata.partition)]
        assert set(only) == {copied.metadata.segment_id}
        for each in (copied, other):
            manager.delete_log_segment_data(each.metadata)
        assert list(root.iterdir()) == []

    @pytest.mark.parametrize("topic", ["orders", "x" * 249])
    def test_every_operation_fails_while_the_directory_is_missing(self, manager, segment, topic, tmp_path):
        """Its file system is not mounted, say: what is copied would be hidden by the next mount, what is
        deleted would be back.
        """
        tier, other = tmp_path / "tier", tmp_path / "other"
        copied = segment(11, topic=topic, size=100).copy_to(manager)
        operations = [
            lambda: segment(12, topic=topic, size=100).copy_to(manager),
            lambda: manager.fetch_log_segment(copied.metadata, start_position=0),
            lambda: manager.fetch_log_segment(copied.metadata, start_position=100),
            *(lambda each=each: manager.fetch_index(copied.metadata, each) for each in IndexType),
            lambda: manager.delete_log_segment_data(copied.metadata),
            lambda: manager.store.delete([]),
            lambda: list(manager.list_objects()),
            lambda: list(manager.list_objects(copied.metadata.partition)),
            manager.open,
        ]
        tier.rename(other)
        for is_mount_point in (False, True):
            if is_mount_point:
                tier.mkdir()
            for operation in operations:
                with pytest.raises(RetriableRemoteStorageError, match=f"{tier}.* is missing: mount"):
                    operation()
            assert not (tier / "kafka-tiered-storage").exists()
        tier.rmdir()
        other.rename(tier)
        manager.open()
        assert read(manager.fetch_log_segment(copied.metadata, start_position=0)) == copied.log
        manager.delete_log_segment_data(copied.metadata)
        assert list(manager.list_objects()) == []

    def test_only_create_makes_the_directory(self, tmp_path):
        other = LocalDirectory()
        other.configure({"dir": str(tmp_path / "other"), "broker.id": 1})
        with pytest.raises(RetriableRemoteStorageError):
            other.open()
        assert not (tmp_path / "other").exists()
        for _ in range(2):
            other.create()
        other.open()
        (tmp_path / "a file").touch()
        other.configure({"dir": str(tmp_path / "a file"), "broker.id": 1})
        with pytest.raises(InvalidConfig, match=r"rsm.config.dir is '.*a file', which cannot be created: "):
            other.create()

    def test_the_directory_of_a_partition_stays_until_its_last_segment_is_deleted(
        self, manager, segment, tmp_path
    ):
        one, other = segment(11).copy_to(manager), segment(12).copy_to(manager)
        manager.delete_log_segment_data(one.metadata)
        assert (
            read(manager.fetch_index(other.metadata, IndexType.TIMESTAMP))
            == other.indexes[IndexType.TIMESTAMP]
        )

    def test_objects_are_listed_with_their_keys_and_times(self, manager, segment, tmp_path):
        copied = segment(11, size=100).copy_to(manager)
        root = tmp_path / "tier" / "kafka-tiered-storage"
        os.utime(root / key_of(copied.metadata), ns=(0, 1_700_000_000_123_000_000))
        (root / "orders-3-of-something-else").mkdir()
        (root / "orders-3-of-something-else" / "a file").touch()
        found = {each.key: each for each in manager.list_objects()}
        assert {*found} == {key_of(copied.metadata, each) for each in (None, *IndexType)}
        listed = found[key_of(copied.metadata)]
        assert (listed.size_bytes, listed.modified_ms) == (100, 1_700_000_000_123)

    def test_a_directory_that_is_removed_while_objects_are_listed_is_left_out(
        self, manager, segment, tmp_path, monkeypatch
    ):
        copied = segment(11).copy_to(manager)
        root = tmp_path / "tier" / "kafka-tiered-storage"
        (root / "orders-0-empty").mkdir()
        (root / "a file").touch()
        iterdir = Path.iterdir

        def remove_and_list(folder):
            if folder.name == "orders-0-empty":
                folder.rmdir()
            return iterdir(folder)

        monkeypatch.setattr(Path, "iterdir", remove_and_list)
        keys = {each.key for each in manager.list_objects()}
        assert keys == {key_of(copied.metadata, each) for each in (None, *IndexType)}

    def test_all_files_of_a_copy_and_their_directory_are_on_the_disk_when_it_ends(
        self, manager, segment, tmp_path, monkeypatch
    ):
        flushed = []
        monkeypatch.setattr(
            "os.fsync", lambda fd: flushed.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        )
        for is_transactional in (True, False):
            flushed.clear()
            copied = segment(11, is_transactional=is_transactional).copy_to(manager)
            root = (tmp_path / "tier" / "kafka-tiered-storage").resolve()
            files = sorted(root.glob(f"*/*{key_of(copied.metadata)[-26:-4]}*"))
            assert len(files) == (6 if is_transactional else 5)
            assert {*map(str, files), str(files[0].parent)} <= {*flushed}
            assert flushed[-1] == str(files[0].parent)

    def test_a_directory_that_cannot_be_written_is_a_storage_error(self, manager, segment, tmp_path):
        (tmp_path / "tier" / "kafka-tiered-storage").rmdir()
        (tmp_path / "tier" / "kafka-tiered-storage").write_text("a file")
        with pytest.raises(RemoteStorageError):
            segment().copy_to(manager)


@pytest.mark.parametrize("directory", [None, "", 7])
def test_the_directory_must_be_named(directory):
    with pytest.raises(InvalidConfig, match=r"rsm\.config\.dir"):
        LocalDirectory().configure({"dir": directory})


@pytest.mark.parametrize(
    "key", ["../x/a", "a/../b", "..", "a", "", "a/", "/a", "a/b/c", "./a", "a/.", "a\0/b", "../../x"]
)
def test_a_key_never_leads_out_of_the_directory(tmp_path, key):
    (tmp_path / "tier" / "kafka-tiered-storage").mkdir(parents=True)
    outside = tmp_path / "tier" / "x"
    outside.mkdir()
    (outside / "a").touch()
    store = DirectoryStore(tmp_path / "tier" / "kafka-tiered-storage")
    with pytest.raises(RemoteStorageError):
        store.delete([key])
    with pytest.raises(RemoteStorageError):
        store.get(key)
    with pytest.raises(RemoteStorageError):
        store.put(key, Source(BytesIO(b"x"), 1, lambda _: None))
    assert (outside / "a").exists()


@pytest.mark.parametrize("name", ["../../x", "..", "a/b", "a\0b", ""])
def test_no_store_is_asked_for_a_topic_that_cannot_exist(tmp_path, name):
    """Whichever store it is: the keys are made before it is called."""
    copy = copy_of(1, 0, 10)
    bad = PARTITION._replace(topic_partition=TopicPartition(name, 0))
    with pytest.raises(RemoteStorageError):
        key_of(replace(copy, segment_id=copy.segment_id._replace(partition=bad)))


ID = "AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.mark.parametrize(
    "key",
    [
        f"..-0-{ID}/{0:020}-{ID}.log",
        f"t-00-{ID}/{0:020}-{ID}.log",
        f"t-2147483648-{ID}/{0:020}-{ID}.log",
        f"t-0-{ID}/{2**63 - 1:020}-{ID}.log",
        f"t-0-AAAAAAAAAAAAAAAAAAAAAA/{0:020}-{ID}.log",
        f"t-0-AAAAAAAAAAAAAAAAAAAAAR/{0:020}-{ID}.log",  # another text of the same 16 bytes
        f"t-0-{ID}/{0:020}-{ID}.exe",
    ],
)
def test_a_name_that_no_copy_has_is_none_of_a_copy(key):
    assert parse_key(f"t-0-{ID}/{0:020}-{ID}.log", 1) is not None
    assert parse_key(key, 1) is None


def test_a_missing_local_file_is_no_error_of_the_store(tmp_path):
    manager = LocalDirectory()
    manager.configure({"dir": str(tmp_path / "tier")})
    manager.create()
    made = Segment.make(
        tmp_path,
        TopicIdPartition(UUID(int=1), TopicPartition("t", 0)),
        start_offset=0,
        size=10,
        is_transactional=False,
        random=Random(1),
    )
    made.data.time_index.unlink()
    with pytest.raises(FileNotFoundError):
        made.copy_to(manager)


def checked(folder):
    manager = LocalDirectory()
    manager.configure({"dir": str(folder), "broker.id": 1})
    return manager.check(1)


def test_a_check_leaves_nothing(tmp_path):
    root = tmp_path / "kafka-tiered-storage"
    root.mkdir()
    assert checked(tmp_path)
    assert list(root.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_a_sentence(tmp_path, monkeypatch):
    with pytest.raises(
        RemoteStorageError, match=r"rsm\.config\.dir is '.*': .* is missing: mount its file system"
    ):
        checked(tmp_path)
    (tmp_path / "kafka-tiered-storage").mkdir()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ottla.remote.stores.local_directory._copy", full)
    with pytest.raises(RemoteStorageError) as found:
        checked(tmp_path)
    assert str(found.value) == (
        f"rsm.config.dir is '{tmp_path}', in which files cannot be written (No space left on device): free space on "
        "its file system, or name another directory"
    )


def test_a_directory_that_another_broker_removes_meanwhile_is_made_again(tmp_path, monkeypatch):
    """Both delete their last file in it: as soon as it is made, the other one has found it empty, and removes it."""
    root = tmp_path / "kafka-tiered-storage"
    root.mkdir()
    removals = iter([True, True])
    flush = local_directory._fsync

    def flush_and_remove(path):
        flush(path)
        if path == root and next(removals, False):
            (root / "shared").rmdir()

    monkeypatch.setattr(local_directory, "_fsync", flush_and_remove)
    DirectoryStore(root).put("shared/one", Source(BytesIO(b"x"), 1, lambda _: None))
    assert (root / "shared" / "one").read_bytes() == b"x"
