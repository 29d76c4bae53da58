"""Names of storage and metadata managers, and the errors of those that cannot be used (KIP-405)."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ottla.protocol.errors import InvalidConfig
from ottla.remote import plugins
from ottla.remote.errors import RemoteStorageError
from ottla.remote.plugins import TOPIC_BASED, load_metadata_manager, load_storage_manager, storage_manager_of
from ottla.remote.storage_manager import RemoteStorageManager
from ottla.remote.stores.local_directory import LocalDirectory

KAFKAS = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"


class NullStorage(LocalDirectory):
    """A manager of a plugin."""

    def configure(self, configs):
        self.configs = configs


class NeedsArguments(LocalDirectory):
    def __init__(self, name):
        super().__init__()


class FailsToCreate(LocalDirectory):
    def configure(self, configs):
        pass

    def create(self):
        raise OSError("the store is full")


class FailsToConfigure(LocalDirectory):
    def configure(self, configs):
        raise RemoteStorageError("the store is on fire")


def a_function():
    return NullStorage()


NOT_A_CLASS = 5
HERE = __name__


@pytest.mark.parametrize("name", ["directory", KAFKAS, "ottla.remote.stores.local_directory.LocalDirectory"])
def test_names_of_the_local_directory(name, tmp_path):
    manager = load_storage_manager(name, {"dir": str(tmp_path), "broker.id": 1}, creates_store=True)
    assert type(manager) is LocalDirectory
    assert (tmp_path / "kafka-tiered-storage").is_dir()


def test_a_program_that_is_no_broker_creates_no_directory(tmp_path):
    """`ottla tier verify` of a mistyped directory said that nothing was wrong, and left an empty tier there."""
    properties = {"remote.log.storage.manager.class.name": KAFKAS, "rsm.config.dir": str(tmp_path / "tire")}
    with pytest.raises(InvalidConfig, match="tire is no remote tier"):
        storage_manager_of(properties)
    assert list(tmp_path.iterdir()) == []
    load_storage_manager(KAFKAS, {"dir": str(tmp_path / "tire")}, creates_store=True)  # a broker does
    assert type(storage_manager_of(properties)) is LocalDirectory


def test_a_directory_that_may_not_be_read_is_one_sentence(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)  # root may read all
    properties = {"remote.log.storage.manager.class.name": KAFKAS, "rsm.config.dir": str(tmp_path)}
    with pytest.raises(InvalidConfig, match="kafka-tiered-storage cannot be read: Permission denied"):
        storage_manager_of(properties)


@pytest.mark.parametrize(("name", "kind"), [("s3", "S3Storage"), ("minio", "MinioStorage")])
def test_names_of_object_stores(name, kind):
    configs = {
        "bucket": "b",
        "endpoint": "http://127.0.0.1:1",
        "access.key": "a",
        "secret.key": "b",
        "broker.id": 1,
    }
    manager = load_storage_manager(name, configs)
    assert type(manager).__name__ == kind
    manager.close()


@pytest.mark.logs("these settings of rsm.config are not known and have no effect")
def test_a_setting_that_a_store_does_not_know(caplog):
    load_storage_manager("s3", {"bucket": "b", "regoin": "r", "region": "r", "broker.id": 1}).close()
    assert "no effect: regoin; known are bucket, prefix" in caplog.text


@pytest.mark.parametrize("name", ["NullStorage", "a_function"])
def test_a_dotted_path(name):
    manager = load_storage_manager(f"{HERE}.{name}", {"a": "b", "broker.id": 3})
    assert type(manager) is NullStorage
    assert manager.configs == {"a": "b", "broker.id": 3}


def test_an_entry_point(monkeypatch):
    registered = EntryPoint(name="null", value=f"{HERE}:NullStorage", group=plugins.STORAGE_GROUP)
    monkeypatch.setattr(
        plugins, "entry_points", lambda group, name="null": [registered] if name == "null" else []
    )
    assert type(load_storage_manager("null", {})) is NullStorage
    with pytest.raises(InvalidConfig, match=r"an entry point of the group ottla.remote_storage \(null\)"):
        load_storage_manager("nul", {})


CLASS = "remote.log.storage.manager.class.name"


@pytest.mark.parametrize(("name", "configs", "sentence"), [
    (None,                        {}, f"{CLASS} is not set, but .* set it to directory, s3, minio or"),
    ("nope",                      {}, (f"'nope' for configuration {CLASS}: "
                                       "it must be directory, s3, minio, package.module")),
    ("no.such.module.Class",      {}, "its import failed with ModuleNotFoundError: No module named 'no'"),
    (f"{HERE}.Missing",           {}, "it must be the path of a class: .*test_plugins has no Missing"),
    (f"{HERE}.NOT_A_CLASS",       {}, "it must be a class"),
    ("pathlib.PurePath",          {}, "it must be a subclass of ottla.remote.storage_manager.RemoteStorageManager"),
    ("time.time",                 {}, "it must be a subclass of ottla.remote.storage_manager.RemoteStorageManager"),
    (f"{HERE}.NeedsArguments",    {}, r"cannot be configured: TypeError: .*missing 1 required positional argument"),
    (f"{HERE}.FailsToCreate",     {}, "cannot be configured: OSError: the store is full. Correct its settings"),
    (f"{HERE}.FailsToConfigure",  {}, ("cannot be configured: RemoteStorageError: the store is on fire. "
                                       "Correct its settings")),
    ("ottla.remote.storage_manager.RemoteStorageManager",
                                  {}, "cannot be configured: TypeError: Can't instantiate abstract class"),
    ("directory",                 {}, "rsm.config.dir is None: set it to a directory"),
    ("s3",                        {}, "rsm.config.bucket is not set: name the bucket"),
    ("minio",                     {"bucket": "b"}, "rsm.config.endpoint is not set: set it to"),
])  # fmt: skip
def test_what_cannot_be_used(name, configs, sentence):
    with pytest.raises(InvalidConfig, match=sentence):
        load_storage_manager(name, configs, creates_store=True)


def test_a_class_path(tmp_path, monkeypatch):
    """Its folders come after the broker's own: a plugin cannot replace a module of the broker."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "plugin_of_a_test.py").write_text(f"from {HERE} import NullStorage as Storage\n")
    (tmp_path / "broker.py").write_text("raise SystemExit")
    before = [*sys.path]
    for _ in range(2):
        manager = load_storage_manager("plugin_of_a_test.Storage", {}, class_path=f" {tmp_path} ")
        assert isinstance(manager, RemoteStorageManager)
    assert sys.path == [*before, str(tmp_path)]


@pytest.mark.parametrize("path", ["/no/such/folder", __file__, "/opt/jars/*"])
def test_a_class_path_that_holds_nothing(path):
    with pytest.raises(
        InvalidConfig, match=r"class.path: it must be folders, wheels or zip files, separated by ':'"
    ):
        load_storage_manager(f"{HERE}.NullStorage", {}, class_path=path)


def test_the_metadata_manager_of_the_topic_is_made_by_the_broker():
    made = []

    class OfTheTopic(_Metadata):
        def __init__(self):
            made.append(self)

    configs = {"cluster.id": "c"}
    assert load_metadata_manager(TOPIC_BASED, configs, topic_based=OfTheTopic) is made[0]
    assert made[0].configs is configs


def test_another_metadata_manager():
    found = load_metadata_manager(f"{HERE}._Metadata", {"a": "b"}, topic_based=pytest.fail)
    assert found.configs == {"a": "b"}
    with pytest.raises(InvalidConfig, match=r"it must be a subclass of ottla.remote.metadata_manager"):
        load_metadata_manager(f"{HERE}.NullStorage", {}, topic_based=pytest.fail)
    with pytest.raises(InvalidConfig, match=r"metadata.manager.class.name: it must be package.module.Class"):
        load_metadata_manager("directory", {}, topic_based=pytest.fail)


class _Metadata(plugins.RemoteLogMetadataManager):
    def configure(self, configs):
        self.configs = configs


_Metadata.__abstractmethods__ = frozenset()
